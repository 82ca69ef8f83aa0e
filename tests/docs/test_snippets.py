"""Every block of Python, shell and SQL in the documentation is run, or says why not, and prints what the page shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from jobs.jars import FOLDER, spark_conf, start_options
from tests.docs.snippets import DOCS, PAGES, Reader, blocks, is_run
from tests.services.postgres import PSQL

_DELTA = "configure_spark_with_delta_pip(builder)"
_CONFIGURED = "builder" + "".join(f".config({key!r}, {value!r})" for key, value in spark_conf().items())
_JOB = "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n"
_THE_LEASE = "spark-lease init\nspark-lease run --lease nightly-flights -- true"
BEFORE = {"on-call": _THE_LEASE, "stores": _THE_LEASE, "delta": "spark-lease run --lease flights -- true"}
"""What has happened before a reader comes to this page."""


def marked(page: Path) -> object:
    needs_spark = any("SparkSession" in each.code or "submit" in each.code for each in blocks(page) if is_run(each))
    marks = [pytest.mark.postgres, pytest.mark.timeout(400), *([pytest.mark.spark] if needs_spark else [])]
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if any(map(is_run, blocks(page)))])
def test_a_reader_who_follows_the_page_sees_what_it_shows(page: Path, tmp_path: Path, database: str) -> None:
    hosts = ("lease@db/ops", "etl@db/warehouse", "lease@db/broker")
    replaced = {f"postgresql://{each}": database for each in hosts} | {
        "postgresql+psycopg2://etl@db/warehouse": database.replace("postgresql://", "postgresql+psycopg2://"),
        _DELTA: _CONFIGURED,
        "java.*steps.py": f"java.*{tmp_path}/steps.py",  # and none of another's
        "time.sleep(2)": "time.sleep(0.6)",  # a reader needs the time, to open a second terminal
    }
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(Path(PSQL).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        **({} if "export SPARK_LEASE_URL" in page.read_text() else {"SPARK_LEASE_URL": database}),
        **({} if "spark-lease init" in page.read_text() else {"SPARK_LEASE_CREATE_TABLE": "true"}),
        "SPARK_SUBMIT_OPTS": start_options(FOLDER),
        "PYSPARK_PYTHON": sys.executable,
    }
    (tmp_path / "job.py").write_text(_JOB)
    (tmp_path / "before.md").write_text(f"```sh\n{BEFORE.get(page.stem, 'true')}\n```\n")
    reader = Reader(tmp_path, environment, replaced, database)
    reader.follow(tmp_path / "before.md")
    reader.follow(page)


@pytest.fixture
def database(pg_url: str) -> Iterator[str]:
    """A database of its own: pages use the same names."""
    name = f"docs_{uuid4().hex}"
    engine = sa.create_engine(pg_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
        try:
            yield sa.make_url(pg_url).set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    engine.dispose()


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.about.startswith("not-run"):
                assert len(block.about.removeprefix("not-run=")) > 5, f"{page.relative_to(DOCS)}:{block.line}"
