"""How fast a standby takes over on PostgreSQL: after a clean release, and from a holder that is frozen.

    python -m tests.benchmarks.handover [ROUNDS]

The yardstick for a release is a blocking advisory lock, which is all that a session lock can do: one waits inside the
server, the other unlocks. It is measured plainly and through tooz, where that is there (`pip install tooz`: with its
eight dependencies and theirs it is too heavy to come with the tests). Neither of them writes anything, while a grant
has to be on the disk before it counts; so a third one locks and then commits one UPDATE, which is what the disk costs
alone. Rounds are interleaved. Between two blocks of `hold_lease` it is counted from the last line of the one to the
first of the other, each in a process of its own, with its keeper: all four share this machine's processors, and the
first two end meanwhile. A holder is frozen by SIGSTOP, with all that it started; the standby is late by the time
from the expiry that is stored to its grant, both by the server's clock.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import psycopg2

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.store import SqlStore
from spark_lease.system.processes import kill, tree
from tests.benchmarks.table import report
from tests.services.postgres import running_postgres
from tests.support.command import COMMAND

try:
    from tooz import coordination
except ImportError:
    coordination = None

NOTHING = "SELECT 1"
COMMIT = "UPDATE durable SET at = clock_timestamp()"
BLOCK = """
import sys, time
from spark_lease import hold_lease
with hold_lease("blocks", url=sys.argv[1]):
    print(time.monotonic(), flush=True)
    sys.stdin.readline()
    print(time.monotonic(), flush=True)
"""
SETTLE = 0.15
"""Seconds in which the one that waits has begun to wait."""


def contender(url: str, **settings: object) -> LocalHold:
    return open_contender(configure(name="bench", url=url, create_table="true", **settings), BootClock())


def handed_over(give: Callable[[], object], take: Callable[[], object]) -> float:
    """Seconds from the beginning of `give` to the end of a `take` that waits for it on another thread."""
    taken: list[float] = []
    waiting = threading.Thread(target=lambda: (take(), taken.append(time.monotonic())))
    waiting.start()
    time.sleep(SETTLE)
    start = time.monotonic()
    give()
    waiting.join(30)
    return taken[0] - start


def released(url: str) -> float:
    """Seconds from the beginning of a release to the grant."""
    holder, standby = contender(url), contender(url)
    holder.acquire()
    took = handed_over(holder.release, standby.acquire)
    standby.release()
    for each in (holder, standby):
        each.close()
    return took


def unlocked(url: str, *, then: str = NOTHING) -> float:
    """Seconds from the beginning of an unlock to the end of a lock that waited for it, and of the statement `then`."""
    holder, standby = psycopg2.connect(url), psycopg2.connect(url)
    for each in (holder, standby):
        each.autocommit = True
    with holder.cursor() as one, standby.cursor() as other:
        other.execute(then)  # once for the plan and the caches
        one.execute("SELECT pg_advisory_lock(42)")

        def lock() -> None:
            other.execute("SELECT pg_advisory_lock(42)")
            if then != NOTHING:
                other.execute(then)

        took = handed_over(lambda: one.execute("SELECT pg_advisory_unlock(42)"), lock)
    for each in (holder, standby):
        each.close()
    return took


def unlocked_by_tooz(url: str) -> float:
    """The same through tooz: a coordinator for each of the two, as two processes would have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its driver is deprecated
        both = [coordination.get_coordinator(url, name) for name in (b"holder", b"standby")]
    for each in both:
        each.start()
    holder, standby = (each.get_lock(b"bench") for each in both)
    holder.acquire()
    took = handed_over(holder.release, standby.acquire)
    standby.release()
    for each in both:
        each.stop()
    return took


def through_blocks(url: str, rounds: int) -> float:
    """Seconds from the last line of one block to the first of the next, a median."""

    def start() -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([sys.executable, "-c", BLOCK, url], text=True, **pipes)

    def said(process: subprocess.Popen[str]) -> float:
        assert process.stdout
        return float(process.stdout.readline())

    took, holder = list[float](), start()
    said(holder)
    for _ in range(rounds):
        standby = start()
        assert standby.stderr
        assert any("standby" in line for line in standby.stderr)
        time.sleep(4 * SETTLE)  # no event tells that it listens, and that nothing of its start still runs
        print(file=holder.stdin, flush=True)
        left = said(holder)
        took.append(said(standby) - left)
        holder.wait(30)
        holder = standby
    holder.communicate("\n", timeout=30)
    return statistics.median(took)


def frozen(url: str) -> float:
    """Seconds from the stored expiry of a frozen holder to the grant of its standby."""
    words = ["run", "--lease", "bench", "--url", url, "--lease-duration", "2", "--", "sleep", "60"]
    process = subprocess.Popen([COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while "acquired" not in process.stderr.readline():
        assert process.poll() is None
    standby, store = contender(url, lease_duration=2), SqlStore(configure(name="bench", url=url))
    try:
        for each in tree(process.pid):
            os.kill(each.pid, signal.SIGSTOP)
        seen = store.read("bench").record
        assert seen and seen.stamp
        return standby.acquire() / 1000 - seen.stamp / 1000
    finally:
        kill(tree(process.pid))
        process.wait(10)
        standby.release()
        for closing in (standby, store):
            closing.close()


def main(rounds: int) -> int:
    with running_postgres() as url:
        with psycopg2.connect(url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE durable AS SELECT clock_timestamp() AS at")
        connection.close()
        ways = {
            "release to grant": released,
            "advisory lock": unlocked,
            "the same and a durable commit": lambda url: unlocked(url, then=COMMIT),
        }
        if coordination:
            ways["tooz"] = unlocked_by_tooz
        timed = [[way(url) for way in ways.values()] for _ in range(rounds)]
        blocks = through_blocks(url, rounds)
        late = [frozen(url) for _ in range(max(rounds // 5, 3))]
    medians = dict(zip(ways, map(statistics.median, zip(*timed, strict=True)), strict=True))
    ours, *theirs = medians.items()
    rows = [(f"{what}, ms", value * 1000, float("inf"), "ms") for what, value in medians.items()]
    rows += [(f"ratio to {what}", ours[1] / value, 2.0, "") for what, value in theirs]
    rows += [
        ("from block to block", blocks * 1000, 15.0, "ms"),
        ("frozen holder: grant after the expiry", statistics.median(late) * 1000, 50.0, "ms"),
        ("  at most", max(late) * 1000, float("inf"), "ms"),
    ]
    return report(f"HAND-OVER, {rounds} ROUNDS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 25))
