"""What a standby sees of a holder's end, with spark_lease and with other ways to let only one of two work.

    make bench-peers                    five rounds (ten minutes); ROUNDS=1 for a look

Each holder and each standby is a process of its own, with a lease of three seconds where the peer knows leases. Faults:
the holder lets go, is killed, is frozen with all that it started and thawed after the take-over, or loses its session.
For each fault: how long until the standby holds it, and whether the former holder still believes half a second later
that it does. A holder that loses its session and keeps the lease is right to: then the standby gets nothing. Rounds
are interleaved, figures are medians.
"""

from __future__ import annotations

import fcntl
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg2

from spark_lease.system.processes import kill, tree
from tests.services.postgres import running_postgres

PYTHON = Path(__file__).parents[2] / ".venv-peers" / "bin" / "python"
LEASE, PATIENCE, LATER = 3.0, 12.0, 0.5
"""Seconds: of a lease; that a standby waits after a fault; after which a former holder is asked what it believes."""


class Held(NamedTuple):
    """What a worker has: does it believe that it holds the lock, by what its library tells; and how to let go."""

    believes: Callable[[], bool]
    release: Callable[[], object]


def flock(url: str, folder: str) -> Held:
    file = open(f"{folder}/flock", "w")  # noqa: SIM115 (held open as long as the lock)
    fcntl.flock(file, fcntl.LOCK_EX)
    return Held(lambda: True, file.close)


def advisory_lock(url: str, folder: str) -> Held:
    session = psycopg2.connect(url)
    session.autocommit = True
    session.cursor().execute("SELECT pg_advisory_lock(7)")
    return Held(lambda: not session.closed, session.close)


def tooz(url: str, folder: str) -> Held:
    from tooz import coordination

    coordinator = coordination.get_coordinator(url.replace("postgresql+psycopg2", "postgresql"), b"bench")
    coordinator.start(start_heart=True)
    lock = coordinator.get_lock(b"bench")
    lock.acquire()
    return Held(lambda: lock.acquired, lock.release)


def sqlalchemy_dlock(url: str, folder: str) -> Held:
    from sqlalchemy import create_engine
    from sqlalchemy_dlock import create_sadlock

    connection = create_engine(url.replace("postgresql://", "postgresql+psycopg2://")).connect()
    lock = create_sadlock(connection, "bench")
    lock.acquire()
    return Held(lambda: lock.locked, lock.release)


def filelock_lease(url: str, folder: str) -> Held:
    from filelock import SoftFileLease

    lock = SoftFileLease(f"{folder}/lease", lease_duration=LEASE, heartbeat_interval=LEASE / 3)
    lock.acquire()
    return Held(lambda: lock.is_lock_held_by_us and not lock.compromise, lock.release)


def spark_lease(url: str, folder: str) -> Held:
    from spark_lease import LeaseLost, hold_lease

    block = hold_lease("bench", url=url, lease_duration=LEASE)
    lease = block.__enter__()

    def believes() -> bool:
        try:
            return bool(lease.check())
        except LeaseLost:
            return False

    return Held(believes, lambda: block.__exit__(None, None, None))


PEERS: dict[str, Callable[[str, str], Held]] = {
    "spark_lease": spark_lease,
    "advisory lock": advisory_lock,
    "tooz": tooz,
    "sqlalchemy-dlock": sqlalchemy_dlock,
    "filelock lease": filelock_lease,
    "flock": flock,
}


def work(peer: str, url: str, folder: str) -> None:
    """A contender: says `waits`, `holds`, and each change of what it believes; lets go when it is told to."""
    print("waits", flush=True)
    held = PEERS[peer](url, folder)
    print("holds", flush=True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    believed = True
    while not told.wait(0.01):
        if held.believes() != believed:
            believed = not believed
            print("believes" if believed else "knows", flush=True)
    held.release()
    print("let go", flush=True)


class Contender:
    """A worker's process, and when it said what."""

    def __init__(self, peer: str, url: str, folder: str) -> None:
        words = [str(PYTHON), "-m", "tests.benchmarks.peers", "work", peer, url, folder]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, float] = {}
        self._more = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._more:
                self.said[line.strip()] = time.monotonic()
                self._more.notify_all()

    def when(self, word: str, patience: float) -> float | None:
        with self._more:
            self._more.wait_for(lambda: word in self.said, patience)
            return self.said.get(word)

    def let_go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def everything(self) -> list[int]:
        return [each.pid for each in tree(self.process.pid)]

    def belief(self) -> str:
        if self.process.poll() is not None:
            return "has ended"
        return "knows" if "knows" in self.said else "believes it holds"

    def end(self) -> None:
        for pid in self.everything():
            signal_to(pid, signal.SIGCONT)
        kill(tree(self.process.pid))
        self.process.wait()


