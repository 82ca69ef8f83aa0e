"""The command line as a user meets it: a real process, and the last line that it prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = str(Path(sys.executable).with_name("spark-lease"))


def spark_lease(
    *words: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *words], capture_output=True, text=True, timeout=timeout, check=False, cwd=cwd, env=env
    )


def last_line(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found
