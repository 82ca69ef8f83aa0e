"""Very many leases on one PostgreSQL with few connections: is one lost, how late are renewals, what does it cost?

    python -m tests.benchmarks.crowd --leases 1000 --minutes 5

Two contenders for each lease, each with a store of its own, in several processes, at the defaults but for what the
README says for many leases: `notify = false`, so that nobody keeps a connection, and `poll_period = 30`. The one
that is granted the lease renews and watches it with the library's own loops, the other waits in `acquire`. The
server counts connections and transactions; the time in which all begin is not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import statistics
import sys
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import psycopg2

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.keepalive import Keepalive
from spark_lease.election.lifecycle import begin_hold
from spark_lease.errors import StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.store import SqlStore
from tests.benchmarks.table import report
from tests.services.postgres import own_postgres

CONNECTIONS = 100
PROCESSES = 4
LOOK = 0.1
_WATCH = 1.0
"""Seconds between two looks of a watching thread: the renewals are measured here, not how early a loss is seen."""
_APART = 0.12
"""Seconds between the beginnings of two contenders of one process: each compiles its statements."""
_STACK = 256 * 1024


@dataclass
class Crowd:
    """What the contenders of one process went through since it was last forgotten."""

    config: list[Config]
    left: list[float] = field(default_factory=list)
    """What `remaining()` was before each renewal."""
    failed: int = 0
    lost: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Two contenders for each lease, one after the other: the first of each lease, then the second."""
        clock, never = BootClock(), threading.Event()
        for config in [*self.config, *self.config]:
            clock.wait(never, _APART)
            lease = self.measured(open_contender(config, BootClock()))
            threading.Thread(target=self.contend, args=(lease, config), daemon=True).start()

    def contend(self, lease: LocalHold, config: Config) -> None:
        keepalive = Keepalive(
            lease,
            config,
            clock=BootClock(),
            on_lost=lambda lost: self.lost.append(str(lost)),
            watch_period=_WATCH,
        )
        begin_hold(lease, keepalive)
        self.granted.append(lease.name)

    def measured(self, lease: LocalHold) -> LocalHold:
        renew = lease.renew

        def measure() -> None:
            self.left.append(lease.remaining())
            try:
                renew()
            except StoreError:
                self.failed += 1
                raise

        lease.renew = measure  # type: ignore[method-assign]
        return lease

    def forget(self) -> None:
        self.left, self.failed, self.lost, self.granted = [], 0, [], []


def one_process(main: Connection, url: str, names: list[str], poll: float) -> None:
    threading.stack_size(_STACK)
    sys.setswitchinterval(0.1)  # many threads that wait for the interpreter wake up so often, for nothing
    logging.getLogger("spark_lease").setLevel(logging.ERROR)  # what failed is counted
    crowd = Crowd([configure(name=name, url=url, notify=False, poll_period=poll) for name in names])
    crowd.begin()
    clock, never = BootClock(), threading.Event()
    while len(crowd.granted) < len(names):
        clock.wait(never, LOOK)
    clock.wait(never, 2 * crowd.config[0].retry_period)
    main.send("all are held")
    main.recv()
    crowd.forget()
    main.recv()
    main.send((crowd.left, crowd.failed, crowd.lost, crowd.granted))
    main.recv()


class Server:
    """What the server says of itself, seen from another of its databases: nothing of that is counted."""

    def __init__(self, url: str) -> None:
        head, _, self._database = url.rpartition("/")
        self._connection = psycopg2.connect(f"{head}/template1")
        self._connection.autocommit = True
        self._cursor = self._connection.cursor()

    def connections(self) -> int:
        self._cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", (self._database,))
        return int(self._cursor.fetchone()[0])

    def counted(self) -> tuple[int, int]:
        """Sessions and statements since the server was started. The transaction that begins a session is none."""
        columns = "sessions, xact_commit + xact_rollback - sessions"
        self._cursor.execute(f"SELECT {columns} FROM pg_stat_database WHERE datname = %s", (self._database,))
        sessions, statements = self._cursor.fetchone()
        return int(sessions), int(statements)


def make_rows(url: str, leases: int) -> None:
    """Those of leases that were held before: only the first holder in the life of a lease looks at the whole table."""
    rows = f"SELECT 2 + n, 'lease ' || n FROM generate_series(0, {leases - 1}) n"
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO spark_lease (id, name) {rows}")
        connection.commit()


def main(leases: int, minutes: float, poll: float) -> int:
    with own_postgres(max_connections=CONNECTIONS) as server:
        SqlStore(configure(name="n", url=server.url)).init()
        make_rows(server.url, leases)
        return watch(Server(server.url), server.url, leases=leases, seconds=minutes * 60, poll=poll)


def watch(server: Server, url: str, *, leases: int, seconds: float, poll: float) -> int:
    names = [f"lease {number}" for number in range(leases)]
    pipes, processes = [], []
    context = multiprocessing.get_context("spawn")
    for number in range(PROCESSES):
        ours, theirs = context.Pipe()
        pipes.append(ours)
        words = (theirs, url, names[number::PROCESSES], poll)
        processes.append(context.Process(target=one_process, args=words, daemon=True))
        processes[-1].start()
    for pipe in pipes:
        pipe.recv()
    clock, never, most = BootClock(), threading.Event(), 0
    before, start = server.counted(), clock.now()
    for pipe in pipes:
        pipe.send("begin")
    while clock.now() < start + seconds:
        most = max(most, server.connections())
        clock.wait(never, LOOK)
    periods = leases * (clock.now() - start) / configure(name="n").retry_period
    sessions, statements = (after - first for after, first in zip(server.counted(), before, strict=True))
    for pipe in pipes:
        pipe.send("tell")
    left, failed, lost, granted = zip(*(pipe.recv() for pipe in pipes), strict=True)
    for process in processes:
        process.kill()
        process.join()
    margins = sorted(value for each in left for value in each)
    title = f"{leases} LEASES, 2 CONTENDERS EACH, {seconds:.0f} s"
    rows = [
        ("leases lost", sum(map(len, lost)), 0.0, ""),
        ("leases granted to their standby", sum(map(len, granted)), 0.0, ""),
        ("most connections at once", most, CONNECTIONS, ""),
        ("statements per lease and retry period", statements / periods, float("inf"), ""),
        ("connections per lease and retry period", sessions / periods, float("inf"), ""),
        ("renewals that failed, and were tried again", sum(failed), float("inf"), ""),
    ]
    over = report(title, rows)
    print(f"{len(margins)} renewals; left of {configure(name='n').renew_deadline:g} s when one began:", end=" ")
    tail = ", ".join(f"{share:.1%} below {margins[int(len(margins) * share)]:.2f} s" for share in (0.01, 0.001))
    print(f"median {statistics.median(margins):.2f} s, {tail}, least {margins[0]:.2f} s")
    return over


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--leases", type=int, default=1000)
    flags.add_argument("--minutes", type=float, default=5)
    flags.add_argument("--poll", type=float, default=30, help="poll_period of the standbys, in seconds")
    given = flags.parse_args()
    sys.exit(main(given.leases, given.minutes, given.poll))
