"""Masters that are frozen amid their Delta commits; a warm standby takes over, writes, and the frozen one is thawed.

    python -m tests.faults.warm_standby [ROUNDS]     (make test-warm-standby ROUNDS=100)

Every other one is frozen as a commit of its Spark waits to be renamed. Each standby tries to write while it warms up,
and is the master of the next round. No commit of an older epoch may land after the next master's first, and none of a
standby at all. Ends with 1 if one did.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from jobs.jars import start_options
from tests.support.drivers import DELTA, Driver, until

JOB = (
    DELTA
    + """
    from spark_lease import NotMaster

    def write(spark, epoch, number):
        rows = spark.range(1).selectExpr(f"{epoch} AS epoch", f"{number} AS number")
        rows.write.format("delta").mode("append").save(TABLE)

    def warm_up():
        try:
            write(delta_session(), 0, 0)
        except NotMaster:
            say("a write was refused")

    with hold_lease("n", **SETTINGS, keeper="thread", warm_up=warm_up) as lease:
        spark = delta_session()
        for number in range(10**6):
            write(spark, lease.epoch, number)
            say(f"wrote {number} under {lease.epoch}")
            while number > 1 and not Path(f"{FOLDER}/{lease.epoch}").exists():  # a standby needs both cores to warm up
                time.sleep(0.02)
    """
)
_A_WRITE = 0.7
_WAITS = re.compile(r"\.\d{20}\.json\..*\.tmp")  # one of its .crc that was killed stays for good


def rows(folder: Path, epoch: int) -> int:
    return DeltaTable(str(folder / "flights")).to_pyarrow_dataset().to_table().column("epoch").to_pylist().count(epoch)


def is_about_to_rename(log: Path) -> bool:
    """Spark looks whether a version is there, and then renames a file to it."""
    return any(_WAITS.fullmatch(name) for name in os.listdir(log))


def wait_for_a_rename(log: Path) -> None:
    end = time.monotonic() + 30
    while not is_about_to_rename(log) and time.monotonic() < end:
        pass


def is_warm(standby: Driver) -> bool:
    """Wait until it is; False if it is master by then."""
    standby.until("a write was refused", 120)
    ready = "standby (warm): Spark is ready"
    until(lambda: ready in standby.log.read_text() or "wrote 2 under" in standby.log.read_text(), 120)
    return ready in standby.log.read_text()


def play(folder: Path, master: Driver, standby: Driver, *, at_a_rename: bool) -> tuple[int, bool, bool]:
    """How many rows of the old epoch landed after the new master's first; whether the old one had a write open, and
    whether its commit waited to be renamed."""
    old, family = master.epoch(), master.tree()
    (folder / str(old)).touch()
    if at_a_rename:
        wait_for_a_rename(folder / "flights" / "_delta_log")
    else:
        time.sleep(random.uniform(0, _A_WRITE))  # any moment will do
    for each in reversed(family):  # the JVM first
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGSTOP)
    frozen = master.freeze()
    waits = is_about_to_rename(folder / "flights" / "_delta_log")
    standby.until("wrote 0 under", 60)
    before = rows(folder, old)
    for each in frozen:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGCONT)
    master.end(60)
    standby.until("wrote 2 under", 60)
    said = master.log.read_text()
    return rows(folder, old) - before, "Fenced" in said or "MetadataChanged" in said, waits


def main(rounds: int) -> int:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", start_options())
    landed = refused = waited = 0
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)

        def start() -> Driver:
            driver = Driver(JOB, folder, f"sqlite:///{folder}/lease.db", "lease")
            stack.callback(driver.close)
            return driver

        master = start()
        master.until("wrote 2 under", 120)
        for number in range(1, rounds + 1):
            while not is_warm(standby := start()):
                print("a busy machine: the master lost its lease while the standby warmed up; once more", flush=True)
                master.close()
                master = standby
            late, was_refused, waits = play(folder, master, standby, at_a_rename=number % 2 == 0)
            landed, refused, waited = landed + late, refused + was_refused, waited + waits
            seen = f"{refused} were refused as fenced, {waited} waited to be renamed"
            print(f"round {number}: {late} landed late, {landed} in all; {seen}", flush=True)
            master.close()
            master = standby
        of_standbys = rows(folder, 0)
    print(f"{rounds} rounds: {landed} commits of an older epoch after a newer one, {of_standbys} of a standby")
    return int(landed + of_standbys > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
