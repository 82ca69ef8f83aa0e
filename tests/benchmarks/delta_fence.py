"""What the Delta fence costs: guarded writes against the same unguarded ones, and the claims at a takeover. Medians.

python -m tests.benchmarks.delta_fence [PAIRS]

One session, real flights; guarded and unguarded writes take turns in an order of chance.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.writer import write_deltalake

from jobs.flights_daily import unpack
from jobs.jars import spark_options
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.fencing.delta.tables import DeltaFence
from spark_lease.holds import open_contender
from spark_lease.spark.delta_observer import DeltaObserver
from tests.benchmarks.table import report

LIMIT = 1.03
TABLES = 20
WARM_UP = 2


def session() -> Any:
    from pyspark.sql import SparkSession

    pairs = (word.split("=", 1) for word in spark_options() if "=" in word)
    return SparkSession.builder.master("local[2]").config(map=dict(pairs)).getOrCreate()


def operations(spark: Any, folder: Path) -> dict[str, Callable[[], Any]]:
    """Each on a table of its own, so that one does not make the other's longer."""
    from delta.tables import DeltaTable as SparkTable

    flights = spark.read.csv(str(unpack(folder / "input") / "flights.csv"), header=True, nullValue="NA")
    day = flights.where("month = 1 AND day = 1").coalesce(1).cache()
    for each in ("append", "merge", "update"):
        day.write.format("delta").save(f"{folder}/{each}")
    merged = SparkTable.forPath(spark, f"{folder}/merge").alias("t")
    same = "t.carrier = s.carrier AND t.flight = s.flight AND t.origin = s.origin AND t.hour = s.hour"
    once = day.dropDuplicates(["carrier", "flight", "origin", "hour"]).coalesce(1).cache()
    return {
        "append": lambda: day.write.format("delta").mode("append").save(f"{folder}/append"),
        "MERGE": lambda: merged.merge(once.alias("s"), same).whenMatchedUpdateAll().execute(),
        "UPDATE": lambda: spark.sql(f"UPDATE delta.`{folder}/update` SET dep_delay = arr_delay WHERE origin = 'JFK'"),
    }


def ratio(
    write: Callable[[], Any], guard: Callable[[], None], free: Callable[[], None], pairs: int
) -> tuple[float, str]:
    """Median of guarded over unguarded, and how long an unguarded one takes."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(pairs + WARM_UP):
        for guarded in random.sample([True, False], 2):
            (guard if guarded else free)()
            begun = time.perf_counter()
            write()
            if pair >= WARM_UP:
                took[guarded].append(time.perf_counter() - begun)
    ratios = [guarded / plain for guarded, plain in zip(took[True], took[False], strict=True)]
    return statistics.median(ratios), f"x of {statistics.median(took[False]):.3f} s"


def main(pairs: int) -> int:
    rows: list[tuple[str, float, float, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = configure(name="n", url=f"sqlite:///{folder}/lease.db", lease_duration=3600)
        with closing(open_contender(config, BootClock())) as lease:
            lease.acquire()
            spark, hook, fence = session(), DeltaObserver(), DeltaFence(lease, config, BootClock())

            def guard() -> None:
                hook.add(fence)
                assert hook.install(spark.sparkContext) == ""

            for what, write in operations(spark, folder).items():
                measured, unit = ratio(write, guard, lambda: hook.discard(fence), pairs)
                rows.append((f"{what}, guarded / unguarded", measured, LIMIT, unit))
            spark.stop()
            rows.append((f"claim of {TABLES} tables", claims(folder, config, lease), float("inf"), "s"))
    return report(f"DELTA FENCE, {pairs} PAIRS EACH", rows)


def claims(folder: Path, config: Any, lease: Any) -> float:
    import pyarrow

    fence = DeltaFence(lease, config, BootClock())
    for number in range(TABLES):
        for _ in range(20):
            write_deltalake(f"{folder}/many/{number}", pyarrow.table({"a": [1]}), mode="append")
        fence.begin(f"{folder}/many/{number}", None)
    begun = time.perf_counter()
    assert DeltaFence(lease, config, BootClock()).claim_all() == ""
    took = time.perf_counter() - begun
    assert DeltaTable(f"{folder}/many/0").metadata().configuration
    return took


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
