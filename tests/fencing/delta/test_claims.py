"""A claim takes a Delta table from no engine that could use it before: each feature, Spark 3.5 and Spark 4."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import pytest

from jobs.jars import FOLDER as JARS
from jobs.jars import spark_conf, start_options
from spark_lease.clock import BootClock
from spark_lease.fencing.delta.fence import Claim, claim, property_of
from spark_lease.system.processes import kill, tree
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
OLDER = Path(__file__).parents[3] / ".versions/spark-3_5"

# Columns, and the table properties after WITH. `tests/fencing/delta/test_log.py` has each feature alone.
TABLES = {
    "legacy": "(id BIGINT NOT NULL) WITH delta.appendOnly=true;delta.constraints.c=id > -1;"
    "delta.enableChangeDataFeed=true",
    "generated": "(id BIGINT, g BIGINT GENERATED ALWAYS AS (id + 1), i BIGINT GENERATED ALWAYS AS IDENTITY)",
    "mapped": "(id BIGINT) WITH delta.columnMapping.mode=name",
    "timestampNtz": "(id BIGINT, t TIMESTAMP_NTZ)",
    "many": "(id BIGINT, t TIMESTAMP_NTZ, d BIGINT DEFAULT 7) USING delta CLUSTER BY (id) WITH "
    "delta.columnMapping.mode=name;delta.enableDeletionVectors=true;delta.enableRowTracking=true;"
    "delta.checkpointPolicy=v2;delta.checkpointInterval=2;delta.feature.vacuumProtocolCheck=supported;"
    "delta.enableInCommitTimestamps=true;delta.enableTypeWidening=true;delta.feature.checkpointProtection=supported;"
    "delta.enableChangeDataFeed=true;delta.feature.allowColumnDefaults=supported",
    "icebergCompatV1": "(id BIGINT) WITH delta.columnMapping.mode=name;delta.enableIcebergCompatV1=true",
    "icebergCompatV2": "(id BIGINT) WITH delta.columnMapping.mode=name;delta.enableIcebergCompatV2=true",
    "variantType": "(id BIGINT, v VARIANT)",
    "checkpoints": "(id BIGINT) WITH delta.checkpointInterval=1",
}

ENGINE = """
import json, os, sys
from pyspark.sql import SparkSession

told = json.loads(sys.argv[1])
spark = SparkSession.builder.master("local[2]").config(map=told["conf"]).getOrCreate()

def outcome(work):
    try:
        return work()
    except Exception as error:
        print(error, file=sys.stderr)
        return type(error).__name__

def make(name):
    columns, _, properties = told["tables"][name].partition(" WITH ")
    pairs = ", ".join("'{}' = '{}'".format(*each.split("=")) for each in properties.split(";") if each)
    columns += "" if "USING" in columns else " USING delta"
    more = f"TBLPROPERTIES ({pairs})" if pairs else ""
    spark.sql(f"CREATE TABLE delta.`{told['folder']}/{name}` {columns} {more}")
    spark.range(1).write.format("delta").mode("append").save(f"{told['folder']}/{name}")
    return "made"

def use(name):
    path = f"{told['folder']}/{name}"
    table = spark.read.format("delta").load(path)
    before = table.count()
    spark.range(before, before + 1).write.format("delta").mode("append").save(path)
    properties = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first().properties
    return [spark.read.format("delta").load(path).count() - before, properties.get(told["property"])]

for line in sys.stdin:
    what, names = json.loads(line)
    print("SAID " + json.dumps({name: outcome(lambda: globals()[what](name)) for name in names}), flush=True)
"""


class Engine:
    def __init__(self, python: Path, jars: Path, folder: Path) -> None:
        told = {"conf": spark_conf(jars), "folder": str(folder), "tables": TABLES, "property": property_of("n")}
        environ = {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(python),
            "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 {start_options(jars)}",
        }
        self.log = folder / f"spark-{python.parts[-3]}.log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-c", ENGINE, json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | environ,
                text=True,
            )

    def ask(self, what: str, names: list[str]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps([what, names]) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, object]:
        assert self._process.stdout
        lines: IO[str] = self._process.stdout
        said = next((each for each in lines if each.startswith("SAID ")), None)
        assert said, self.log.read_text()
        found: dict[str, object] = json.loads(said.removeprefix("SAID "))
        return found

    def close(self) -> None:
        kill(tree(self._process.pid))
        self._process.communicate(timeout=30)


PYTHONS = {"3.5": (OLDER / "bin" / "python", OLDER / "jars"), "4": (Path(sys.executable), JARS)}


@pytest.fixture(params=[["4"], once_more(["3.5", "4"])], ids=" and ".join)
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Engine]]:
    with ExitStack() as stack:
        found = {name: Engine(*PYTHONS[name], tmp_path) for name in request.param}
        for each in found.values():
            stack.callback(each.close)
        yield found


def both(engines: dict[str, Engine], what: str, names: list[str]) -> dict[str, dict[str, object]]:
    """What each engine says, one after the other: two at once on a local folder may replace each other's commits."""
    said = {}
    for name, engine in engines.items():
        engine.ask(what, names)
        said[name] = engine.hear()
    return said


def protocols(table: Path) -> list[str]:
    """Every protocol action of its log."""
    commits = [each for each in sorted((table / "_delta_log").glob("*.json")) if each.stem.isdigit()]
    lines = [line for commit in commits for line in commit.read_text().splitlines()]
    return [line for line in lines if "protocol" in json.loads(line)]


@pytest.mark.fault
def test_a_claim_takes_a_table_from_no_engine(engines: dict[str, Engine], tmp_path: Path) -> None:
    tables = list(TABLES) if len(engines) > 1 else ["generated", "many", "icebergCompatV2", "variantType"]
    newer, missing = tables, []
    for engine in engines.values():
        engine.ask("make", newer)
        made = engine.hear()
        newer = [name for name in newer if made[name] != "made"]
        missing.append(newer)
    assert missing == [["generated", "variantType"], []][-len(engines) :]
    before = both(engines, "use", tables)
    assert all(before["4"][name] == [1, None] for name in tables), before["4"]
    was = {name: protocols(tmp_path / name) for name in tables}
    for name in tables:
        assert claim(Claim("n", 5, "paris:1"), str(tmp_path / name), clock=BootClock(), timeout=10), name
    after = both(engines, "use", tables)
    assert {name: protocols(tmp_path / name) for name in tables} == was
    for engine in engines:
        for name in tables:
            expected = [1, "5"] if before[engine][name] == [1, None] else before[engine][name]
            assert after[engine][name] == expected, f"{name}, Spark {engine}: {after[engine][name]}"
    for older in before.keys() - {"4"}:
        usable = [name for name in tables if before[older][name] == [1, None]]
        assert usable == [name for name in tables if name != "variantType"], before[older]
