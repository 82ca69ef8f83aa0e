"""What containment costs at the start of a command, and how fast a contained driver that is killed hands over.

    python -m tests.benchmarks.contain [ROUNDS]

Starts are of `spark-lease run -- true` with a namespace and without, in turns. The driver is that of
`spark-lease submit`, with a session and Python workers; it gets SIGKILL, and a standby waits on the same PostgreSQL.
The kernel's part is the time until the namespace's init, driver, JVM and workers have ended; the rest is ours.
"""

from __future__ import annotations

import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from spark_lease.system.processes import Process, tree
from tests.benchmarks.keeper import COMMAND, Standby
from tests.benchmarks.table import report
from tests.services.postgres import running_postgres
from tests.support.drivers import Driver


def started(url: str, contain: str) -> float:
    """Seconds that `run -- true` takes."""
    words = [COMMAND, "run", "--lease", f"start-{contain}", "--url", url, "--create-table", "true"]
    begun = time.perf_counter()
    subprocess.run([*words, "--contain", contain, "--", "true"], check=True, capture_output=True)
    return time.perf_counter() - begun


def crash(url: str, turn: int) -> tuple[float, float]:
    """Seconds from the SIGKILL of the driver's Python to the next grant, and to the end of the last process inside."""
    script = """
        spark = session()
        spark.sparkContext.parallelize([1, 2], 2).map(lambda x: x).count()
        say("up")
        time.sleep(600)
    """
    lease = ["--lease", f"contained-{turn}", "--url", url, "--contain", "required"]
    spark = ["--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    with tempfile.TemporaryDirectory() as folder:
        driver = Driver(script, Path(folder), url, "spark_lease", command=[COMMAND, "submit", *lease, "--", *spark])
        driver.until("up")
        python, init = driver_and_init(driver)
        ended, pidfd = list[float](), os.pidfd_open(init.pid)
        standby = Standby(url, f"contained-{turn}")
        time.sleep(random.uniform(0.2, 0.3))  # nothing to wait for: any moment
        watch = threading.Thread(target=lambda: (select.select([pidfd], [], [], 60), ended.append(time.time())))
        watch.start()
        killed = time.time()
        os.kill(python.pid, signal.SIGKILL)
        granted = standby.granted()
        watch.join()
        os.close(pidfd)
        driver.close()
        return granted - killed, ended[0] - killed


def driver_and_init(driver: Driver) -> tuple[Process, Process]:
    found = {each.pid: each for each in tree(driver.process.pid)}
    java = next(each for each in found.values() if each.name == "java")
    pythons = [each for each in found.values() if each.parent == java.pid and each.name.startswith("python")]
    return min(pythons, key=lambda each: each.started), found[java.parent]


def main(rounds: int) -> int:
    starts: dict[str, list[float]] = {"required": [], "off": []}
    with running_postgres() as url:
        started(url, "off")  # makes the table, and fills the caches
        for _ in range(4 * rounds):
            for contain in random.sample(list(starts), 2):
                starts[contain].append(started(url, contain))
        crashes = [crash(url, turn) for turn in range(rounds)]
    with_one, without = (statistics.median(each) * 1000 for each in starts.values())
    total = statistics.median(granted for granted, _ in crashes) * 1000
    own = statistics.median(granted - ended for granted, ended in crashes) * 1000
    rows = [
        ("run -- true, contained", with_one, float("inf"), "ms"),
        ("run -- true, not contained", without, float("inf"), "ms"),
        ("  the difference", with_one - without, 15.0, "ms"),
        ("SIGKILL of the driver to the next grant", total, 150.0, "ms"),
        ("  of which after the end of everything", own, 30.0, "ms"),
    ]
    return report(f"CONTAINMENT, {rounds} ROUNDS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
