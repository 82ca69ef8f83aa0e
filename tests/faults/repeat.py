"""The faults again and again, each with another timing: what passed once by luck does not pass ten times.

    python -m tests.faults.repeat [TIMES] [ONLY]     (make test-faults TIMES=30 ONLY=keeper)

Every round runs the drills, with a kill and with a pause at another moment, and the tests that freeze, kill or cut
something. Results are kept in out/faults.csv: a run that was interrupted goes on where it was. Prints a table.
"""

from __future__ import annotations

import csv
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "out" / "faults.csv"
LIMIT = 600


def commands(turn: int, only: str) -> dict[str, list[str]]:
    chance = random.Random(turn)
    drill = [sys.executable, "-m", "jobs.drill", "--days", "12", "--folder", "out/faults", "--lease-duration"]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--randomly-seed={turn}"]
    found = {
        "drill, crash": [*drill, f"{chance.uniform(4, 9):.2f}", "--after", str(chance.randint(2, 6))],
        "drill, everything": [*drill, f"{chance.uniform(4, 9):.2f}", "--everything"],
        "drill, zombie": [*drill, f"{chance.uniform(4, 9):.2f}", "--after", str(chance.randint(2, 6)), "--zombie"],
        "drill, pause": [*drill, f"{chance.uniform(4, 9):.2f}", "--after", str(chance.randint(2, 6)), "--pause"],
        "store faults": [*pytest, "tests/stores/sql/test_faults.py"],
        "runner": [*pytest, "tests/cli/test_run.py"],
        "fences": [*pytest, "tests/fencing"],
        "frames": [*pytest, "tests/fencing/dataframe/test_faults.py"],
        "keeper": [*pytest, "tests/keeper/test_with_spark.py", "tests/keeper/test_process.py"],
        "drivers": [*pytest, "tests/guard/test_with_spark.py"],
        "delta fence": [*pytest, "tests/spark/test_delta_fence.py", "-k", "amid or frozen"],
        "zombies": [sys.executable, "-m", "tests.faults.zombies", "10"],
        "streams": [*pytest, "tests/spark/test_stream.py"],
        "submissions": [*pytest, "tests/submit/test_launcher.py"],
        "edge, tasks": [*pytest, "tests/spark/test_work.py", "-k", ("jdbc", "java", "stream", "python")[turn % 4]],
        "edge, pid 1": [*pytest, "tests/system/test_container_init.py"],
        "edge, children": [*pytest, "-n", "4", "tests/keeper/test_guarded_processes.py"],
    }
    return {what: command for what, command in found.items() if only in what}


def done_before() -> set[tuple[int, str]]:
    if not RESULTS.exists():
        return set()
    with RESULTS.open() as file:
        return {(int(turn), what) for turn, what, _, _ in csv.reader(file)}


def run(turn: int, what: str, command: list[str]) -> None:
    start = time.monotonic()
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, said = 124, str(error.stdout)
    took = time.monotonic() - start
    print(f"round {turn}, {what}: {'ok' if code == 0 else 'FAILED'} after {took:.0f} s", flush=True)
    if code:
        log = RESULTS.with_name(f"faults-{turn}-{what.replace(', ', '-').replace(' ', '-')}.log")
        log.write_text(said)
        print(f"  see {log}", flush=True)
    with RESULTS.open("a", newline="") as file:
        csv.writer(file).writerow([turn, what, code, f"{took:.1f}"])


def table() -> bool:
    ok: dict[str, int] = defaultdict(int)
    runs: dict[str, int] = defaultdict(int)
    with RESULTS.open() as file:
        for _, what, code, _ in csv.reader(file):
            runs[what] += 1
            ok[what] += code == "0"
    print(f"\n{'FAULT':<16}{'RUNS':>6}{'OK':>6}")
    for what, number in runs.items():
        print(f"{what:<16}{number:>6}{ok[what]:>6}")
    return ok == runs


def main(times: int, only: str = "") -> int:
    RESULTS.parent.mkdir(exist_ok=True)
    before = done_before()
    if all((turn, what) in before for turn in range(times) for what in commands(turn, only)):
        RESULTS.unlink(missing_ok=True)  # the last run came to its end: this is a new one
        before = set()
    for turn in range(times):
        for what, command in commands(turn, only).items():
            if (turn, what) not in before:
                run(turn, what, command)
    return 0 if table() else 1


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10, *sys.argv[2:3]))
    except KeyboardInterrupt:
        sys.exit(130)
