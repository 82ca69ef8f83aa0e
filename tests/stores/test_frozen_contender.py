"""A contender that is frozen after it took its lock, and before it wrote the record: a real process and a real SIGSTOP.

Whatever comes of it, there are never two masters. A server ends the session that went silent, and another contender is
master in time. A lock of the operating system stays where it is for as long as its process is frozen: nobody is master
until that is thawed or killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.ports import Denied, Grant
from spark_lease.holds import LocalHold, open_contender

SCRIPT = """
import os, signal, sys
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.errors import StoreError
from spark_lease.holds import open_contender

lease = open_contender(configure(**{settings!r}), BootClock())
store = lease._locker._store
swap = store.swap

def freeze(*words):
    store.swap = swap
    os.kill(os.getpid(), signal.SIGSTOP)
    return swap(*words)

store.swap = freeze
for _ in range(2):
    try:
        print(type(lease.try_acquire()).__name__, flush=True)
    except StoreError:
        print("too late", flush=True)
sys.stdin.readline()
"""


class Frozen:
    """Stopped between its lock and its write; `thaw` says what became of two tries."""

    def __init__(self, settings: dict[str, Any]) -> None:
        script = textwrap.dedent(SCRIPT.format(settings=settings))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", script], text=True, **pipes)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> list[str]:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdout
        return [self.process.stdout.readline().strip() for _ in range(2)]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
        "sqlite",
        "file",
    ]
)
def settings(request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str) -> dict[str, Any]:
    locker = "lease" if request.param == "file" else "database"  # a folder always has its lock
    found = {"name": "n", "url": url_of(request.param), "table": table, "locker": locker, "create_table": "true"}
    return found | {"lease_duration": 4, "poll_period": 0.1}


@pytest.fixture
def frozen(settings: dict[str, Any]) -> Iterator[Frozen]:
    first = open_contender(configure(**settings), BootClock())
    first.acquire()  # so that the table is there
    first.release()
    first.close()
    found = Frozen(settings)
    yield found
    found.kill()


@pytest.fixture
def other(settings: dict[str, Any]) -> Iterator[LocalHold]:
    found = open_contender(configure(**settings), BootClock())
    yield found
    found.close()


@pytest.mark.parametrize("settings", ["sqlite", "file"], indirect=True)
def test_a_frozen_contender_keeps_its_file_locked_until_it_is_thawed(frozen: Frozen, other: LocalHold) -> None:
    clock = BootClock()
    end = clock.now() + 5  # longer than a lease
    while clock.now() < end:
        assert isinstance(other.try_acquire(), Denied)
        time.sleep(0.05)  # nothing to wait for: it is to stay locked
    assert frozen.thaw() == ["too late", "Grant"]  # what it wrote so late is still its own
    assert isinstance(other.try_acquire(), Denied)


@pytest.mark.parametrize("settings", ["sqlite", "file"], indirect=True)
def test_a_frozen_contender_that_is_killed_leaves_its_lock(frozen: Frozen, other: LocalHold) -> None:
    assert isinstance(other.try_acquire(), Denied)
    frozen.kill()
    assert isinstance(other.try_acquire(), Grant)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)
def test_the_session_of_a_frozen_contender_is_ended_and_what_it_writes_then_is_refused(
    frozen: Frozen, other: LocalHold
) -> None:
    assert isinstance(other.try_acquire(), Denied)
    epoch = other.acquire()
    assert frozen.thaw() == ["Denied", "Denied"]
    other.renew()
    assert other.check() == epoch
