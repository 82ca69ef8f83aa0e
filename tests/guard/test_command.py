"""A command under the lease, where no more processes may be started, or files opened."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import psycopg2
import pytest

from spark_lease.config.sources import configure
from spark_lease.errors import ConfigError
from spark_lease.guard import command
from tests.support.command import COMMAND, last_line
from tests.support.drivers import until

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


@pytest.mark.postgres
def test_a_run_that_may_open_too_few_files_is_told_so_and_keeps_no_lease(pg_url: str) -> None:
    """Whichever of them is the one too many."""
    told = []
    for limit in range(9, 16):
        where = f"--lease n --url '{pg_url}' --create-table true --acquire-timeout 0.1 --lease-duration 60"
        words = f"ulimit -n {limit}; exec {COMMAND} run {where} -- true"
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        told.append(str(last_line(done)["reason"]))
        with contextlib.suppress(psycopg2.errors.UndefinedTable), closing(psycopg2.connect(pg_url)) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT broker_name FROM spark_lease WHERE name = 'n'")
            assert cursor.fetchall() == [(None,)], done.stderr
    assert [each for each in told if each.endswith("Too many open files: no descriptor is free (ulimit -n)")]
    assert told[-1] == ""


def test_a_loss_ends_the_command_also_where_no_file_may_be_opened_any_more(url: str, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    words = f"touch {beat}; trap 'rm {beat}' TERM; while [ -e {beat} ]; do sleep 0.1; done"
    command = [COMMAND, "run", "--lease", "n", "--url", url, "--contain", "off", "--lease-duration", "3", "--"]
    with subprocess.Popen([*command, "sh", "-c", words], stderr=subprocess.PIPE, text=True) as process:
        until(beat.exists)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, 3))
        _, said = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in said, beat.exists()) == (75, False, False), said


def test_a_thread_that_cannot_be_started_may_lack_a_number_or_memory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def starts(error: Exception) -> Callable[..., NoReturn]:
        def start(*_: object) -> NoReturn:
            raise error

        return start

    config = configure(name="n", url=url, create_table="true")
    for error, key in (
        (RuntimeError("can't start new thread"), "ulimit -u, ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "ulimit -u"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
    ):
        monkeypatch.setattr(command, "contained", starts(error))
        with pytest.raises(ConfigError) as refused:
            command.run(config, ["true"])
        assert refused.value.key == key
        assert ("memory" in refused.value.problem, "processes" in refused.value.problem) == ("-v" in key, "-u" in key)
