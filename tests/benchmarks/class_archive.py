"""How much sooner a driver starts with its classes in a file: `spark-lease submit` with and without, in turn.

    python -m tests.benchmarks.class_archive [ROUNDS]

From the start of the command to the session's first action, and to the end of its first and its second Delta commit.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from jobs.jars import spark_options
from spark_lease.submit.class_archive import OPTS
from tests.benchmarks.table import report
from tests.support.command import COMMAND

LIMIT = 0.65
"""Of the time without."""
JOB = """
import sys
import time
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.range(9).selectExpr("sum(id)").collect()
print("acted", time.monotonic(), flush=True)
for step in ("committed", "again"):
    spark.range(9).write.format("delta").mode("append").save(sys.argv[1])
    print(step, time.monotonic(), flush=True)
"""
STEPS = ("acted", "committed", "again")


def run(environ: dict[str, str], folder: Path) -> dict[str, float]:
    """Seconds from the start to each step."""
    words = [COMMAND, "submit", "--lease", "n", "--local", "--fence-delta", "off", "--", "--master", "local[2]"]
    begun = time.monotonic()
    done = subprocess.run(
        [*words, *spark_options(), str(folder.parent / "job.py"), str(folder)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {line[0]: float(line[1]) - begun for line in lines if line[:1] and line[0] in STEPS}


def main(rounds: int) -> int:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "job.py").write_text(JOB)
        bare = {key: value for key, value in os.environ.items() if key != OPTS} | {"XDG_STATE_HOME": scratch}
        ways = {"without": bare | {"XDG_CACHE_HOME": f"{scratch}/none"}, "with": bare | {"XDG_CACHE_HOME": scratch}}
        subprocess.run([COMMAND, "class-archive", "--", *spark_options()], env=ways["with"], check=True)
        took: dict[tuple[str, str], list[float]] = {(way, step): [] for way in ways for step in STEPS}
        for number in range(rounds):
            for way in random.sample([*ways], len(ways)):
                for step, seconds in run(ways[way], folder / f"{number}-{way}").items():
                    took[way, step].append(seconds)
    rows = []
    for step in STEPS:
        slow, fast = (statistics.median(took[way, step]) for way in ("without", "with"))
        rows += [(f"{step} without", slow, float("inf"), "s"), (f"{step} with", fast, float("inf"), "s")]
        rows.append((f"{step}: with / without", fast / slow, LIMIT, "×"))
    return report(f"{rounds} starts of each", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
