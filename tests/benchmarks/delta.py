"""A lease in a Delta table: renewals, the standby's polls beside them, and how much lies on the disk. Medians.

python -m tests.benchmarks.delta [RENEWALS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from spark_lease.config.sources import configure
from spark_lease.election.record import renewed, taken
from spark_lease.stores.folders.delta import DeltaStore
from tests.benchmarks.table import report

RENEW_LIMIT, POLL_LIMIT, FILES_LIMIT = 10.0, 3.0, 1000
FLAT = 1.5


def main(renewals: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        config = configure(name="n", url=f"delta://{folder}/leases")
        mine, standby = DeltaStore(config), DeltaStore(config)
        record = mine.swap("n", None, taken(None, holder="a", duration=30.0))
        took, polls, files, done = list[float](), list[float](), 0, threading.Event()

        def poll() -> None:
            while not done.wait(0.05):
                begun = time.perf_counter()
                standby.read("n")
                polls.append((time.perf_counter() - begun) * 1000)

        watching = threading.Thread(target=poll)
        watching.start()
        for number in range(renewals):
            assert record
            begun = time.perf_counter()
            record = mine.swap("n", record, renewed(record, duration=30.0))
            took.append((time.perf_counter() - begun) * 1000)
            if number % 50 == 0:
                files = max(files, sum(each.is_file() for each in Path(folder).rglob("*")))
        done.set()
        watching.join()
        tenth = renewals // 10
        first, last = statistics.median(took[:tenth]), statistics.median(took[-tenth:])
        rows = [
            ("renewal", statistics.median(took), RENEW_LIMIT, "ms"),
            ("  p99", statistics.quantiles(took, n=100)[98], float("inf"), "ms"),
            ("  the last tenth over the first", last / first, FLAT, "x"),
            ("standby's poll beside them", statistics.median(polls), POLL_LIMIT, "ms"),
            ("most files at once", files, FILES_LIMIT, ""),
        ]
        begun = time.perf_counter()
        for _ in range(100):
            standby.read("n")
        rows.append(("poll of a log that stands", (time.perf_counter() - begun) * 10, POLL_LIMIT, "ms"))
    return report(f"DELTA, {renewals} RENEWALS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
