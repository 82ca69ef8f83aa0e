"""What a keeper costs, and how fast it hands over. Medians; the limits are those that the README names.

python -m tests.benchmarks.keeper [ROUNDS]
"""

from __future__ import annotations

import json
import math
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
import timeit
from pathlib import Path

from spark_lease import hold_lease
from spark_lease.keeper.keeper import _TICK as TICK
from spark_lease.system.processes import tree
from tests.benchmarks.table import report
from tests.services.postgres import running_postgres
from tests.support.command import COMMAND
from tests.support.drivers import Driver, keeper_of, until

IDLE = 20.0


def used(pid: int) -> float:
    """Seconds of a processor. Not of /proc/PID/stat, which counts in ticks of 10 ms."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def check_and_idle(url: str) -> dict[str, float]:
    """Microseconds for one check(); the shares of a processor and the MB that an idle keeper takes.

    Beside it sleeps a process that does nothing but wake as often as a keeper looks at its driver's children: what
    that costs is the machine's. A virtual machine whose host takes its memory away makes a wake dear.
    """
    sleeper = subprocess.Popen([sys.executable, "-c", f"import time\nwhile True: time.sleep({TICK})"])
    with hold_lease("bench", url=url, create_table=True) as lease:
        check = min(timeit.repeat(lease.check, number=100_000, repeat=5)) / 100_000 * 1e6
        pid = keeper_of(os.getpid())
        pids = (pid, os.getpid(), sleeper.pid)
        time.sleep(1.0)  # nothing to wait for: a start's last work
        before = [used(each) for each in pids]
        threading.Event().wait(IDLE)
        idle, guarded, bare = ((used(each) - was) / IDLE * 100 for each, was in zip(pids, before, strict=True))
        sleeper.kill()
        sleeper.wait()
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        memory = int(status["VmRSS"].split()[0]) / 1024
        return {"check()": check, "idle": idle, "guarded": guarded, "bare": bare, "RSS": memory}


class Standby:
    """Another contender that waits for the lease `name`."""

    def __init__(self, url: str, name: str) -> None:
        words = ["--lease", name, "--url", url, "--poll-period", "0.05", "--", "true"]
        self.process = subprocess.Popen(
            [COMMAND, "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        assert "is master" in self.process.stderr.readline()

    def granted(self) -> float:
        """The moment of its grant, seconds since 1970 by the store's clock, which is this machine's."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return int(json.loads(out.splitlines()[-1])["epoch"]) / 1000


def crash(url: str, turn: int) -> tuple[float, float]:
    """Seconds from the SIGKILL of Python to the next grant, and to the end of its JVM."""
    with tempfile.TemporaryDirectory() as folder:
        script = f"""
            with hold_lease("crash-{turn}", url=os.environ["TEST_URL"]):
                spark = session()
                spark.sparkContext.parallelize([1, 2], 2).map(lambda x: x).count()
                say("up")
                time.sleep(600)
        """
        driver = Driver(script, Path(folder), url, "spark_lease")
        driver.until("up")
        jvm = os.pidfd_open(driver.find("org.apache.spark.deploy.SparkSubmit").pid)
        standby = Standby(url, f"crash-{turn}")
        time.sleep(random.uniform(0.7, 0.8))  # nothing to wait for: workers were found, any moment
        ended: list[float] = []
        watch = threading.Thread(target=lambda: (select.select([jvm], [], [], 60), ended.append(time.time())))
        watch.start()
        killed = time.time()
        os.kill(driver.process.pid, signal.SIGKILL)
        granted = standby.granted()
        watch.join()
        os.close(jvm)
        driver.close()
        return granted - killed, ended[0] - killed


def command(url: str, turn: int) -> float:
    """Seconds from the SIGKILL of the command of `spark-lease run` to the next grant."""
    words = ["--lease", f"run-{turn}", "--url", url, "--", "sleep", "600"]
    run = subprocess.Popen([COMMAND, "run", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert run.stderr
    assert "acquired" in run.stderr.readline()
    victim = until(lambda: [each for each in tree(run.pid) if each.name == "sleep"])[0]
    standby = Standby(url, f"run-{turn}")
    time.sleep(random.uniform(0.1, 0.2))  # nothing to wait for: at any moment between two of its polls
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    granted = standby.granted()
    run.communicate()
    return granted - killed


def main(rounds: int) -> int:
    with running_postgres() as url:
        costs = check_and_idle(url)
        crashes = [crash(url, turn) for turn in range(rounds)]
        commands = [command(url, turn) for turn in range(rounds)]
    total = statistics.median(each for each, _ in crashes) * 1000
    own = statistics.median(granted - jvm for granted, jvm in crashes) * 1000
    rows = [
        ("check()", costs["check()"], 2.0, "µs"),
        ("idle keeper", costs["idle"], 0.1, "% of a processor"),
        ("idle threads in its driver", costs["guarded"], 0.1, "% of a processor"),
        ("  a bare process that wakes as often", costs["bare"], math.inf, "% of a processor"),
        ("its memory", costs["RSS"], 60.0, "MB RSS"),
        ("crash of Python to the next grant", total, 150.0, "ms"),
        ("  of which after the JVM's end", own, 50.0, "ms"),
        ("command of run killed to the next grant", statistics.median(commands) * 1000, 50.0, "ms"),
    ]
    return report("WHAT", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 9))
