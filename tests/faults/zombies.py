"""Masters that are frozen in the middle of their writes until the next one has claimed and written, then thawed.

    python -m tests.faults.zombies [ROUNDS] [ONLY]     (make test-zombies ROUNDS=100 ONLY=delta)

For each fence, in real processes: no row of the older epoch lands after the claim, its writer ends as fenced, and what
the new master wrote is all there. Then the same without the fence, where such rows must land: a test that cannot fail
shows nothing. Prints a table; ends with 1 if a fence let one through, or if its control let none.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from sqlalchemy import Engine, text

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.fencing.delta.tables import DeltaFence
from spark_lease.fencing.sql import triggers as postgres
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.transaction import fenced_sql
from spark_lease.holds import open_contender
from spark_lease.system.processes import kill, tree
from tests.faults.delta_zombie import NAME, NAMES, SETTINGS
from tests.services.mariadb import running_mariadb
from tests.services.postgres import running_postgres
from tests.support.guarded import Writer, clear, create_guarded, engine_for, rows
from tests.support.holders import Holder
from tests.support.zombie import Zombie

ROOT = Path(__file__).parents[2]
ROWS = 3
"""What a new master writes."""
_CONTROL_AFTER = 5
_A_WRITE = 0.02
_A_SPARK_WRITE, _A_DELTA_RS_WRITE = 1.5, 0.1


@dataclass
class Round:
    """`landed`: rows, or commits, of the older epoch after the claim. `complete`: the new master's are all there."""

    landed: int
    ended: str
    complete: bool
    under_way: bool = False


@dataclass
class Tally:
    rounds: int = 0
    violated: int = 0
    refused: int = 0
    under_way: int = 0
    incomplete: int = 0

    def add(self, one: Round) -> None:
        self.rounds += 1
        self.violated += one.landed > 0
        self.refused += "fenced" in one.ended.lower() or one.ended == "refused"
        self.under_way += one.under_way
        self.incomplete += not one.complete


Play = Callable[[int, bool], Round]


def wait(longest: float) -> None:
    time.sleep(random.uniform(0, longest))  # any moment will do


# In SQL


@contextmanager
def guarded(url: str) -> Iterator[Engine]:
    engine = engine_for(url)
    clear(engine)
    create_guarded(engine)
    try:
        yield engine
    finally:
        engine.dispose()
        clear(engine)


def take_over(engine: Engine, epoch: int, fenced: bool) -> int:
    """Claim, and write as the master after `epoch`; how many rows of that were there by the claim."""
    following = Holder(NAME, epoch + 1)
    if fenced:
        claim(following, engine)
    landed = rows(engine, epoch)
    # Without a fence no fenced transaction either: its claim ends the sessions of older epochs.
    with fenced_sql(following, engine) if fenced else engine.begin() as connection:
        for _ in range(ROWS):
            connection.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": following.epoch})
    return landed


@contextmanager
def fenced_transactions(url: str) -> Iterator[Play]:
    with guarded(url) as engine:
        how = {fenced: "fenced" if fenced else "plain" for fenced in (True, False)}
        writers = {each: Writer(engine, NAME, isolation="READ COMMITTED", how=how[each]) for each in how}

        def play(turn: int, fenced: bool) -> Round:
            epoch, master = 2 * turn + 1, writers[fenced]
            master.begin(epoch)
            wait(_A_WRITE)
            master.freeze()
            landed = take_over(engine, epoch, fenced)
            master.thaw()
            ended = master.says()
            return Round(rows(engine, epoch) - landed, ended, rows(engine, epoch + 1) == ROWS)

        try:
            yield play
        finally:
            for each in writers.values():
                each.close()


@contextmanager
def fenced_table(url: str) -> Iterator[Play]:
    """Written to by a program that knows nothing of leases."""
    with guarded(url) as engine:
        zombie = Zombie(url)

        def play(turn: int, fenced: bool) -> Round:
            epoch = 2 * turn + 1
            (postgres.add(engine, "guarded", NAME) if fenced else postgres.drop(engine, "guarded"))
            FenceTable(engine).raise_to(NAME, epoch)
            zombie.begin(epoch)
            wait(_A_WRITE)
            zombie.process.send_signal(signal.SIGSTOP)
            landed = take_over(engine, epoch, fenced)
            zombie.process.send_signal(signal.SIGCONT)
            ended = zombie.says()
            return Round(rows(engine, epoch) - landed, ended, rows(engine, epoch + 1) == ROWS)

        try:
            yield play
        finally:
            zombie.process.kill()
            zombie.process.communicate(timeout=10)


