"""What a renewal and an uncontended acquire cost on PostgreSQL, as ratios to one raw psycopg2 UPDATE.

"its statement" is the floor: the UPDATE of a renewal, which names all that it replaces and returns what it wrote,
prepared and run by psycopg2 alone. Like the renewals it has a connection of its own, whose server process is as cold.

    python -m tests.benchmarks.renewal [ROUNDS]

All are interleaved in random order in one run, on warm connections, and the medians are compared.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg2

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.connections import SocketWatchdog, make_engine
from spark_lease.election.contender import Contender
from spark_lease.election.locker import RecordRules
from spark_lease.election.record import new_holder
from spark_lease.stores.sql.schema import lease_table
from spark_lease.stores.sql.statements import prepared, statements
from spark_lease.stores.sql.store import SqlStore
from tests.services.postgres import running_postgres

LIMITS = {"renewal": 1.2, "uncontended acquire": 2.0}


def main(rounds: int) -> int:
    with running_postgres() as url:
        timed = measure(url, rounds)
    base = statistics.median(timed["raw UPDATE"])
    print(f"{'PostgreSQL, ' + str(rounds) + ' rounds':<28}{'median':>10}{'p95':>10}{'ratio':>8}{'limit':>8}")
    within = True
    for what, values in timed.items():
        ratio, limit = statistics.median(values) / base, LIMITS.get(what)
        p95 = sorted(values)[int(len(values) * 0.95)]
        shown = f"{limit:.1f}" if limit else "–"
        print(f"{what:<28}{statistics.median(values) * 1e3:>7.3f} ms{p95 * 1e3:>7.3f} ms{ratio:>8.2f}{shown:>8}")
        within &= limit is None or ratio <= limit
    return 0 if within else 1


def measure(url: str, rounds: int) -> dict[str, list[float]]:
    clock = BootClock()
    config = configure(name="n", url=url, create_table="true")
    stores = {name: SqlStore(config) for name in ("renewed", "taken", "floor")}
    raw = psycopg2.connect(url)
    raw.autocommit = True
    cursor = raw.cursor()

    def contender(name: str) -> Contender:
        holder, own = new_holder("bench"), replace(config, name=name)
        return Contender(RecordRules(stores[name], own, clock, holder=holder), own, holder=holder, clock=clock)

    renewed = contender("renewed")
    renewed.acquire()
    first = contender("taken")
    first.acquire()
    first.release()
    same = psycopg2.connect(url)
    same.autocommit = True
    shape = raw_renewal(config, same, contender("floor"))

    def update() -> None:
        cursor.execute("UPDATE raw SET time = %s WHERE id = %s", (time.time_ns() // 1_000_000, 2))

    timed: dict[str, list[float]] = {
        "raw UPDATE": [],
        "its statement": [],
        "renewal": [],
        "uncontended acquire": [],
    }
    cursor.execute("CREATE TABLE raw AS SELECT * FROM spark_lease")
    cursor.execute("ALTER TABLE raw ADD PRIMARY KEY (id)")
    for _ in range(rounds):
        fresh = contender("taken")
        steps: list[tuple[str, Callable[[], object]]] = [
            ("raw UPDATE", update),
            ("its statement", shape),
            ("renewal", renewed.renew),
            ("uncontended acquire", fresh.acquire),
        ]
        random.shuffle(steps)
        for what, step in steps:
            start = time.perf_counter()
            step()
            timed[what].append(time.perf_counter() - start)
        fresh.release()
    raw.close()
    same.close()
    for store in stores.values():
        store.close()
    return timed


def raw_renewal(config: Config, raw: Any, held: Contender) -> Callable[[], object]:
    """What runs the statement of a renewal, again and again, on the connection `raw`."""
    held.acquire()
    engine = make_engine(config, SocketWatchdog(config.attempt_timeout))
    sql = prepared(statements(engine, lease_table("spark_lease", {}), broker_row=False, notifies=True))["renew"]
    cursor = raw.cursor()
    cursor.execute(sql.prepare)
    cursor.execute("SELECT broker_name, epoch, time FROM spark_lease WHERE name = 'floor'")
    holder, epoch, at = cursor.fetchone()
    old = {"old_holder": holder, "old_epoch": epoch, "old_time": at, "old_directive": None}
    values = old | {"name": "floor", "holder": holder, "epoch": epoch, "duration": 30_000, "protection": "thread"}

    def renew() -> None:
        cursor.execute(sql.execute, values)
        values["old_time"] = cursor.fetchall()[0][0]

    return renew


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
