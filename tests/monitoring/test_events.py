"""In doubt, and certain again: by the policy on a virtual clock, and as a guarded block sees it."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from typing import Any

import pytest

from spark_lease import LeaseEvent, LeaseLost, StoreError, hold_lease
from spark_lease.errors import Loss
from spark_lease.monitoring.events import What, open_events
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.drivers import until
from tests.support.faults import lost_request
from tests.support.policy import Contender


@pytest.fixture
def master(clock: VirtualClock, store: MemoryStore) -> Contender:
    contender = Contender(clock, store)
    contender.lease.acquire()
    return contender


def test_a_lease_whose_renewal_is_overdue_is_in_doubt_until_one_succeeds(
    master: Contender, clock: VirtualClock
) -> None:
    lease = master.lease
    assert lease.wait_certain(0) == lease.epoch
    clock.advance(5.4)
    assert not lease.is_in_doubt
    clock.advance(0.2)  # retry_period is 5 s: nothing came
    assert lease.is_in_doubt
    assert lease.check() == lease.epoch
    master.store.plan(lost_request)
    with pytest.raises(StoreError):
        lease.renew()
    with pytest.raises(StoreError, match="in doubt for longer than 2 s: a renewal is overdue"):
        lease.wait_certain(2)
    lease.renew()
    assert not lease.is_in_doubt
    assert lease.wait_certain(0) == lease.epoch


def test_an_on_event_that_exits_is_told_of_the_loss_all_the_same(url: str) -> None:
    told: list[What] = []

    def on_event(event: LeaseEvent) -> None:
        told.append(event.what)
        raise SystemExit("no more")

    with pytest.raises(LeaseLost), hold_lease("n", url=url, on_event=on_event, on_lost="stop") as lease:
        lease._hold.lose(Loss.TAKEN)
        time.sleep(20)
    until(lambda: What.LOST in told)


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_program_that_ends_right_after_its_block_has_told_of_the_end(url: str, keeper: str) -> None:
    told: list[What] = []

    def on_event(event: LeaseEvent) -> None:
        time.sleep(0.2)
        told.append(event.what)

    with hold_lease("n", url=url, on_event=on_event, keeper=keeper):
        pass
    assert told == [What.HELD, What.ENDED]


class Blocks(logging.Handler):
    """A terminal after Ctrl-S."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked, self.go = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if "certain" in record.getMessage() or "in doubt" in record.getMessage():
            self.blocked.set()
            self.go.wait(20)


def test_a_log_that_blocks_holds_up_no_look(clock: VirtualClock, master: Contender) -> None:
    told: list[LeaseEvent] = []
    events, handler = open_events(master.config, told.append), Blocks()
    logging.getLogger("spark_lease.monitoring.events").addHandler(handler)
    try:
        events.held(master.lease)
        clock.advance(5.6)
        events.look(master.lease)
        assert handler.blocked.wait(5)
        clock.advance(20)
        events.look(master.lease)  # returns: the next thing that the watching thread does is to find the loss
        assert master.lease.loss()
        handler.go.set()
        events.end()
        until(lambda: [str(each.what) for each in told][:2] == ["held", "in doubt"])
    finally:
        handler.go.set()
        logging.getLogger("spark_lease.monitoring.events").removeHandler(handler)


def test_a_warm_standby_is_told_of_before_the_grant(clock: VirtualClock, store: MemoryStore) -> None:
    told: list[LeaseEvent] = []
    contender = Contender(clock, store)
    events = open_events(contender.config, told.append)
    for state in ("warming up", "warm"):
        events.standby(contender.lease, state)
    contender.lease.acquire()
    events.held(contender.lease)
    events.end()
    until(lambda: [(str(each.what), each.detail) for each in told][2:] == [("held", "")])
    assert [(str(each.what), each.detail, each.epoch) for each in told[:2]] == [
        ("standby", "warming up", 0),
        ("standby", "warm", 0),
    ]


def test_waiting_for_certainty_ends_with_the_lease(master: Contender, clock: VirtualClock) -> None:
    clock.advance(6)
    with pytest.raises(LeaseLost):
        master.lease.wait_certain()
    assert not master.lease.is_in_doubt


@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_block_is_told_what_happens_to_its_lease(url: str, keeper: str, tmp_path: Any) -> None:
    told: list[LeaseEvent] = []

    def on_event(event: LeaseEvent) -> None:
        told.append(event)
        if event.what == "in doubt":
            raise ValueError("a callback that fails stops no other")

    database = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
    settings: dict[str, Any] = {"url": url, "lease_duration": 4, "keeper": keeper, "on_lost": "stop"}
    with pytest.raises(LeaseLost):
        with hold_lease("n", on_event=on_event, **settings) as lease:
            until(lambda: told)
            database.execute("BEGIN EXCLUSIVE")
            until(lambda: lease.is_in_doubt)
            waiting = threading.Thread(target=lease.wait_certain)
            waiting.start()
            until(lambda: [each.what for each in told] == ["held", "in doubt"])
            database.execute("ROLLBACK")
            waiting.join(3)
            assert not waiting.is_alive()
            until(lambda: [each.what for each in told] == ["held", "in doubt", "certain"])
            database.execute("BEGIN EXCLUSIVE")
            until(lambda: not lease.remaining())
            until(lambda: told[-1].what == "lost")
    database.close()
    until(lambda: told[-1].what == "lost")  # the block may end first
    assert [each.what for each in told] == ["held", "in doubt", "certain", "in doubt", "lost"]
    assert {each.epoch for each in told} == {lease.epoch}
    assert told[-1].detail.startswith("expired: not renewed within 2 s")
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("events of")])


@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_loss_that_is_found_while_the_block_is_left_is_told_once(url: str, keeper: str) -> None:
    told: list[LeaseEvent] = []
    with pytest.raises(LeaseLost, match="taken"):
        with hold_lease("n", on_event=told.append, url=url, lease_duration=4, keeper=keeper, on_lost="stop") as lease:
            lease._hold.lose(Loss.TAKEN, "held by another")  # and the watching thread has not looked yet
    until(lambda: not [each for each in threading.enumerate() if each.name.startswith("events of")])
    assert [(each.what, each.detail) for each in told] == [("held", ""), ("lost", "taken: held by another")]