class Master:
    """A process that writes when it is told to, with all that it started."""

    def __init__(self, log: Path, module: str, *words: str) -> None:
        self._log, self._froze = log.open("w"), 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.faults.{module}", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._frozen: list[int] = []

    def tell(self, word: str) -> None:
        print(word, file=self._process.stdin, flush=True)

    def hear(self, word: str = "") -> str:
        assert self._process.stdout
        while line := self._process.stdout.readline().strip():
            if line.startswith(word):
                return line
        raise AssertionError(f"it never said {word!r}: {Path(self._log.name).read_text()[-3000:]}")

    def hear_end(self) -> tuple[str, bool]:
        """What ended its writes, and whether the last of them had begun before it was frozen."""
        end, began = self.hear().split()
        return end, float(began) < self._froze

    def freeze(self) -> None:
        self._froze = time.monotonic()
        self._frozen = [each.pid for each in tree(self._process.pid)]
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def close(self) -> None:
        kill(tree(self._process.pid))
        self._process.communicate(timeout=20)
        self._log.close()

    def _send(self, number: int) -> None:
        for pid in self._frozen:
            with suppress(ProcessLookupError):  # the JVM starts short-lived helpers
                os.kill(pid, number)


def until_it_writes(landed: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not landed() and time.monotonic() < end:
        time.sleep(0.05)


@contextmanager
def frames(url: str, through: str) -> Iterator[Play]:
    with guarded(url) as engine, tempfile.TemporaryDirectory(prefix="sl-zombie-") as folder:
        master = Master(Path(folder, "zombie.log"), "frames_zombie", url, through)

        def play(turn: int, fenced: bool) -> Round:
            epoch = 2 * turn + 1
            master.tell(f"{epoch} {'fenced' if fenced else 'plain'}")
            master.hear("writing")
            wait(_A_SPARK_WRITE)
            master.freeze()
            landed = take_over(engine, epoch, fenced)
            master.thaw()
            if not fenced:
                until_it_writes(lambda: rows(engine, epoch) > landed)
                master.tell("stop")
            ended, was_under_way = master.hear_end()
            complete = rows(engine, epoch + 1) == ROWS
            return Round(rows(engine, epoch) - landed, ended, complete, was_under_way)

        try:
            master.hear("ready")
            yield play
        finally:
            master.close()


# In Delta


class DeltaZombie:
    """The process of `delta_zombie.py`, and the standby of its lease."""

    def __init__(self, folder: Path, how: str) -> None:
        self._store, self._table = folder / "lease.db", folder / "t"
        self._a_write = _A_SPARK_WRITE if how == "spark" else _A_DELTA_RS_WRITE
        self._config = configure(url=f"sqlite:///{self._store}", **SETTINGS)
        self._append(0)
        self._master = Master(folder / "zombie.log", "delta_zombie", self._config.url, str(self._table), how)

    def wait_until_ready(self) -> None:
        self._master.hear("ready")

    def play(self, turn: int, fenced: bool) -> Round:
        self._master.tell("fenced" if fenced else "plain")
        epoch = int(self._master.hear("writing").split()[1])
        wait(self._a_write)
        self._master.freeze()
        while self._is_locked():  # it was about to write into its history: not what is to be frozen here
            self._master.thaw()
            wait(_A_WRITE)
            self._master.freeze()
        with closing(self._standby()) as standby:
            standby.acquire()
            if fenced:
                DeltaFence(standby, self._config, BootClock()).claim_all()
            landed = self._rows_of(epoch)
            self._append(standby.epoch)
            self._master.thaw()
            if not fenced:
                until_it_writes(lambda: self._rows_of(epoch) > landed)
                self._master.tell("stop")
            ended, was_under_way = self._master.hear_end()
            standby.release()
            complete = self._rows_of(standby.epoch) == ROWS
            return Round(self._rows_of(epoch) - landed, ended, complete, was_under_way)

    def close(self) -> None:
        self._master.close()

    def _standby(self):  # type: ignore[no-untyped-def]
        """A contender that does not have to wait until the zombie's lease runs out, as if the store's clock was set."""
        with closing(sqlite3.connect(self._store, timeout=30)) as store, store:
            store.execute(f"UPDATE {self._config.table} SET time = 1")
        return open_contender(self._config, BootClock())

    def _is_locked(self) -> bool:
        with closing(sqlite3.connect(self._store, timeout=0)) as store:
            try:
                store.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def _append(self, epoch: int) -> None:
        columns = [Array([each] * ROWS, DataType.int64()) for each in (epoch, 0)]
        write_deltalake(self._table, Table.from_arrays(columns, names=NAMES), mode="append")

    def _rows_of(self, epoch: int) -> int:
        there = DeltaTable(self._table).to_pyarrow_table(filters=[("epoch", "=", epoch)])
        return int(there.num_rows)


@contextmanager
def delta_table(how: str) -> Iterator[Play]:
    with tempfile.TemporaryDirectory(prefix="sl-zombie-") as folder:
        zombie = DeltaZombie(Path(folder), how)
        try:
            zombie.wait_until_ready()
            yield zombie.play
        finally:
            zombie.close()


@contextmanager
def in_postgres(kind: Callable[[str], object]) -> Iterator[Play]:
    with running_postgres() as url, kind(url) as play:  # type: ignore[attr-defined]
        yield play


@contextmanager
def in_mariadb() -> Iterator[Play]:
    with running_mariadb() as server, fenced_transactions(server.url) as play:
        yield play


FENCES = {
    "fenced table, PostgreSQL": lambda: in_postgres(fenced_table),
    "fenced_sql, PostgreSQL": lambda: in_postgres(fenced_transactions),
    "fenced_sql, MariaDB": in_mariadb,
    "write_sql, executors": lambda: in_postgres(lambda url: frames(url, "executors")),
    "write_sql, driver": lambda: in_postgres(lambda url: frames(url, "driver")),
    "delta": lambda: delta_table("spark"),
    "delta_rs": lambda: delta_table("delta-rs"),
}


def run(what: str, rounds: int) -> tuple[Tally, Tally]:
    """After every few rounds with the fence one without."""
    with_fence, without = Tally(), Tally()
    with FENCES[what]() as play:
        while with_fence.rounds < rounds or not without.rounds:
            fenced = with_fence.rounds < (without.rounds + 1) * _CONTROL_AFTER and with_fence.rounds < rounds
            tally = with_fence if fenced else without
            refused, one = tally.refused, play(with_fence.rounds + without.rounds, fenced)
            tally.add(one)
            if fenced and tally.refused == refused:
                print(f"{what}: ended otherwise: {one}", file=sys.stderr, flush=True)
            if not fenced:
                print(f"{what}: {with_fence}, control: {without}", file=sys.stderr, flush=True)
    return with_fence, without


def main(rounds: int = 100, only: str = "") -> int:
    ok = True
    print(f"{'FENCE':<26}{'ROUNDS':>8}{'VIOLATED':>10}{'REFUSED':>9}{'INCOMPLETE':>12}{'CONTROL':>9}{'VIOLATED':>10}")
    for what in (each for each in FENCES if only in each):
        fence, control = run(what, rounds)
        ok &= not fence.violated and not fence.incomplete and fence.refused == fence.rounds and control.violated > 0
        shown = [fence.rounds, fence.violated, fence.refused, fence.incomplete, control.rounds, control.violated]
        print(f"{what:<26}" + "".join(f"{n:>{w}}" for n, w in zip(shown, (8, 10, 9, 12, 9, 10), strict=True)))
        if fence.under_way:
            print(f"  {fence.under_way} of them with a write under way at the claim")
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, *sys.argv[2:3]))
    except KeyboardInterrupt:
        sys.exit(130)
