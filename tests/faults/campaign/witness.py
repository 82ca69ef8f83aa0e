"""Guarded work that bears witness: every few milliseconds a line in a file of its own, and rows in a fenced table.

    spark-lease run … -- python witness.py run FOLDER SITE [URL]   rows past the library: PostgreSQL fences them
    python witness.py hold FOLDER SITE [URL]                       hold_lease, a child that writes too, fenced_sql
    python witness.py once FOLDER SITE [URL]                       the next run key; its row completes it
    python witness.py plain FOLDER SITE URL                        the same with no fence
    python witness.py advisory FOLDER SITE URL                     a lock of PostgreSQL's instead of a lease

A line is an event of `tests.simulation.history`: GRANTED and BEGAN first, then ATTEMPTED, and ACCEPTED after each
commit of a row, with its number. What is ended writes nothing more: the last line is the end of its work.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PERIOD = 0.005
RUN = 0.5
"""Seconds for a run key."""
INSERT = "INSERT INTO witness (epoch, run) VALUES ({}, '{}') RETURNING n"
Insert = Callable[[], int]
"""Commits one row, and returns its number."""


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Diary:
    """The file of one witness."""

    def __init__(self, file: str, epoch: int) -> None:
        self._fields = {"who": os.path.basename(file), "epoch": epoch}
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def add(self, did: str, **fields: object) -> None:
        os.write(self._fd, json.dumps({"at": now(), "did": did} | self._fields | fields).encode() + b"\n")

    def write_on(self, goes_on: Callable[[], object] = bool, *, until: float = math.inf) -> None:
        """Until that instant, or until `goes_on` raises, which is raised here."""
        while now() < until:
            goes_on()
            self.add("write attempted")
            time.sleep(PERIOD)

    def insert_on(self, insert: Insert) -> None:
        """Likewise, on a thread of its own."""
        threading.Thread(target=self._insert_on, args=(insert,), daemon=True).start()

    def _insert_on(self, insert: Insert) -> None:
        while True:
            since = now()
            with suppress(Exception):  # whatever the fault makes of it: judged is what was said to be committed
                self.add("write accepted", since=since, detail=str(insert()))
            time.sleep(10 * PERIOD)


def begun(folder: str, site: str, epoch: int, run: str = "") -> tuple[str, Diary]:
    file = f"{folder}/{site}-{os.urandom(4).hex()}"
    diary = Diary(file, epoch)
    diary.add("granted")
    diary.add("work began", detail=run)
    return file, diary


def run(folder: str, site: str, url: str = "") -> None:
    epoch = int(os.environ["SPARK_LEASE_EPOCH"])
    _, diary = begun(folder, site, epoch)
    if url:
        diary.insert_on(_past_the_library(url, INSERT.format(epoch, "")))
    diary.write_on()


def _past_the_library(url: str, statement: str) -> Insert:
    import psycopg2  # after the first line, as it takes its time

    sessions: list[psycopg2.extensions.connection] = []

    def insert() -> int:
        if not sessions:
            sessions.append(psycopg2.connect(url, connect_timeout=2))
            sessions[0].autocommit = True
        try:
            with sessions[0].cursor() as cursor:
                cursor.execute(statement)
                return int(cursor.fetchone()[0])
        except psycopg2.Error:
            sessions.pop().close()
            raise

    return insert


def hold(folder: str, site: str, url: str = "", *, is_fenced: bool = True) -> None:
    from sqlalchemy import create_engine, text

    from spark_lease import hold_lease

    with hold_lease() as lease:
        file, diary = begun(folder, site, lease.epoch)
        child = subprocess.Popen([sys.executable, __file__, "child", file, str(lease.epoch)])
        if url:
            engine, statement = create_engine(url), text(INSERT.format(lease.epoch, ""))

            def insert() -> int:
                with lease.fenced_sql(engine) if is_fenced else engine.begin() as connection:
                    return int(connection.execute(statement).scalar_one())

            diary.insert_on(insert)
        try:
            diary.write_on(lease.check)
        finally:
            child.kill()
            child.wait()


def plain(folder: str, site: str, url: str) -> None:
    hold(folder, site, url, is_fenced=False)


def advisory(folder: str, site: str, url: str) -> None:
    import psycopg2

    url = url.replace("+psycopg2", "")
    session = psycopg2.connect(url)
    session.autocommit = True
    session.cursor().execute("SELECT pg_advisory_lock(7)")
    epoch = time.time_ns() // 1_000_000
    _, diary = begun(folder, site, epoch)
    diary.insert_on(_past_the_library(url, INSERT.format(epoch, "")))
    diary.write_on()


def once(folder: str, site: str, url: str = "") -> None:
    from sqlalchemy import create_engine, text

    from spark_lease import AlreadyDone, hold_lease

    done = [int(each.removeprefix("done-")) for each in os.listdir(folder) if each.startswith("done-")]
    run = str(max(done, default=0) + 1)
    with suppress(AlreadyDone), hold_lease(run_key=run) as lease:
        _, diary = begun(folder, site, lease.epoch, run)
        diary.write_on(lease.check, until=now() + RUN)
        if url:
            since = now()
            with lease.fenced_sql(create_engine(url), completes=run) as connection:
                n = connection.execute(text(INSERT.format(lease.epoch, run))).scalar_one()
            diary.add("write accepted", since=since, detail=str(n))
    with open(f"{folder}/done-{run}", "a") as file:
        file.write(f"{now()}\n")


def child(file: str, epoch: str) -> None:
    Diary(file, int(epoch)).write_on()


if __name__ == "__main__":
    doors = {"run": run, "hold": hold, "once": once, "plain": plain, "advisory": advisory, "child": child}
    doors[sys.argv[1]](*sys.argv[2:])
