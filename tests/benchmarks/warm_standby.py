"""From the SIGKILL of a master's driver to the next master's first Delta commit: cold and warm standbys, in turn.

    python -m tests.benchmarks.warm_standby [ROUNDS]

Each standby becomes the master that the next one waits for. While a warm one waits, its CPU and memory are measured.
The lease is in PostgreSQL, all settings are the defaults.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from arro3.core import Array, DataType, Table
from deltalake import write_deltalake

from jobs.jars import spark_options, start_options
from spark_lease.system.processes import Process, rss, tree
from tests.benchmarks.table import report
from tests.services.postgres import running_postgres
from tests.support.command import COMMAND
from tests.support.drivers import Driver, until

JOB = """
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    rows = "SELECT id FROM range(5, 15)"
    spark.sql(f"MERGE INTO delta.`{FOLDER}/table` t USING ({rows}) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    say("committed")
    threading.Event().wait()
"""
LIMITS = {"lease": 0.2, "warm": 3.0, "warm / cold": 0.2, "CPU": 1.0}
IDLE = 20.0
"""Seconds for which a warm standby is watched."""


def submit(folder: Path, url: str, *, is_warm: bool) -> Driver:
    words = [COMMAND, "submit", "--lease", "n", "--url", url, "--create-table", "true"]
    words += ["--standby", "warm"] if is_warm else []
    return Driver(JOB, folder, "", "", command=[*words, "--", "--master", "local[2]", *spark_options()])


def python_of(driver: Driver) -> Process:
    everything = driver.tree()
    jvms = {each.pid for each in everything if each.name == "java"}
    return min((each for each in everything if each.parent in jvms), key=lambda each: each.started)


def cpu_of(driver: Driver) -> float:
    """Seconds that its processes have worked (proc(5), stat, 14 and 15)."""
    ticks = 0
    for each in tree(driver.process.pid):
        fields = Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def killed(master: Driver, standby: Driver) -> tuple[float, float]:
    """Seconds to the grant and to the first commit."""
    os.kill(python_of(master).pid, signal.SIGKILL)
    begun = time.monotonic()
    standby.until("acquired, epoch", 60)
    granted = time.monotonic()
    standby.until("committed", 120)
    return granted - begun, time.monotonic() - begun


def main(rounds: int) -> int:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", start_options())
    took: dict[str, list[float]] = {each: [] for each in ("lease", "cold", "warm", "CPU", "memory")}
    with running_postgres() as url, TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_deltalake(f"{scratch}/table", Table.from_pydict({"id": Array(list(range(10)), type=DataType.int64())}))
        master = submit(folder, url, is_warm=False)
        master.until("committed", 120)
        for number in range(2 * rounds):
            is_warm = bool(number % 2)
            with closing(master):
                standby = submit(folder, url, is_warm=is_warm)
                standby.until("standby (warm): Spark" if is_warm else "standby, ", 120)
                if is_warm:
                    until(lambda: not _is_busy(standby), 60)  # noqa: B023
                    before = cpu_of(standby)
                    time.sleep(IDLE)  # the span that is measured
                    took["CPU"].append(100 * (cpu_of(standby) - before) / IDLE)
                    took["memory"].append(sum(rss(each.pid) for each in standby.tree()) / 1e9)
                granted, committed = killed(master, standby)
            took["lease"].append(granted)
            took["warm" if is_warm else "cold"].append(committed)
            print(f"{'warm' if is_warm else 'cold'}: lease {granted:.2f} s, first commit {committed:.2f} s", flush=True)
            master = standby
        master.close()
    median = {each: statistics.median(took[each]) for each in took}
    rows = [
        ("SIGKILL to the grant", median["lease"], LIMITS["lease"], "s"),
        ("to the first commit, cold", median["cold"], float("inf"), "s"),
        ("to the first commit, warm", median["warm"], LIMITS["warm"], "s"),
        ("warm / cold", median["warm"] / median["cold"], LIMITS["warm / cold"], "×"),
        ("CPU of an idle warm standby", median["CPU"], LIMITS["CPU"], "%"),
        ("its memory, all processes", median["memory"], float("inf"), "GB"),
    ]
    return report(f"{rounds} take-overs of each", rows)


def _is_busy(driver: Driver) -> bool:
    """Compilers of the JVM go on for a moment after the warm-up."""
    before = cpu_of(driver)
    time.sleep(1.0)  # likewise
    return cpu_of(driver) - before > 0.05


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
