"""A master whose Delta writes are to be frozen, and who never finds by itself that its lease is lost.

    python -m tests.faults.delta_zombie URL TABLE spark|delta-rs

Reads "fenced" or "plain" from standard input: takes the lease then, and appends again and again, with the fence or
without. Says "writing EPOCH" after the first time, and what ended it once it was refused or told to stop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from arro3.core import Array, DataType, Table
from deltalake import write_deltalake

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.fencing.delta.delta_rs import FencedTable
from spark_lease.fencing.delta.tables import DeltaFence
from spark_lease.holds import LocalHold, open_contender
from spark_lease.spark.delta_observer import DeltaObserver
from tests.benchmarks.delta_fence import session
from tests.faults.writing import Writing

NAME = "nightly"
NAMES = ["epoch", "id"]
MANY = 20_000
SETTINGS: dict[str, Any] = {"name": NAME, "lease_duration": 3600.0}
"""So long that it never asks: what holds it back is the fence and nothing else."""


Begin = Callable[[LocalHold, DeltaFence | None], Callable[[], object]]


def by_spark(table: str) -> Begin:
    hook, spark = DeltaObserver(), session()
    assert hook.install(spark.sparkContext) == ""

    def begin(lease: LocalHold, fence: DeltaFence | None) -> Callable[[], object]:
        hook.fences = (fence,) if fence else ()
        rows = spark.range(1).selectExpr(f"{lease.epoch}L AS epoch", "id").coalesce(1)
        return lambda: rows.write.format("delta").mode("append").save(table)

    return begin


def by_delta_rs(table: str) -> Begin:
    def begin(lease: LocalHold, fence: DeltaFence | None) -> Callable[[], object]:
        # Enough of them that a write takes its time.
        rows = Table.from_arrays([Array([each] * MANY, DataType.int64()) for each in (lease.epoch, 0)], names=NAMES)
        if fence is None:
            return lambda: write_deltalake(table, rows, mode="append")
        fenced = FencedTable(lease, table, lease._config, lease._clock)
        return lambda: fenced.append(rows)

    return begin


def main(url: str, table: str, how: str) -> None:
    config = configure(url=url, **SETTINGS)
    begin = {"spark": by_spark, "delta-rs": by_delta_rs}[how](table)
    print("ready", flush=True)
    for line in sys.stdin:
        with closing(open_contender(config, BootClock())) as lease:
            lease.acquire()
            fence = DeltaFence(lease, config, BootClock()) if line.strip() == "fenced" else None
            writing = Writing(begin(lease, fence))
            print("writing", lease.epoch, flush=True)
            if fence is None:
                sys.stdin.readline()
                writing.stop()
            print(writing.end(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
