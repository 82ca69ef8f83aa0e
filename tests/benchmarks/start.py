"""What the command line costs: CPU seconds of `spark-lease --help`, and how long commands take that ask a PostgreSQL.

    python -m tests.benchmarks.start [ROUNDS]

The server is on this machine; each runs in a process of its own, in an order of chance.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from tests.benchmarks.table import report
from tests.services.postgres import running_postgres
from tests.support.command import COMMAND

CPU, WALL = 0.10, 0.8
NO_LIMIT = float("inf")


def run(command: list[str]) -> tuple[float, float]:
    """Seconds of the processor, and of the clock."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - begun


def medians(commands: Mapping[str, list[str]], rounds: int, of: Callable[[tuple[float, float]], float]) -> list[float]:
    timed: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(rounds):
        for what in random.sample(list(commands), len(commands)):
            timed[what].append(of(run(commands[what])))
    return [statistics.median(values) for values in timed.values()]


def on_call(url: str) -> dict[str, list[str]]:
    where = ["--url", url]
    run([COMMAND, "run", "--lease", "n", "--run-key", "k", "--create-table", "true", *where, "--", "true"])
    names = ("status", "history", "runs", "pause", "resume")
    return {each: [COMMAND, each, "n", *where] for each in names} | {"doctor": [COMMAND, "doctor", *where]}


def main(rounds: int) -> int:
    alone = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import spark_lease": [sys.executable, "-c", "import spark_lease"],
        "spark-lease --help": [COMMAND, "--help"],
    }
    cpu = zip(alone, medians(alone, rounds, lambda took: took[0]), (NO_LIMIT, NO_LIMIT, CPU), strict=True)
    rows = [(what, found, limit, "s of CPU") for what, found, limit in cpu]
    with running_postgres() as url:
        asking = on_call(url)
        for what, found in zip(asking, medians(asking, rounds, lambda took: took[1]), strict=True):
            rows.append((f"spark-lease {what}, on PostgreSQL", found, WALL, "s"))
    return report(f"COMMANDS, {rounds} ROUNDS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
