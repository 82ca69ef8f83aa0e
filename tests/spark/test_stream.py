"""Two redundant streams on one checkpoint: nothing is lost and nothing doubled, in Delta or in PostgreSQL."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from deltalake import DeltaTable

from jobs.flights_daily import unpack
from jobs.flights_stream import DAILY
from jobs.jars import spark_options
from spark_lease.system.processes import kill, tree
from tests.support.drivers import until

ROOT = Path(__file__).parents[2]
DAYS = 8
COLUMNS = ("year", "month", "day", "carrier", "dep_delay")

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(400)]


def arrive(folder: Path) -> Counter[tuple[str, str]]:
    """A file for each day; the flights of each day and carrier."""
    (folder / "arriving").mkdir()
    expected: Counter[tuple[str, str]] = Counter()
    files: dict[str, list[list[str]]] = {}
    with (unpack(folder / "input") / "flights.csv").open() as lines:
        for row in csv.DictReader(lines):
            day = f"{int(row['year'])}-{int(row['month']):02}-{int(row['day']):02}"
            if day > f"2013-01-{DAYS:02}":
                break  # they are in the order of their days
            files.setdefault(day, []).append([row[each] for each in COLUMNS])
            expected[day, row["carrier"]] += 1
    for day, rows in files.items():
        with (folder / "arriving" / f"{day}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    return expected


class Submission:
    def __init__(self, folder: Path, store: str, table: str, name: str, *settings: str) -> None:
        self.log = folder / f"{name}.log"
        job = ["jobs/flights_stream.py", "--arriving", f"{folder}/arriving", "--table", f"{folder}/table"]
        job += ["--checkpoint", f"{folder}/checkpoint", "--postgres", store]
        lease = ["--lease", "flights", "--table", table, "--holder", name]
        lease += ["--lease-duration", "6", "--poll-period", "0.1", *settings]
        command = [str(Path(sys.executable).with_name("spark-lease")), "submit", *lease, "--"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--master", "local[2]", *spark_options(), *job],
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"SPARK_LEASE_URL": store, "SPARK_LEASE_CREATE_TABLE": "true"},
                start_new_session=True,
            )

    def batches(self) -> int:
        return self.log.read_text().count(" written\n")

    def said(self, words: str) -> bool:
        assert self.process.poll() is None or words in self.log.read_text(), self.log.read_text()
        return words in self.log.read_text()


@pytest.fixture
def store(pg_url: str, table: str) -> Iterator[str]:
    engine = sa.create_engine(pg_url.replace("postgresql://", "postgresql+psycopg2://"))
    DAILY.create(engine, checkfirst=True)
    yield engine.url.render_as_string(hide_password=False)
    DAILY.drop(engine)
    with engine.begin() as connection:
        for each in (table, f"{table}_notes"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {each}")
    engine.dispose()


@pytest.mark.fault
def test_it_goes_on_behind_an_entry_of_a_master_that_thaws(tmp_path: Path, store: str, table: str) -> None:
    """The last entry of a master that was frozen, in the checkpoint of the next one while that works."""
    expected = arrive(tmp_path)
    master = Submission(tmp_path, store, table, "lyon")
    try:
        entries = tmp_path / "checkpoint/offsets"
        until((entries / "2").exists, 120)
        late = (entries / "2").read_text().replace('"logOffset":2', '"logOffset":4')
        (entries / ".late").write_text(late)
        (entries / ".late").rename(entries / "4")
        assert master.process.wait(180) == 0, master.log.read_text()
    finally:
        kill(tree(master.process.pid))
    assert "going on behind it" in master.log.read_text()
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert Counter({(str(row["day"]), row["carrier"]): row["flights"] for row in rows}) == expected


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["killed", "frozen"])
def test_a_standby_goes_on_where_the_stream_was(tmp_path: Path, store: str, table: str, kind: str) -> None:
    expected = arrive(tmp_path)
    settings = ["--keeper", "thread"] if kind == "frozen" else []
    master = Submission(tmp_path, store, table, "paris", *settings)
    standby = None
    try:
        until(lambda: master.said("acquired"), 60)
        standby = Submission(tmp_path, store, table, "lyon", *settings)
        until(lambda: standby.said("standby, paris"), 60)
        until(lambda: master.said(" written") and master.batches() >= 2, 120)
        victims = tree(master.process.pid)
        for each in victims:
            with contextlib.suppress(ProcessLookupError):  # the JVM starts short-lived helpers
                os.kill(each.pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
        # Nothing fences the checkpoint: a master thawed amid the standby's batches may end its stream, and no more.
        assert standby.process.wait(180) == 0, standby.log.read_text()
        if kind == "frozen":
            for each in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGCONT)
        assert master.process.wait(30) != 0
    finally:
        for submission in filter(None, (master, standby)):
            kill(tree(submission.process.pid))
    assert master.batches() < DAYS
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    assert Counter({(str(row["day"]), row["carrier"]): row["flights"] for row in rows}) == expected
    assert len(rows) == len(expected)
    with sa.create_engine(store).connect() as connection:
        found = connection.execute(sa.select(DAILY.c.day, DAILY.c.carrier, DAILY.c.flights)).all()
    assert {(str(day), carrier): flights for day, carrier, flights in found} == expected
