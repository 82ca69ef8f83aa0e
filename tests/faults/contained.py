"""Front doors, inits and drivers killed and frozen, with children that hide: nothing may write after the next grant.

    python -m tests.faults.contained [ROUNDS] [ONLY]     (make test-contained ROUNDS=100 ONLY=submit)

Each round starts `spark-lease run` or `submit`, as root or as a user without privileges, beside neighbours of its own;
strikes one process of it, or all; and waits until the next contender is granted the lease. What is frozen is thawed
then. Counted are writes after the grant, processes that live on, and neighbours that do not. Then the same without
containment, where something has to live on or write: a test that cannot fail shows nothing. Prints a table; ends with 1
if one of the contained rounds was violated, or no control was.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spark_lease.system.processes import Process, kill, processes, tree
from tests.faults.hostile import all_write, last_write
from tests.services.postgres import own_postgres
from tests.support.drivers import command_line, until
from tests.support.users import ROOT, python_for_all, unprivileged

FAULTS = [f"{what} {whom}" for what in ("kill", "freeze") for whom in ("keeper", "init", "driver", "jvm", "all")]
SUBMITTED = """
import subprocess, sys, time
from pyspark.sql import SparkSession
folder, word = sys.argv[1:3]
spark = SparkSession.builder.getOrCreate()
subprocess.Popen([sys.executable, {hostile!r}, folder, word])
def task(part):
    import time
    with open(f"{{folder}}/plain", "a") as file:
        while True:
            file.write(f"{{time.time()}}\\n")
            file.flush()
            time.sleep(0.005)
