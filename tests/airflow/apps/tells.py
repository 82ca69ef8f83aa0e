"""Tells what it was started with: its environment, and the command lines of all that started it."""

import json
import os
import sys
from pathlib import Path


def ancestors():
    pid = os.getpid()
    while pid > 1:
        yield Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


told = {"environ": dict(os.environ), "command_lines": list(ancestors())}
Path(sys.argv[1], f"{os.environ['SPARK_LEASE_NAME']}.json").write_text(json.dumps(told))
