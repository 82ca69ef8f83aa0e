"""How fast a standby takes over on PostgreSQL: after a clean release, and from a holder that is frozen.

    python -m tests.benchmarks.handover [ROUNDS]

The yardstick for a release is a blocking advisory lock, which is all that a session lock can do: one waits inside the
server, the other unlocks. Rounds are interleaved. A holder is frozen by SIGSTOP, with all that it started; the standby
is late by the time from the expiry that is stored to its grant, both by the server's clock.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg2

from spark_lease.clock import BootClock
from spark_lease.config import configure
from spark_lease.lease import Contender, open_contender
from spark_lease.lockers.sql import SqlStore
from spark_lease.processes import kill, tree
from tests.benchmarks.table import report
from tests.services.postgres import running_postgres

COMMAND = str(Path(sys.executable).with_name("spark-lease"))
SETTLE = 0.15
"""Seconds in which the one that waits has begun to wait."""


def contender(url: str, **settings: object) -> Contender:
    return open_contender(configure(name="bench", url=url, create_table="true", **settings), BootClock())


def released(url: str) -> float:
    """Seconds from the beginning of a release to the grant."""
    holder, standby = contender(url), contender(url)
    holder.acquire()
    granted: list[float] = []
    waiting = threading.Thread(target=lambda: (standby.acquire(), granted.append(time.monotonic())))
    waiting.start()
    time.sleep(SETTLE)
    start = time.monotonic()
    holder.release()
    waiting.join(30)
    standby.release()
    for each in (holder, standby):
        each.close()
    return granted[0] - start


def unlocked(url: str) -> float:
    """Seconds from the beginning of an unlock to the end of a lock that waited for it."""
    holder, standby = psycopg2.connect(url), psycopg2.connect(url)
    for each in (holder, standby):
        each.autocommit = True
    taken: list[float] = []
    with holder.cursor() as one, standby.cursor() as other:
        one.execute("SELECT pg_advisory_lock(42)")
        waiting = threading.Thread(
            target=lambda: (other.execute("SELECT pg_advisory_lock(42)"), taken.append(time.monotonic()))
        )
        waiting.start()
        time.sleep(SETTLE)
        start = time.monotonic()
        one.execute("SELECT pg_advisory_unlock(42)")
        waiting.join(30)
    for each in (holder, standby):
        each.close()
    return taken[0] - start


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
        ours, theirs = zip(*((released(url), unlocked(url)) for _ in range(rounds)), strict=True)
        late = [frozen(url) for _ in range(max(rounds // 5, 3))]
    ratio = statistics.median(ours) / statistics.median(theirs)
    rows = [
        ("release to grant, ms", statistics.median(ours) * 1000, float("inf"), "ms"),
        ("unlock to lock, ms (advisory lock)", statistics.median(theirs) * 1000, float("inf"), "ms"),
        ("their ratio", ratio, 2.0, ""),
        ("frozen holder: grant after the expiry", statistics.median(late) * 1000, 50.0, "ms"),
        ("  at most", max(late) * 1000, float("inf"), "ms"),
    ]
    return report(f"HAND-OVER, {rounds} ROUNDS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 25))