spark.sparkContext.parallelize([0, 1], 2).foreach(task)
"""
NEIGHBOUR = "import sys, time\nwhile True: open(sys.argv[1], 'a').write(str(time.time())); time.sleep(0.05)"
_AFTER = 0.3
"""Seconds for which writes are waited for that must not come."""


@dataclass
class Tally:
    rounds: int = 0
    late: int = 0
    left: int = 0
    neighbours: int = 0
    waits: list[float] = field(default_factory=list)

    @property
    def violated(self) -> bool:
        return bool(self.late or self.left or self.neighbours)


class Round:
    """One front door, what it guards, its neighbours, and the one who waits for its lease."""

    def __init__(self, folder: Path, url: str, *, door: str, privileged: bool, contain: str) -> None:
        self.folder, self.word = folder, f"hostile-{secrets.token_hex(6)}"
        self.names = ["plain", "stubborn", "session", "orphan", "clean", "storm"]
        if privileged and os.geteuid() == 0:
            self.names.append("another-user")
        folder.chmod(0o777)
        lease = ["--lease", self.word, "--url", url, "--table", "contained", "--create-table", "true"]
        self.standby = [sys.executable, "-m", "spark_lease", "run", *lease, "--poll-period", "0.05", "--", "true"]
        lease += ["--lease-duration", "2" if door == "run" else "5", "--contain", contain]
        hostile = str(ROOT / "tests" / "faults" / "hostile.py")
        if door == "run":
            python = sys.executable if privileged else python_for_all()
            words = ["-m", "spark_lease", "run", *lease, "--", python, hostile, str(folder), self.word]
        else:
            script = folder / "job.py"
            script.write_text(SUBMITTED.format(hostile=hostile))
            spark = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF"]
            words = ["-m", "spark_lease", "submit", *lease, "--", *spark, str(script), str(folder), self.word]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        command, environ = ([sys.executable, *words], environ) if privileged else unprivileged(words, folder)
        # The neighbour is a child of the same process as the front door, from before its exec.
        beside = 'python=$1; shift; "$python" -c "$NEIGHBOUR" "$BESIDE" & exec "$@"'
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", beside, "sh", sys.executable, *command],
                env={**environ, "NEIGHBOUR": NEIGHBOUR, "BESIDE": str(folder / "beside")},
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        self.sibling = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(folder / "sibling")])
        self.pid = self.process.pid
        self.frozen: list[Process] = []
        self.waiting: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        names = [*self.names, "beside"]
        try:
            until(lambda: all_write(self.folder, names) or self._has_ended(), timeout=60)
        except AssertionError as error:
            found = sorted(each.name for each in self.folder.iterdir())
            raise AssertionError(f"{found}\n{(self.folder / 'log').read_text()}") from error
        self.waiting = subprocess.Popen(self.standby, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.waiting.stderr
        assert "is master" in self.waiting.stderr.readline()

    def _has_ended(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return False

    def victims(self, whom: str) -> list[Process]:
        """In the order in which they are struck; empty if there is no such process."""
        found = [each for each in tree(self.pid) if "beside" not in command_line(each.pid)]
        java = [each for each in found if each.name == "java"]
        below = [each for each in found if each.parent in {each.pid for each in java} and "daemon" not in _line(each)]
        guarded = [each for each in found if "hostile.py" in _line(each) and "spark_lease" not in _line(each)]
        driver = below[:1] if java else guarded[:1]
        ours = [each for each in found if "spark_lease" in _line(each) and each.name.startswith("python")]
        init = [each for each in ours if each.parent in {each.pid for each in ours} and each.parent != self.pid]
        match whom:
            case "keeper":
                keeper = [each for each in found if "spark-lease keeper" in _line(each)]
                return keeper or [each for each in found if each.pid == self.pid]
            case "init":
                return [each for each in init if each not in below][:1]
            case "driver":
                return driver
            case "jvm":
                return java[:1]
        return [each for each in found if each.pid == self.pid or each in [*ours, *java, *driver]]

    def strike(self, what: str, whom: str) -> None:
        if what == "kill":
            for each in self.victims(whom):
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            return
        while fresh := [each for each in self._to_freeze(whom) if each.pid not in {it.pid for it in self.frozen}]:
            for each in fresh:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGSTOP)
            self.frozen += fresh

    def _to_freeze(self, whom: str) -> list[Process]:
        everything = [each for each in tree(self.pid) if "beside" not in command_line(each.pid)]
        return everything if whom == "all" else self.victims(whom)

    def granted(self, timeout: float) -> float | None:
        """When the next contender was granted the lease, in seconds since 1970; None if it was not in time."""
        assert self.waiting
        try:
            out, err = self.waiting.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return None
        assert self.waiting.returncode == 0, err
        return int(json.loads(out.splitlines()[-1])["epoch"]) / 1000

    def thaw(self) -> None:
        for each in self.frozen:
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)

    def survivors(self) -> list[Process]:
        """What this round started and is still there, front door and neighbours apart."""
        return [
            each for each in processes().values() if each.alive and self.word in _line(each) and self._is_work(each)
        ]

    def _is_work(self, process: Process) -> bool:
        return not any(word in _line(process) for word in ("spark_lease run", "spark_lease submit", "beside"))

    def neighbours(self) -> int:
        """How many of the two live."""
        return sum(
            any(each.alive and str(self.folder / name) in _line(each) for each in processes().values())
            for name in ("beside", "sibling")
        )

    def close(self) -> None:
        kill([each for each in processes().values() if self.word in _line(each) or str(self.folder) in _line(each)])
        kill(tree(self.pid))
        for each in (self.process, self.sibling, self.waiting):
            if each:
                each.kill()
                each.wait(20)
                for pipe in (each.stdout, each.stderr):
                    if pipe:
                        pipe.close()


def _line(process: Process) -> str:
    return command_line(process.pid)


def play(url: str, *, door: str, privileged: bool, contain: str, fault: str) -> Tally:
    what, whom = fault.split()
    with tempfile.TemporaryDirectory(prefix="sl-contained-") as name:
        one = Round(Path(name), url, door=door, privileged=privileged, contain=contain)
        try:
            one.begin()
            time.sleep(random.uniform(0.0, 0.6))  # at any moment
            struck = time.time()
            one.strike(what, whom)
            granted = one.granted(15 if what == "kill" or whom != "init" else 4)
            one.thaw()
            if granted is None:  # nothing was lost: a frozen init holds nothing up
                one.process.terminate()
                granted = one.granted(30)
            assert granted, f"{door}, {fault}: the lease was never granted\n{(Path(name) / 'log').read_text()}"
            time.sleep(_AFTER)
            late, left = last_write(Path(name)) > granted, one.survivors()
            return Tally(1, int(late), len(left), 2 - one.neighbours(), [granted - struck])
        finally:
            one.close()


def rounds_of(number: int, only: str) -> list[tuple[str, bool, str, str]]:
    """(door, privileged, contain, fault) of each round; two rounds in three are of `run`, which is quicker."""
    users = (True, False) if os.geteuid() == 0 else (False,)
    kinds = [
        (door, user, "required", fault)
        for door in ("run", "submit")
        for user in users
        for fault in FAULTS
        if (door == "submit" or "jvm" not in fault) and only in f"{door} {fault}"
    ]
    found = [kinds[turn % len(kinds)] for turn in range(number)]
    controls = [
        (door, users[0], "off", fault)
        for door in ("run", "submit")
        for fault in ("kill all", "kill keeper", "freeze all")
        if only in f"{door} {fault}"
    ]
    return found + controls * max(1, number // 50)


def main(number: int, only: str) -> int:
    tallies: dict[tuple[str, bool, str, str], Tally] = defaultdict(Tally)
    todo = rounds_of(number, only)
    with own_postgres() as server:  # by TCP, for every user
        for turn, kind in enumerate(todo):
            door, privileged, contain, fault = kind
            one = play(server.url, door=door, privileged=privileged, contain=contain, fault=fault)
            sum_up(tallies[kind], one)
            told = f"{turn + 1} of {len(todo)}: {door}, {fault}, {contain}: {one.late} late, {one.left} left"
            print(told, file=sys.stderr, flush=True)
    return report(tallies)


def sum_up(tally: Tally, one: Tally) -> None:
    tally.rounds += one.rounds
    tally.late += one.late
    tally.left += one.left
    tally.neighbours += one.neighbours
    tally.waits += one.waits


def report(tallies: dict[tuple[str, bool, str, str], Tally]) -> int:
    print(f"{'CONTAIN':<10}{'DOOR':<8}{'USER':<8}{'FAULT':<15}ROUNDS  LATE  LEFT  NEIGHBOURS LOST  MEDIAN WAIT")
    for (door, privileged, contain, fault), each in sorted(tallies.items(), key=lambda item: (item[0][2], item[0])):
        user, wait = "root" if privileged else "nobody", statistics.median(each.waits)
        print(
            f"{contain:<10}{door:<8}{user:<8}{fault:<15}{each.rounds:>6}{each.late:>6}{each.left:>6}"
            f"{each.neighbours:>17}{wait:>11.2f} s"
        )
    contained = [each for kind, each in tallies.items() if kind[2] == "required"]
    controls = [each for kind, each in tallies.items() if kind[2] == "off"]
    print(
        f"{sum(each.rounds for each in contained)} contained, {sum(each.violated for each in contained)} kinds violated"
    )
    return int(any(each.violated for each in contained) or not any(each.violated for each in controls))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, sys.argv[2] if len(sys.argv) > 2 else ""))
