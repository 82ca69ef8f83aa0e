"""What the SQL fences cost, as ratios to the same work without one, and how long a claim takes against a frozen master.

    python -m tests.benchmarks.fences [ROUNDS]

All are interleaved in random order in one run, on warm connections, and the medians are compared.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.fencing.sql import triggers as postgres
from spark_lease.fencing.sql.claim import claim
from spark_lease.fencing.sql.session import session_environment
from spark_lease.fencing.sql.transaction import fenced_sql
from tests.benchmarks.table import report
from tests.services.mariadb import running_mariadb
from tests.services.postgres import running_postgres
from tests.support.holders import Holder

MANY, EACH = 8, 12
ROWS, COLUMNS = 1000, 18  # as the flights have them, and an id
LEASE = Holder("nightly", 5)
ONE_ROW = text("INSERT INTO small (id) VALUES (:id)")
Step = Callable[[], object]


def plain(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(ONE_ROW, {"id": 1})


def fenced(engine: Engine) -> None:
    with fenced_sql(LEASE, engine) as connection:
        connection.execute(ONE_ROW, {"id": 1})


def ratio(one: Step, other: Step, rounds: int) -> float:
    """The median of `one` in medians of `other`."""
    timed: dict[Step, list[float]] = {one: [], other: []}
    for _ in range(rounds):
        for step in random.sample([one, other], 2):
            start = time.perf_counter()
            step()
            timed[step].append(time.perf_counter() - start)
    return statistics.median(timed[one]) / statistics.median(timed[other])


def on_many(step: Callable[[Engine], None], engine: Engine) -> Step:
    def work() -> None:
        for _ in range(EACH):
            step(engine)

    def run() -> None:
        threads = [threading.Thread(target=work) for _ in range(MANY)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    return run


def small_transactions(url: str, rounds: int, many: bool) -> list[float]:
    engine = create_engine(usable_url(configure(url=url)), pool_size=MANY + 1)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE small (id INT)")
    claim(LEASE, engine)
    for _ in range(50):
        plain(engine)
        fenced(engine)
    found = [ratio(lambda: fenced(engine), lambda: plain(engine), rounds)]
    if many:
        found.append(ratio(on_many(fenced, engine), on_many(plain, engine), rounds // 8))
    engine.dispose()
    return found


def multi_row_inserts(url: str, rounds: int) -> float:
    told = session_environment(LEASE.name, LEASE.epoch, {})
    engine = create_engine(usable_url(configure(url=url)), connect_args={"options": told["PGOPTIONS"]})
    with engine.begin() as connection:
        for table in ("guarded", "free"):
            connection.exec_driver_sql(
                f"CREATE TABLE {table} (id INT, {', '.join(f'c{n} TEXT' for n in range(COLUMNS))})"
            )
    postgres.add(engine, "guarded", LEASE.name)
    words = ", 'word'" * COLUMNS
    values = ", ".join(f"({number}{words})" for number in range(ROWS))

    def write(table: str) -> Step:
        def step() -> None:
            with engine.begin() as connection:
                connection.exec_driver_sql(f"INSERT INTO {table} VALUES {values}")

        return step

    for table in ("guarded", "free"):
        write(table)()
    found = ratio(write("guarded"), write("free"), rounds // 4)
    engine.dispose()
    return found


def claims_against_a_frozen_session(url: str, rounds: int) -> float:
    """Milliseconds; the session has written to the fenced table and neither commits nor ends."""
    engine = create_engine(usable_url(configure(url=url)))
    took: list[float] = []
    for epoch in range(LEASE.epoch + 1, LEASE.epoch + 1 + rounds):
        claim(Holder(LEASE.name, epoch), engine)
        told = session_environment(LEASE.name, epoch, {})
        words = {"options": told["PGOPTIONS"], "application_name": told["PGAPPNAME"]}
        frozen = create_engine(usable_url(configure(url=url)), connect_args=words, poolclass=NullPool).connect()
        frozen.exec_driver_sql("INSERT INTO guarded VALUES (1)")
        start = time.perf_counter()
        claim(Holder(LEASE.name, epoch + 1), engine)
        took.append((time.perf_counter() - start) * 1000)
        frozen.invalidate()
        frozen.close()
    engine.dispose()
    return statistics.median(took)


def main(rounds: int) -> int:
    with running_postgres() as url:
        one, many = small_transactions(url, rounds, many=True)
        inserts = multi_row_inserts(url, rounds)
        claims = claims_against_a_frozen_session(url, max(rounds // 20, 5))
    with running_mariadb() as mariadb:
        (other,) = small_transactions(mariadb.url, rounds, many=False)
    return report(
        f"SQL fences, {rounds} rounds",
        [
            ("PostgreSQL, fenced_sql, 1 connection", one, 1.30, "× the plain transaction"),
            (f"PostgreSQL, fenced_sql, {MANY} connections", many, 1.6, "× the plain transaction"),
            (f"fenced table, inserts of {ROWS:,} rows", inserts, 1.05, "× a table without a fence"),
            ("claim against a frozen session", claims, 150.0, "ms"),
            ("MariaDB, fenced_sql, 1 connection", other, 1.7, "× the plain transaction"),
        ],
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