def signal_to(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def sessions(url: str) -> set[int]:
    session = psycopg2.connect(url)
    with session.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        found = {pid for (pid,) in cursor.fetchall()}
    session.close()
    return found


def fault_release(holder: Contender, url: str, mine: set[int]) -> None:
    holder.let_go()


def fault_kill(holder: Contender, url: str, mine: set[int]) -> None:
    os.kill(holder.process.pid, signal.SIGKILL)


def fault_freeze(holder: Contender, url: str, mine: set[int]) -> None:
    for pid in holder.everything():
        signal_to(pid, signal.SIGSTOP)


def fault_cut(holder: Contender, url: str, mine: set[int]) -> None:
    session = psycopg2.connect(url)
    session.autocommit = True
    for pid in mine:
        session.cursor().execute("SELECT pg_terminate_backend(%s)", (pid,))
    session.close()


FAULTS = {"release": fault_release, "kill": fault_kill, "freeze": fault_freeze, "cut": fault_cut}


def measure(peer: str, fault: str, url: str) -> tuple[float | None, str]:
    """Seconds from the fault to the standby's grant (None: not in PATIENCE), and what the former holder believes."""
    with TemporaryDirectory() as folder:
        before = sessions(url)
        holder = standby = None
        try:
            holder = Contender(peer, url, folder)
            assert holder.when("holds", 30), f"{peer} did not begin"
            mine = sessions(url) - before
            standby = Contender(peer, url, folder)
            assert standby.when("waits", 30)
            time.sleep(1)  # until it waits, inside whatever its library does
            start = time.monotonic()
            FAULTS[fault](holder, url, mine)
            taken = standby.when("holds", PATIENCE)
            for pid in holder.everything() if fault == "freeze" else []:
                signal_to(pid, signal.SIGCONT)
            time.sleep(LATER)
            return (taken - start if taken else None), holder.belief()
        finally:
            for each in filter(None, (holder, standby)):
                each.end()


def main(rounds: int) -> None:
    found: dict[tuple[str, str], list[tuple[float | None, str]]] = {}
    with running_postgres() as url:
        psycopg = url.replace("postgresql+psycopg2://", "postgresql://")
        subprocess.run([PYTHON.with_name("spark-lease"), "init", "--url", psycopg], check=True)
        for number in range(rounds):
            for peer in PEERS:
                for fault in FAULTS:
                    if fault == "cut" and peer in ("flock", "filelock lease"):
                        continue  # they have no session
                    print(f"round {number + 1} of {rounds}: {peer}, {fault}", end="\r", file=sys.stderr)
                    found.setdefault((peer, fault), []).append(measure(peer, fault, psycopg))
    print(" " * 60, end="\r", file=sys.stderr)
    print(f"{'':18}" + "".join(f"{fault:34}" for fault in FAULTS))
    for peer in PEERS:
        print(f"{peer:18}" + "".join(f"{shown(found.get((peer, fault), []), fault):34}" for fault in FAULTS))


def shown(results: list[tuple[float | None, str]], fault: str) -> str:
    if not results:
        return "–"
    times = [took for took, _ in results if took is not None]
    took = f"{statistics.median(times):.3f} s" if times else f"not in {PATIENCE:g} s"
    if fault in ("release", "kill"):
        return took
    two = sum(belief == "believes it holds" for took, belief in results if took is not None)
    return f"{took}, two holders: {two} of {len(results)}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work(*sys.argv[2:5])
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 5)
