"""How a hold begins and ends where something hangs or fails: never released too early, nor renewed for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_lease.clock import BootClock
from spark_lease.election.keepalive import Keepalive
from spark_lease.election.lifecycle import abandon, begin_hold, end_hold
from spark_lease.errors import Loss
from spark_lease.testing import MemoryStore
from tests.support.policy import NAME, Contender


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def begun(store: MemoryStore, clock: Any) -> tuple[Contender, Keepalive]:
    master = Contender(clock, store, lease_duration=6)
    keepalive = Keepalive(master.lease, master.config, clock=clock, on_lost=lambda lost: None)
    begin_hold(master.lease, keepalive)
    return master, keepalive


def renewing() -> bool:
    return f"renew {NAME}" in {thread.name for thread in threading.enumerate()}


class Unseen:
    """Work that cannot be looked at: no more descriptors, say."""

    def wait_until_over(self, until: float) -> bool:
        raise OSError("too many open files")

    def kill(self) -> None:
        pass


def test_work_that_cannot_be_looked_at_is_not_renewed_for_and_not_released() -> None:
    clock: Any = BootClock()
    store = MemoryStore(clock)
    master, keepalive = begun(store, clock)
    assert renewing()
    with pytest.raises(OSError, match="open files"):
        end_hold(master.lease, keepalive, Unseen(), clock=clock, stop_budget=0.1, dying=0.1)
    assert not renewing()
    assert master.record.holder == master.lease.holder


class Ends:
    """Work that ends when it is told to, or never."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends

    def wait_until_over(self, until: float) -> bool:
        return self._ends

    def kill(self) -> None:
        pass


@pytest.mark.parametrize(
    ("why", "ends", "is_proven", "is_free"),
    [
        (Loss.PREEMPTED, True, True, True),
        (Loss.PREEMPTED, True, False, False),
        (Loss.PREEMPTED, False, True, False),
        (Loss.SPARK_GONE, True, True, False),
        (Loss.EXPIRED, True, True, False),
    ],
)
def test_what_an_operator_took_is_given_back_once_the_work_is_proven_over(
    why: Loss, ends: bool, is_proven: bool, is_free: bool
) -> None:
    clock: Any = BootClock()
    master, keepalive = begun(MemoryStore(clock), clock)
    master.lease.lose(why)
    budgets = {"stop_budget": 0.05, "dying": 0.05}
    lost = end_hold(master.lease, keepalive, Ends(ends=ends), clock=clock, **budgets, is_proven=lambda: is_proven)
    assert lost and lost.reason is why
    assert (master.record.holder is None) == is_free == (master.lease.released_at > 0)


def test_a_hold_is_not_given_back_while_a_request_is_under_way(hanging: threading.Event) -> None:
    clock: Any = BootClock()
    store, asked = MemoryStore(clock), threading.Event()

    def hang(call: Callable[[], Any], _: object) -> Any:
        asked.set()
        hanging.wait(30)
        return call()

    store.plan(None, None, hang)  # read and take are answered, the first renewal is not
    master, keepalive = begun(store, clock)
    assert asked.wait(10)
    abandon(master.lease, keepalive)
    assert master.record.holder == master.lease.holder
    assert store.calls == ["read", "swap", "swap"]
