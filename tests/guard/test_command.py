"""A command under the lease, where no more processes may be started."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from tests.support.command import COMMAND, last_line

ANOTHER_USER = ["setpriv", "--reuid", "54321", "--clear-groups"]
"""Who may still read and write everything, but has the limit of processes that root is free of."""
ANOTHER_USER += [f"--{which}-caps=+dac_override" for which in ("inh", "ambient")]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user without processes")
def test_a_user_who_may_start_no_more_processes_is_told_so_and_keeps_no_lease(url: str, tmp_path: Path) -> None:
    """Whichever process or thread is the one too many."""
    told = []
    for limit in (*range(1, 12), 50):
        words = f"ulimit -u {limit}; exec {COMMAND} run --lease n --url {url} -- true"
        environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        done = subprocess.run(
            [*ANOTHER_USER, "bash", "-c", words], capture_output=True, text=True, timeout=60, check=False, env=environ
        )
        assert "Traceback" not in done.stderr, done.stderr
        told.append(str(last_line(done)["reason"]))
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            if limit > 1:
                assert connection.execute("SELECT broker_name FROM spark_lease").fetchall() == [(None,)], done.stderr
    assert told[0].startswith("ulimit -u: no more processes and threads may be started")
    assert told[-1] == ""
