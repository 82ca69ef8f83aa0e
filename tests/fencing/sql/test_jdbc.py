"""Spark's own JDBC writer and a fenced table: `lease.jdbc_url` carries the epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from jobs.jars import JDBC
from spark_lease.fencing.sql import triggers as postgres
from spark_lease.fencing.sql.claim import claim
from tests.services.proxy import Proxy
from tests.support.drivers import Driver
from tests.support.guarded import rows
from tests.support.holders import Holder

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]

SCRIPT = """
    with hold_lease("n", **SETTINGS | {"lease_duration": 60}, fence_url=os.environ["TEST_FENCE"]) as lease:
        from pyspark.sql import SparkSession
        conf = {"spark.jars": os.environ["TEST_JAR"], "spark.ui.enabled": "false", "spark.log.level": "OFF"}
        spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
        url = os.environ["TEST_JDBC"]

        def append(url):
            frame = spark.range(0, 4, 1, 2).selectExpr(f"{lease.epoch}L AS epoch")
            frame.write.option("driver", "org.postgresql.Driver").jdbc(url, "guarded", mode="append")

        def write(url):
            try:
                append(url)
                return "written"
            except Exception as error:
                return str(error)

        say(f"with its epoch: {write(lease.jdbc_url(url))}")
        say(f"without: {write(url)}")
        say("go on")
        while not Path(f"{FOLDER}/go").exists():
            time.sleep(0.01)
        say(f"after a claim: {write(lease.jdbc_url(url))}")
        say("that is all")
        append(lease.jdbc_url(url))
"""


@pytest.mark.shows("P4")
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_only_the_newest_epoch_writes_through_sparks_jdbc(
    engine: Engine,
    database: str,
    proxy: Proxy,
    start: Callable[..., Driver],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    postgres.add(engine, "guarded", "n")
    url = make_url(proxy.url)  # by TCP, which is all that JDBC knows
    monkeypatch.setenv("TEST_FENCE", database)
    monkeypatch.setenv("TEST_JAR", str(next(JDBC.glob("*.jar"))))
    monkeypatch.setenv("TEST_JDBC", f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}")
    driver = start(SCRIPT)
    said = driver.until("go on", 120)
    assert "with its epoch: written" in said, said
    assert "written only under the lease n" in said.partition("without: ")[2]
    claim(Holder("n", driver.epoch() + 1), engine)
    (tmp_path / "go").touch()
    said = driver.until("that is all").partition("after a claim: ")[2]
    assert f"was claimed under epoch {driver.epoch() + 1} of the lease n, and mine is {driver.epoch()}" in said
    assert (driver.end(60), rows(engine)) == (75, 4)
    assert "n: lease lost (fenced)" in driver.log.read_text()
