"""The loops: what they do once, on a virtual clock, and the threads around them, on the real one."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from spark_lease.clock import BootClock
from spark_lease.election import contender as policy
from spark_lease.election.keepalive import WATCH_PERIOD, Keepalive, renew_once, watch_once
from spark_lease.election.ports import Grant
from spark_lease.errors import LeaseLost, Loss
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.faults import lost_request, slow_answer
from tests.support.policy import Contender


@pytest.fixture
def master(clock: VirtualClock, store: MemoryStore) -> Contender:
    contender = Contender(clock, store)
    contender.lease.acquire()
    return contender


def test_the_next_renewal_is_sent_a_period_after_this_one_was(master: Contender, clock: VirtualClock) -> None:
    master.store.plan(slow_answer(2))
    assert renew_once(master.lease, master.config, clock) == 3.0


def test_a_failed_renewal_is_tried_again_sooner_and_says_what_is_left(
    master: Contender, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(5)
    master.store.plan(lost_request)
    with caplog.at_level(logging.WARNING):
        assert renew_once(master.lease, master.config, clock) == 1.0
    assert "nightly: renewal failed, 10.0 s left: lease store memory: the request was lost" in caplog.text


def test_an_outage_shorter_than_what_is_left_costs_nothing(master: Contender, clock: VirtualClock) -> None:
    clock.advance(5)
    master.store.plan(*[lost_request] * 9)
    for _ in range(10):
        pause = renew_once(master.lease, master.config, clock)
        assert pause is not None
        clock.advance(pause)
    assert master.lease.check()


def test_there_is_nothing_to_renew_after_a_loss(master: Contender, clock: VirtualClock) -> None:
    master.lease.lose(Loss.ORPHANED)
    assert renew_once(master.lease, master.config, clock) is None


def test_the_watch_finds_the_deadline_and_vital_signs(master: Contender, clock: VirtualClock) -> None:
    assert watch_once(master.lease, [lambda: None]) is None
    lost = watch_once(master.lease, [lambda: (Loss.ORPHANED, "nobody waits")])
    assert lost is not None
    assert (lost.reason, lost.detail) == (Loss.ORPHANED, "nobody waits")


def test_a_vital_sign_that_fails_does_not_end_the_watch(master: Contender, clock: VirtualClock) -> None:
    def broken() -> Any:
        raise OSError("no /proc")

    assert watch_once(master.lease, [broken]) is None
    clock.advance(15)
    lost = watch_once(master.lease, [broken])
    assert lost is not None
    assert lost.reason is Loss.EXPIRED


class HangingLocker:
    """A locker whose renewal hangs until the test ends: what a thread sees of a frozen store."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    def try_acquire(self) -> Grant:
        return Grant(7)

    def renew(self) -> Grant:
        self.asked.set()
        self.go.wait(30)
        return Grant(7)

    def release(self) -> bool:
        return True

    def wait(self, timeout: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def hanging() -> Any:
    locker = HangingLocker()
    yield locker
    locker.go.set()


def test_the_watching_thread_demotes_on_time_while_the_store_hangs(hanging: HangingLocker) -> None:
    from spark_lease.config.sources import configure

    config = configure(name="n", lease_duration=3)
    clock = BootClock()
    lease = policy.Contender(hanging, config, holder="h", clock=clock)
    lost: list[tuple[LeaseLost, float]] = []
    told = threading.Event()

    def on_lost(error: LeaseLost) -> None:
        lost.append((error, clock.now()))
        told.set()

    sent = clock.now()
    lease.acquire()
    keepalive = Keepalive(lease, config, clock=clock, on_lost=on_lost)
    keepalive.start()
    assert told.wait(10)
    assert hanging.asked.is_set()
    error, at = lost[0]
    assert error.reason is Loss.EXPIRED
    assert at - sent >= config.renew_deadline
    assert at < lease.stop_by(), f"told after {at - sent:.2f} s"
    assert not keepalive.stop()
    with pytest.raises(LeaseLost):
        lease.check()
    hanging.go.set()  # the late answer
    keepalive._renewer.join(5)
    with pytest.raises(LeaseLost):
        lease.check()


def test_without_a_thread_to_be_had_the_watching_one_demotes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pids cgroup: what would have stopped Spark cannot be started, and the lease is lost all the same."""
    from spark_lease.config.sources import configure
    from spark_lease.guard.block import Guard

    guard = Guard(configure(name="n", enabled=False, on_lost="stop"))
    with pytest.raises(LeaseLost), guard as lease:
        ended = threading.Event()
        monkeypatch.setattr(threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("no thread")))
        lease._hold.lose(Loss.ORPHANED)
        ended.wait(10)
        raise AssertionError("the block was not ended")


def test_a_clean_stop_ends_both_threads_and_tells_nobody() -> None:
    from spark_lease.config.sources import configure
    from spark_lease.holds import open_contender

    config = configure(name="n", enabled=False, lease_duration=3)
    lost: list[LeaseLost] = []
    lease = open_contender(config, BootClock())
    lease.acquire()
    keepalive = Keepalive(lease, config, clock=BootClock(), on_lost=lost.append)
    keepalive.start()
    assert keepalive.stop()
    assert not keepalive._watcher.is_alive()
    assert lost == []
    assert WATCH_PERIOD < 1
