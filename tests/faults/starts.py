"""Starts again and again, under load, while the script changes its environment: none may crash.

    python -m tests.faults.starts [TIMES] [HOW]     (HOW: "process" or "thread", who keeps the lease)

Each start holds a lease on PostgreSQL for a moment; two of them run at once, beside a busy process. Prints a table;
ends with 1 if one of them ended with anything but 0.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.services.postgres import own_postgres

JOB = """
import os, sys
from spark_lease import hold_lease
name, url, keeper = sys.argv[1:]
with hold_lease(name, url=url, keeper=keeper, create_table="true", lease_duration=30) as lease:
    if keeper == "process":
        for number in range(200):
            os.environ[f"OF_THE_JOB_{number}"] = "x" * number
    lease.check()
"""


def _compute() -> None:
    while True:
        sum(range(10_000))


def main(times: int = 500, keeper: str = "process") -> int:
    busy = multiprocessing.Process(target=_compute, daemon=True)
    busy.start()
    with own_postgres() as server, ThreadPoolExecutor(2) as pool:

        def start(number: int) -> int:
            words = [sys.executable, "-X", "faulthandler", "-c", JOB, f"n{number}", server.url, keeper]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
            if done.returncode:
                print(f"start {number} ended with {done.returncode}:\n{done.stderr[-2000:]}", flush=True)
            elif number % 50 == 49:
                print(f"{number + 1} of {times}", flush=True)
            return done.returncode

        ended = Counter(pool.map(start, range(times)))
    busy.kill()
    print(f"\n{'EXIT CODE':<12}{'STARTS':>8}")
    for code, number in sorted(ended.items()):
        print(f"{code:<12}{number:>8}")
    return 0 if set(ended) == {0} else 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, *sys.argv[2:3]))
    except KeyboardInterrupt:
        sys.exit(130)
