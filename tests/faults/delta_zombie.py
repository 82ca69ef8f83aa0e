"""A master whose Delta writes are to be frozen: a warm JVM, and a lease that it never finds lost by itself.

    python -m tests.faults.delta_zombie URL TABLE

Reads "fenced" or "plain" from standard input: takes the lease then, and appends row after row, with the hook or
without. Says "writing EPOCH" after the first row, and what ended it once it was refused or told to stop.
"""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from typing import Any

from spark_lease.clock import BootClock
from spark_lease.config import configure
from spark_lease.errors import Fenced
from spark_lease.fences.delta_tables import DeltaFence
from spark_lease.lease import Contender, open_contender
from spark_lease.spark.delta_hook import DeltaHook
from tests.benchmarks.delta_fence import session

NAME = "nightly"
SETTINGS: dict[str, Any] = {"name": NAME, "lease_duration": 3600.0}
"""So long that it never asks: what holds it back is the fence and nothing else."""


class Fence(DeltaFence):
    """Knows whether a transaction that was refused was under way at the claim."""

    was_under_way = False

    def aborted(self, table: str) -> None:
        try:
            super().aborted(table)
        except Fenced:
            self.was_under_way = True
            raise


class Writing:
    """Rows of one epoch, until it is refused or told to stop."""

    def __init__(self, spark: Any, table: str, lease: Contender) -> None:
        self._spark, self._table, self._epoch = spark, table, lease.epoch
        self._began, self._stop, self._end = threading.Event(), threading.Event(), ""
        self._thread = threading.Thread(target=self._write)
        self._thread.start()
        self._began.wait()

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> str:
        self._thread.join()
        return self._end

    def _write(self) -> None:
        rows = self._spark.range(1).selectExpr(f"{self._epoch}L AS epoch", "id").coalesce(1)
        try:
            while not self._stop.is_set():
                rows.write.format("delta").mode("append").save(self._table)
                self._began.set()
            self._end = "stopped"
        except Exception as error:  # whatever it is, the one who asked will judge it
            self._end = type(error).__name__
        self._began.set()


def main(url: str, table: str) -> None:
    config, hook = configure(url=url, **SETTINGS), DeltaHook()
    spark = session()
    assert hook.install(spark.sparkContext) == ""
    print("ready", flush=True)
    for line in sys.stdin:
        with closing(open_contender(config, BootClock())) as lease:
            lease.acquire()
            fence = Fence(lease, config, BootClock())
            hook.fences = (fence,) if line.strip() == "fenced" else ()
            writing = Writing(spark, table, lease)
            print("writing", lease.epoch, flush=True)
            if not hook.fences:
                sys.stdin.readline()
                writing.stop()
            print(writing.end(), "under-way" if fence.was_under_way else "at-its-start", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
