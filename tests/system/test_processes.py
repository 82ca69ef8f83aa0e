"""What /proc says of real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark_lease.system.processes import is_exiting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

_BUSY = """
import threading
memory = bytearray(100 << 20)
for _ in range(50):
    threading.Thread(target=input, daemon=True).start()
print("ready", flush=True)
input()
"""


def test_the_peer_that_reads_the_end_of_a_connection_finds_the_process_exiting() -> None:
    """At once: whether or not its end can be seen."""
    for _ in range(10):
        with subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline() == b"ready\n"
            assert not is_exiting(process.pid)
            process.kill()
            assert process.stdout.read() == b""
            assert is_exiting(process.pid)
        assert not is_exiting(process.pid), "one that is gone has no flags"
