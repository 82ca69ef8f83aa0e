"""Masters that are frozen amid their Delta commits; a warm standby takes over, writes, and the frozen one is thawed.

    python -m tests.faults.warm_standby [ROUNDS]     (make test-warm-standby ROUNDS=100)

Each standby tries to write while it warms up, and is the master of the next round. No commit of an older epoch may land
after the next master's first, and none of a standby at all. Ends with 1 if one did.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable

from jobs.jars import start_options
from tests.support.drivers import DELTA, Driver

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


def rows(folder: Path, epoch: int) -> int:
    return DeltaTable(str(folder / "flights")).to_pyarrow_dataset().to_table().column("epoch").to_pylist().count(epoch)


def play(folder: Path, master: Driver, standby: Driver) -> tuple[int, bool]:
    """How many rows of the old epoch landed after the new master's first, and whether the old one had a write open."""
    old = master.epoch()
    (folder / str(old)).touch()
    time.sleep(random.uniform(0, _A_WRITE))  # any moment will do
    frozen = master.freeze()
    standby.until("wrote 0 under", 60)
    before = rows(folder, old)
    for each in frozen:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGCONT)
    master.end(60)
    standby.until("wrote 2 under", 60)
    said = master.log.read_text()
    return rows(folder, old) - before, "Fenced" in said or "MetadataChanged" in said


def main(rounds: int) -> int:
    os.environ.setdefault("SPARK_SUBMIT_OPTS", start_options())
    landed = refused = 0
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)

        def start() -> Driver:
            driver = Driver(JOB, folder, f"sqlite:///{folder}/lease.db", "lease")
            stack.callback(driver.close)
            return driver

        master = start()
        master.until("wrote 2 under", 120)
        for number in range(1, rounds + 1):
            standby = start()
            standby.until("a write was refused", 120)
            standby.until("standby (warm): Spark is ready", 120)
            late, was_refused = play(folder, master, standby)
            landed, refused = landed + late, refused + was_refused
            print(f"round {number}: {late} landed late, {landed} in all; {refused} were refused as fenced", flush=True)
            master.close()
            master = standby
        of_standbys = rows(folder, 0)
    print(f"{rounds} rounds: {landed} commits of an older epoch after a newer one, {of_standbys} of a standby")
    return int(landed + of_standbys > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
