"""Every block of Python, shell and SQL in the documentation is run, or says why not, and prints what the page shows."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from jobs.jars import FOLDER, spark_conf, start_options
from tests.docs.snippets import DOCS, PAGES, Reader, blocks, is_run
from tests.services.postgres import PSQL

_DELTA = "configure_spark_with_delta_pip(builder)"
_CONFIGURED = "builder" + "".join(f".config({key!r}, {value!r})" for key, value in spark_conf().items())
_THE_LEASE = "spark-lease run --lease nightly-flights -- true\n"
BEFORE = {"on-call": _THE_LEASE, "stores": _THE_LEASE, "delta": "spark-lease run --lease flights -- true\n"}
"""What has happened before a reader comes to this page."""


def marked(page: Path) -> object:
    needs_spark = any("SparkSession" in each.code or "submit" in each.code for each in blocks(page) if is_run(each))
    marks = [pytest.mark.postgres, pytest.mark.timeout(400), *([pytest.mark.spark] if needs_spark else [])]
    return pytest.param(page, id=page.stem, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if any(map(is_run, blocks(page)))])
def test_a_reader_who_follows_the_page_sees_what_it_shows(page: Path, tmp_path: Path, pg_url: str) -> None:
    url = made_database(pg_url, "docs_" + page.stem.replace("-", "_"))
    hosts = ("lease@db/ops", "etl@db/warehouse", "lease@db/broker")
    replaced = {f"postgresql://{each}": url for each in hosts} | {
        "postgresql+psycopg2://etl@db/warehouse": url.replace("postgresql://", "postgresql+psycopg2://"),
        _DELTA: _CONFIGURED,
    }
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(Path(PSQL).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "SPARK_LEASE_URL": url,
        "SPARK_LEASE_CREATE_TABLE": "true",
        "SPARK_SUBMIT_OPTS": start_options(FOLDER),
        "PYSPARK_PYTHON": sys.executable,
    }
    reader = Reader(tmp_path, environment, replaced, url)
    if before := BEFORE.get(page.stem):
        (tmp_path / "before.md").write_text(f"```sh\n{before}```\n")
        reader.follow(tmp_path / "before.md")
    (tmp_path / "job.py").write_text(
        "from pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate().stop()\n"
    )
    reader.follow(page)


def made_database(url: str, name: str) -> str:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.about.startswith("not-run"):
                assert len(block.about.removeprefix("not-run=")) > 5, f"{page.relative_to(DOCS)}:{block.line}"
