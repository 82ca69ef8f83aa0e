"""Guarded drivers for the tests: real Python processes with a real SparkSession, told what to do by a script."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_lease.config.sources import configure
from spark_lease.election.directive import Directive
from spark_lease.election.record import with_directive
from spark_lease.stores.registry import open_store
from spark_lease.system.processes import Process, kill, processes, tree
from tests.support.command import COMMAND

PRELUDE = """
import logging, os, sys, threading, time
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from pathlib import Path
from spark_lease import LeaseLost, hold_lease, leased
FOLDER = Path(os.environ["TEST_FOLDER"])
SETTINGS = dict(url=os.environ["TEST_URL"], table=os.environ["TEST_TABLE"], create_table=True, lease_duration=4)

def say(words):
    sys.stdout.write(f"{words}\\n")  # in one piece: spark-submit makes Python write print's end of line by itself
    sys.stdout.flush()

def session(master="local[2]"):
    from pyspark.sql import SparkSession
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF"}
    return SparkSession.builder.master(master).config(map=conf).getOrCreate()

def write_for(seconds, who):
    # Both tasks append the time to a file of their own, every few milliseconds: what a zombie would go on doing.
    def task(part):
        import time
        with open(f"{FOLDER}/{who}-{part}", "a") as file:
            end = time.time() + seconds
            while time.time() < end:
                file.write(f"{time.time()}\\n")
                file.flush()
                time.sleep(0.005)
        return part
    return task

def write(spark, seconds=60, who="task"):
    say("writing")
    return spark.sparkContext.parallelize([0, 1], 2).map(write_for(seconds, who)).collect()
"""

DELTA = """
    sys.path.insert(0, os.getcwd())
    from jobs.jars import FOLDER as JARS, spark_options
    os.environ["PYSPARK_PYTHON"] = sys.executable
    TABLE = f"{FOLDER}/flights"
    def delta_session(**more):
        from pyspark.sql import SparkSession
        pairs = (word.split("=", 1) for word in spark_options(Path(os.environ.get("TEST_JARS", JARS))) if "=" in word)
        return SparkSession.builder.master("local[2]").config(map=dict(pairs) | more).getOrCreate()
"""
"""What a script begins with that writes to the Delta table at TABLE."""


class Driver:
    """One process that runs PRELUDE and `script`; `spark_submit` are the words in front of it, if it is submitted."""

    def __init__(self, script: str, folder: Path, url: str, table: str, *, command: list[str] | None = None) -> None:
        self.folder, self.url = folder, url
        file = folder / f"driver-{time.monotonic_ns()}.py"
        file.write_text(PRELUDE + textwrap.dedent(script))
        told = {"TEST_FOLDER": str(folder), "TEST_URL": url, "TEST_TABLE": table, "PYSPARK_PYTHON": sys.executable}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # pip's spark-submit finds its Python there
        self.log = folder / f"{file.stem}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*(command or [sys.executable]), str(file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | told | {"PATH": path},
                start_new_session=True,
            )
        self.seen: set[int] = set()

    def until(self, words: str, timeout: float = 60) -> str:
        """Wait until the driver has said `words`; all that it said so far."""
        end = time.monotonic() + timeout
        while words not in (text := self.log.read_text()):
            if self.process.poll() is not None and words not in self.log.read_text():
                raise AssertionError(f"ended with {self.process.returncode} before {words!r}:\n{self.log.read_text()}")
            assert time.monotonic() < end, f"never said {words!r}:\n{text}"
            time.sleep(0.01)
        return text

    def epoch(self) -> int:
        """The epoch of its one grant, as it said."""
        (epoch,) = re.findall(r"acquired, epoch (\d+)", self.log.read_text())
        return int(epoch)

    def end(self, timeout: float = 40) -> int:
        """Wait for its end; the exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.log.read_text()}") from None

    def tree(self) -> list[Process]:
        found = tree(self.process.pid)
        self.seen |= {each.pid for each in found}
        return found

    def find(self, words: str) -> Process:
        """The process of the tree whose command line has `words`."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for each in self.tree():
                if words in command_line(each.pid):
                    return each
            time.sleep(0.05)
        raise AssertionError(f"no process with {words!r}")

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def freeze(self) -> list[Process]:
        frozen: list[Process] = []
        while fresh := [each for each in self.tree() if each.pid not in {known.pid for known in frozen}]:
            for each in fresh:
                with contextlib.suppress(ProcessLookupError):  # the JVM starts short-lived helpers
                    os.kill(each.pid, signal.SIGSTOP)
            frozen += fresh
        self._go_on_while_sqlite_is_locked([each.pid for each in frozen])
        return frozen

    def stop(self) -> None:
        """Python alone."""
        self.send(signal.SIGSTOP)
        self._go_on_while_sqlite_is_locked([self.process.pid])

    def _go_on_while_sqlite_is_locked(self, stopped: list[int]) -> None:
        """Nobody takes a lease from a file that a stopped process has locked."""
        while self.url.startswith("sqlite") and _is_locked(self.url):
            for number in (signal.SIGCONT, signal.SIGSTOP):
                for pid in stopped:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                time.sleep(0.01)  # nothing to wait for: its write is to go on

    def last_write(self) -> float:
        """The last time that a task wrote, in seconds since 1970."""
        files = [file for file in self.folder.iterdir() if file.name.startswith("task-")]
        return max(float(file.read_text().split()[-1]) for file in files if file.read_text())

    def leftovers(self) -> list[Process]:
        """What is still alive of all processes that `tree` ever showed."""
        return [each for pid, each in processes().items() if pid in self.seen and each.alive]

    def close(self) -> None:
        kill([*self.tree(), *self.leftovers()])
        self.process.wait(10)


def command_line(pid: int) -> str:
    """Empty if there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def until(condition: Callable[[], Any], timeout: float = 20, instead: Callable[[], str] | None = None) -> Any:
    """What `condition` gives once it is true; `instead` tells what happened in its place."""
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, "it never happened" + (f"; instead:\n{instead()}" if instead else "")
        time.sleep(0.01)
    return found


def _is_locked(url: str) -> bool:
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.2)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        return False


def wait_until_noted(lease: Any) -> None:
    """Until the grant of `lease` is noted: that is done by another thread, and no grant waits for it."""
    until(lambda: not lease._journal._bounded.is_busy)


def row(url: str, table: str) -> tuple[str | None, int]:
    """Holder and epoch of the one lease in a SQLite store; nobody and its epoch once it was released."""
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as connection:
        found: tuple[str | None, int] = connection.execute(f"SELECT broker_name, epoch FROM {table}").fetchone()
    connection.close()
    return found


def want(name: str, directive: Directive, *, url: str, table: str) -> None:
    """Put what an operator wants into the lease's record."""
    with contextlib.closing(open_store(configure(name=name, url=url, table=table))) as store:
        while (mine := store.read(name).record) and store.swap(
            name, mine, with_directive(mine, directive.text())
        ) is None:
            pass  # it was renewed in between


def keepers_of(pid: int) -> list[int]:
    """The keepers of a driver; not what each has beside it."""
    return [each.pid for each in tree(pid) if "spark-lease keeper" in command_line(each.pid)]


def keeper_of(pid: int) -> int:
    (found,) = keepers_of(pid)
    return found


def standby(url: str, table: str) -> float:
    """Wait for the lease as another site would; the moment at which it was granted."""
    words = ["--url", url, "--table", table, "--create-table", "true", "--poll-period", "0.02"]
    done = subprocess.run(
        [COMMAND, "run", "--lease", "n", *words, "--", "true"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["epoch"]) / 1000
