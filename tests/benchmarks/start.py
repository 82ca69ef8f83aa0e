"""What the command line costs before it does anything: CPU seconds of `spark-lease --help`, beside Python's own start.

python -m tests.benchmarks.start [ROUNDS]
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

LIMIT = 0.10


def cpu_of(command: list[str]) -> float:
    """User and system seconds of one run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    return usage.ru_utime + usage.ru_stime


def main(rounds: int) -> int:
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import spark_lease": [sys.executable, "-c", "import spark_lease"],
        "spark-lease --help": [str(Path(sys.executable).with_name("spark-lease")), "--help"],
    }
    timed: dict[str, list[float]] = {what: [] for what in commands}
    for _ in range(rounds):
        for what in random.sample(list(commands), len(commands)):
            timed[what].append(cpu_of(commands[what]))
    print(f"{'CPU, ' + str(rounds) + ' rounds':<28}{'median':>10}{'limit':>10}")
    for what, values in timed.items():
        shown = f"{LIMIT:.2f} s" if what.endswith("--help") else "–"
        print(f"{what:<28}{statistics.median(values):>8.3f} s{shown:>10}")
    return 0 if statistics.median(timed["spark-lease --help"]) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
