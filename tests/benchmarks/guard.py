"""What a guard costs a job: the flights job under `spark-lease submit` and under plain spark-submit, in turns.

python -m tests.benchmarks.guard [PAIRS] [DAYS]
"""

from __future__ import annotations

import os
import random
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


def run(guarded: bool, folder: str, url: str, days: int) -> float:
    """Wall seconds of one run of the job."""
    words = ["--table", f"{folder}/flights", "--input", f"{folder}/input", "--days", str(days)]
    job = ["--master", "local[2]", *spark_options(), "jobs/flights_daily.py", *words]
    lease = [str(BIN / "spark-lease"), "submit", "--lease", "flights", "--url", url, "--create-table", "true", "--"]
    told = {"SPARK_LEASE_NAME": "flights", "SPARK_LEASE_HOLDER": "nobody", "SPARK_LEASE_EPOCH": "1"}
    begun = time.monotonic()
    done = subprocess.run(
        [*lease, *job] if guarded else [str(BIN / "spark-submit"), *job],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable} | ({} if guarded else told),
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - begun
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return took


def main(pairs: int, days: int) -> int:
    ratios = []
    took: dict[bool, list[float]] = {True: [], False: []}
    with running_postgres() as url:
        for pair in range(pairs):
            for guarded in random.sample([True, False], 2):
                with tempfile.TemporaryDirectory() as folder:
                    took[guarded].append(run(guarded, folder, url, days))
            ratios.append(took[True][-1] / took[False][-1])
            print(f"pair {pair + 1} of {pairs}: {ratios[-1]:.3f}", file=sys.stderr, flush=True)
    plain, under = (statistics.median(took[guarded]) for guarded in (False, True))
    print(f"{'FLIGHTS JOB':<24}{'SECONDS':>9}")
    print(f"{'plain spark-submit':<24}{plain:>9.2f}\n{'spark-lease submit':<24}{under:>9.2f}")
    print(f"median of the ratios    {statistics.median(ratios):>9.3f}, limit {LIMIT}")
    return int(statistics.median(ratios) > LIMIT)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(numbers or [7]), *([] if len(numbers) > 1 else [60])))
