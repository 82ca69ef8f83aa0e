"""What a guard costs a job: the flights job under `spark-lease submit` and under plain spark-submit, in turns.

python -m tests.benchmarks.guard [PAIRS] [DAYS]
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jobs.jars import spark_options
from tests.services.postgres import running_postgres

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LIMIT = 1.01


def run(guarded: bool, folder: str, url: str, days: int) -> tuple[float, float]:
    """One run of the job: seconds on the wall, and of processors, the server's as well."""
    words = ["--table", f"{folder}/flights", "--input", f"{folder}/input", "--days", str(days)]
    job = ["--master", "local[2]", *spark_options(), "jobs/flights_daily.py", *words]
    lease = [str(BIN / "spark-lease"), "submit", "--lease", "flights", "--url", url, "--create-table", "true", "--"]
    told = {"SPARK_LEASE_NAME": "flights", "SPARK_LEASE_HOLDER": "nobody", "SPARK_LEASE_EPOCH": "1"}
    begun, before = time.monotonic(), busy()
    done = subprocess.run(
        [*lease, *job] if guarded else [str(BIN / "spark-submit"), *job],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable} | ({} if guarded else told),
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - begun, busy() - before
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return took


def busy() -> float:
    """Seconds that processors worked for anybody: proc(5), /proc/stat, without what the host took away."""
    user, nice, system = Path("/proc/stat").read_text().split()[1:4]
    return sum(map(int, (user, nice, system))) / os.sysconf("SC_CLK_TCK")


def main(pairs: int, days: int) -> int:
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with running_postgres() as url, tempfile.TemporaryDirectory() as folder:
        for pair in range(pairs):
            for guarded in random.sample([True, False], 2):
                # One path for all: a guard claims, at its start, each table that was noted beside its lease.
                took[guarded].append(run(guarded, f"{folder}/round", url, days))
                shutil.rmtree(f"{folder}/round")
            wall, used = (under / plain for under, plain in zip(took[True][-1], took[False][-1], strict=True))
            print(f"pair {pair + 1} of {pairs}: wall {wall:.3f}, processors {used:.3f}", file=sys.stderr, flush=True)
    print(f"{'FLIGHTS JOB':<24}{'PLAIN':>9}{'GUARDED':>9}{'RATIO':>9}  (medians of {pairs} pairs)")
    costs = []
    for number, what in enumerate(("seconds on the wall", "seconds of processors")):
        plain, under = ([each[number] for each in took[guarded]] for guarded in (False, True))
        costs.append(statistics.median(a / b for a, b in zip(under, plain, strict=True)))
        print(f"{what:<24}{statistics.median(plain):>9.2f}{statistics.median(under):>9.2f}{costs[-1]:>9.3f}")
    print(f"limit {LIMIT}")
    return int(costs[0] > LIMIT)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers or [7]), *([] if len(numbers) > 1 else [60])))
