"""The policy, on a virtual clock: no thread, no sleep."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spark_lease.election.contender import Waits
from spark_lease.election.ports import Denied, Grant
from spark_lease.election.record import FORCED, forced, new_holder
from spark_lease.errors import LeaseHeldByOther, LeaseLost, Loss, RecordUnreadable, StoreError
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.faults import lost_answer, lost_request, meanwhile, slow_answer, slow_request
from tests.support.policy import NAME, Contender


@pytest.fixture
def master(clock: VirtualClock, store: MemoryStore) -> Contender:
    contender = Contender(clock, store)
    contender.lease.acquire()
    return contender


@pytest.fixture
def standby(clock: VirtualClock, store: MemoryStore) -> Contender:
    return Contender(clock, store.peer(), "b")


def reason_of(contender: Contender) -> Loss:
    with pytest.raises(LeaseLost) as raised:
        contender.lease.check()
    return raised.value.reason


# Taking it


def test_a_standby_says_why_it_waits_when_that_changes_and_every_ten_minutes(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    waits = Waits()
    for why, seconds in (("a", 300), ("a", 300), ("a", 1), ("b", 600), ("b", 0)):
        waits.say(clock.now(), why, "%s", f"{why} {clock.now():.0f}")
        clock.advance(seconds)
    begin = float(caplog.records[0].message.split()[1])
    said = [(each.levelname, each.message[0], float(each.message.split()[1]) - begin) for each in caplog.records]
    assert said == [("WARNING", "a", 0), ("WARNING", "a", 600), ("WARNING", "b", 601), ("WARNING", "b", 1201)]


def test_check_answers_with_the_epoch_of_the_grant(master: Contender) -> None:
    assert master.lease.check() == master.lease.epoch == master.record.epoch
    assert master.lease.remaining() == 15.0


@pytest.mark.shows("P1")
def test_after_a_jump_of_the_wall_clock_nothing_is_answered_before_a_renewal(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    """A virtual machine was paused, and this clock stood still with it."""
    assert master.lease.check()
    clock.jumped = 0.9  # NTP
    assert master.lease.check()
    clock.jumped = 40.0
    clock.at(clock.now() + 2, master.lease.renew)
    begun = clock.now()
    assert master.lease.check() == master.lease.epoch
    assert clock.now() - begun >= 2


@pytest.mark.shows("P1")
def test_a_lease_that_was_taken_during_a_pause_is_never_answered_for(master: Contender, clock: VirtualClock) -> None:
    clock.jumped = 40.0
    clock.at(clock.now() + 2, lambda: master.lease.lose(Loss.TAKEN, "held by another"))
    with pytest.raises(LeaseLost):
        master.lease.check()
    assert clock.now() < 1000.0 + 2 + 0.1


def test_small_jumps_between_two_renewals_add_up(master: Contender, clock: VirtualClock) -> None:
    for _ in range(2):
        clock.jumped += 0.6
        master.lease.renew()
        assert master.lease.check()
    clock.jumped += 0.6
    assert master.lease.check()
    clock.jumped += 0.6
    with pytest.raises(LeaseLost, match="not renewed within"):
        master.lease.check()  # nothing renews it


def test_nobody_else_gets_it_before_it_has_run_out_by_the_stores_clock(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    clock.advance(29.9)
    assert isinstance(standby.lease.try_acquire(), Denied)
    clock.advance(0.2)
    assert isinstance(standby.lease.try_acquire(), Grant)


@pytest.mark.parametrize("offset", [-2e8, 0.0, 3e9])
def test_the_contenders_clock_decides_nothing_about_others(clock: VirtualClock, offset: float) -> None:
    store = MemoryStore(clock, offset=offset)
    Contender(clock, store).lease.acquire()
    other = Contender(clock, store.peer(), "b")
    assert isinstance(other.lease.try_acquire(), Denied)
    clock.advance(31)
    assert isinstance(other.lease.try_acquire(), Grant)


def test_the_stored_duration_counts_and_not_the_contenders_own(clock: VirtualClock, store: MemoryStore) -> None:
    Contender(clock, store, lease_duration=60).lease.acquire()
    hasty = Contender(clock, store.peer(), "b", lease_duration=3)
    clock.advance(59)
    assert isinstance(hasty.lease.try_acquire(), Denied)


def test_without_a_stores_clock_a_record_must_stand_still_for_its_own_duration(clock: VirtualClock) -> None:
    store = MemoryStore(clock, has_clock=False)
    master = Contender(clock, store, lease_duration=60)
    master.lease.acquire()
    standby = Contender(clock, store.peer(), "b", lease_duration=6)
    for _ in range(20):
        clock.advance(25)
        master.lease.renew()
        assert isinstance(standby.lease.try_acquire(), Denied)
    clock.advance(59)
    assert isinstance(standby.lease.try_acquire(), Denied)
    clock.advance(1)
    assert isinstance(standby.lease.try_acquire(), Grant)


@pytest.mark.shows("P6")
@pytest.mark.parametrize("settings", [{}, {"if_held": "skip"}], ids=str)
def test_a_stores_clock_that_was_set_back_is_not_waited_for(
    clock: VirtualClock, store: MemoryStore, settings: dict[str, Any]
) -> None:
    Contender(clock, store).lease.acquire()
    standby = Contender(clock, store.peer(), "b", **settings)
    standby.store.offset -= 3600
    begun = clock.now()
    assert standby.lease.acquire()
    assert 30 <= clock.now() - begun <= 32


@pytest.mark.shows("P1")
def test_after_its_clock_was_set_back_a_lease_that_is_renewed_is_not_taken(
    clock: VirtualClock, store: MemoryStore
) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer(), "b")
    master.lease.acquire()
    for _ in range(10):
        for contender in (master, standby):
            contender.store.offset -= 40
        for _ in range(2):
            assert isinstance(standby.lease.try_acquire(), Denied)
            clock.advance(7)
            assert isinstance(standby.lease.try_acquire(), Denied)
        master.lease.renew()


def test_a_broker_is_not_judged_by_the_duration_of_the_contender_before_it(
    clock: VirtualClock, store: MemoryStore
) -> None:
    former, standby = Contender(clock, store), Contender(clock, store.peer(), "b")
    former.lease.acquire()
    former.lease.release()
    free = store.records[NAME]
    store.records[NAME] = replace(free, holder="broker", stamp=round((clock.now() + store.offset + 300) * 1000))
    for _ in range(9):
        assert isinstance(standby.lease.try_acquire(), Denied)
        clock.advance(33)
    clock.advance(4)
    assert isinstance(standby.lease.try_acquire(), Grant)


def test_without_a_stores_clock_standing_still_counts_from_after_the_answer(clock: VirtualClock) -> None:
    store = MemoryStore(clock, has_clock=False)
    Contender(clock, store).lease.acquire()
    standby = Contender(clock, store.peer(), "b")
    standby.store.plan(slow_answer(20))
    assert standby.lease.try_acquire() == Denied(store.records[NAME].holder, 30.0, may_be_over=True)


@pytest.mark.parametrize("settings", [{"if_held": "skip"}, {"acquire_timeout": 0.0}, {"acquire_timeout": 5.0}], ids=str)
def test_without_a_stores_clock_a_dead_masters_lease_is_taken_by_who_asks_once(
    clock: VirtualClock, settings: dict[str, Any]
) -> None:
    """Each day's run that was refused at its first look left the lease to a master that had died long ago."""
    store = MemoryStore(clock, has_clock=False)
    Contender(clock, store).lease.acquire()
    clock.advance(24 * 3600)
    begun = clock.now()
    assert Contender(clock, store.peer(), "b", **settings).lease.acquire()
    assert 30 <= clock.now() - begun <= 32


def test_without_a_stores_clock_who_asks_once_is_refused_at_the_next_renewal(clock: VirtualClock) -> None:
    store = MemoryStore(clock, has_clock=False)
    master = Contender(clock, store)
    master.lease.acquire()
    standby = Contender(clock, store.peer(), "b", if_held="skip")
    begun = clock.now()
    standby.store.plan(slow_answer(0), slow_answer(0), meanwhile(master.lease.renew))
    with pytest.raises(LeaseHeldByOther) as refused:
        standby.lease.acquire()
    assert refused.value.holder == master.lease.holder
    assert clock.now() - begun < 5


def test_a_free_lease_that_cannot_be_written_is_a_store_that_fails_and_nobodys(clock: VirtualClock) -> None:
    store = MemoryStore(clock)
    contender = Contender(clock, store, acquire_timeout=3.0)
    contender.store.swap = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="our write did not take effect"):
        contender.lease.acquire()
    assert clock.now() > 0


class OneLock:
    """A lock beside the record that only one of its like has."""

    owner: OneLock | None = None

    def try_lock(self) -> bool:
        OneLock.owner = OneLock.owner or self
        return OneLock.owner is self

    def is_held(self) -> bool:
        return OneLock.owner is self

    def unlock(self) -> None:
        OneLock.owner = None if OneLock.owner is self else OneLock.owner

    close = unlock


def test_a_standby_that_cannot_write_keeps_no_lock_from_those_who_can(clock: VirtualClock) -> None:
    store = MemoryStore(clock)
    sick, sound = Contender(clock, store, lock=OneLock()), Contender(clock, store.peer(), "b", lock=OneLock())
    sick.store.plan(slow_answer(0), lost_request)
    with pytest.raises(StoreError):
        sick.lease.try_acquire()
    assert isinstance(sound.lease.try_acquire(), Grant)
    assert isinstance(sick.lease.try_acquire(), Denied)
    assert OneLock.owner is sound.lock


def test_of_two_that_look_at_once_one_is_told_no(clock: VirtualClock, store: MemoryStore) -> None:
    slow, quick = Contender(clock, store), Contender(clock, store.peer(), "b")
    slow.store.plan(meanwhile(quick.lease.acquire))
    answer = slow.lease.try_acquire()
    assert answer == Denied(quick.lease.holder, 30.0)
    assert quick.lease.check()


def test_a_contender_frozen_between_look_and_write_does_not_win(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    third = Contender(clock, master.store.peer(), "c")
    clock.advance(31)
    standby.store.plan(meanwhile(third.lease.acquire), slow_request(20))
    assert isinstance(standby.lease.try_acquire(), Denied)
    assert master.record.holder == third.lease.holder


def test_equal_labels_are_two_contenders(clock: VirtualClock, store: MemoryStore) -> None:
    first, second = Contender(clock, store, "paris"), Contender(clock, store.peer(), "paris")
    first.lease.acquire()
    assert isinstance(second.lease.try_acquire(), Denied)


def test_a_take_whose_answer_was_lost_is_found_again(clock: VirtualClock, store: MemoryStore) -> None:
    contender = Contender(clock, store)
    store.plan(None, lost_answer)
    with pytest.raises(StoreError):
        contender.lease.try_acquire()
    with pytest.raises(LeaseLost, match="not acquired yet"):
        contender.lease.check()
    clock.advance(4)
    assert isinstance(contender.lease.try_acquire(), Grant)
    assert contender.lease.remaining() == 15.0
    assert store.records[NAME].epoch == contender.lease.epoch


def test_a_grant_that_took_longer_than_the_deadline_is_asked_for_again(clock: VirtualClock, store: MemoryStore) -> None:
    contender = Contender(clock, store)
    store.plan(None, slow_answer(16))
    with pytest.raises(StoreError, match="took longer"):
        contender.lease.try_acquire()
    assert contender.lease.acquire()
    assert contender.lease.check()


# Waiting for it


def test_a_standby_takes_over_when_the_lease_runs_out(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    clock.advance(7.25)
    start = clock.now()
    assert standby.lease.acquire()
    assert clock.now() - start == pytest.approx(30 - 7.25, abs=0.002)


def test_a_standby_sees_a_release_within_one_poll(master: Contender, standby: Contender, clock: VirtualClock) -> None:
    clock.at(clock.now() + 3.4, master.lease.release)
    start = clock.now()
    assert standby.lease.acquire()
    assert clock.now() - start <= 3.4 + standby.config.poll_period


@pytest.mark.parametrize(("timeout", "waited"), [(0.0, 0.0), (4.5, 4.5)])
def test_waiting_ends_with_held_by_other(master: Contender, clock: VirtualClock, timeout: float, waited: float) -> None:
    standby = Contender(clock, master.store.peer(), "b", acquire_timeout=timeout)
    start = clock.now()
    with pytest.raises(LeaseHeldByOther) as raised:
        standby.lease.acquire()
    assert raised.value.holder == master.lease.holder
    assert clock.now() - start == pytest.approx(waited)


@pytest.mark.parametrize("if_held", ["skip", "fail"])
def test_who_does_not_want_to_wait_asks_once(master: Contender, clock: VirtualClock, if_held: str) -> None:
    standby = Contender(clock, master.store.peer(), "b", if_held=if_held)
    with pytest.raises(LeaseHeldByOther):
        standby.lease.acquire()
    assert standby.store.calls == ["read"]


def test_a_store_that_is_down_never_looks_like_standby(clock: VirtualClock, store: MemoryStore) -> None:
    contender = Contender(clock, store, acquire_timeout=10)
    store.plan(*[lost_request] * 100)
    start = clock.now()
    with pytest.raises(StoreError) as raised:
        contender.lease.acquire()
    assert raised.value.exit_code == 69
    assert clock.now() - start == pytest.approx(10)


def test_a_store_that_comes_back_is_used(clock: VirtualClock, store: MemoryStore) -> None:
    store.plan(*[lost_request] * 5)
    assert Contender(clock, store, acquire_timeout=10).lease.acquire()


def test_who_skips_does_not_wait_for_ever_for_a_store_either(clock: VirtualClock, store: MemoryStore) -> None:
    contender = Contender(clock, store, if_held="skip")
    store.plan(*[lost_request] * 100)
    start = clock.now()
    with pytest.raises(StoreError):
        contender.lease.acquire()
    assert clock.now() - start == pytest.approx(contender.config.lease_duration)


def test_a_record_that_cannot_be_read_ends_the_wait_at_once(clock: VirtualClock, store: MemoryStore) -> None:
    def garbage(call: object, clock: object) -> None:
        raise RecordUnreadable("memory", "row NAME='nightly' has EPOCH=-1")

    store.plan(garbage)
    with pytest.raises(RecordUnreadable):
        Contender(clock, store).lease.acquire()
    assert store.calls == ["read"]


def test_what_is_not_wanted_any_more_stops_waiting(master: Contender, standby: Contender) -> None:
    def still_wanted() -> None:
        if len(standby.store.calls) == 3:
            raise LeaseLost(NAME, 0, Loss.ORPHANED)

    with pytest.raises(LeaseLost):
        standby.lease.acquire(still_wanted=still_wanted)


# Keeping it


def test_the_deadline_counts_from_before_the_request(master: Contender, clock: VirtualClock) -> None:
    clock.advance(5)
    master.store.plan(slow_request(4))
    master.lease.renew()
    assert master.lease.remaining() == 11.0


def test_without_a_renewal_check_raises_at_the_deadline_and_for_good(master: Contender, clock: VirtualClock) -> None:
    clock.advance(14.999)
    assert master.lease.check()
    clock.advance(0.001)
    assert reason_of(master) is Loss.EXPIRED
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert master.store.calls == ["read", "swap"]


def test_a_lost_answer_to_a_renewal_is_adopted(master: Contender, clock: VirtualClock) -> None:
    clock.advance(5)
    master.store.plan(lost_answer)
    with pytest.raises(StoreError):
        master.lease.renew()
    assert master.lease.remaining() == 10.0  # nobody knows, so nothing is gained
    clock.advance(5)
    master.lease.renew()
    assert master.lease.remaining() == 15.0
    assert master.lease.check() == master.record.epoch


def test_a_lost_request_leaves_the_deadline_where_it_is(master: Contender, clock: VirtualClock) -> None:
    clock.advance(5)
    master.store.plan(lost_request)
    with pytest.raises(StoreError):
        master.lease.renew()
    assert master.lease.remaining() == 10.0
    master.lease.renew()
    assert master.lease.remaining() == 15.0


def test_an_answer_after_the_deadline_is_dropped(master: Contender, clock: VirtualClock) -> None:
    clock.advance(14)
    master.store.plan(slow_answer(2))
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert reason_of(master) is Loss.EXPIRED


@pytest.mark.parametrize("frozen_for", [16, 29, 31, 3600])
def test_who_was_frozen_at_a_renewal_wakes_up_without_the_lease(
    master: Contender, standby: Contender, clock: VirtualClock, frozen_for: float
) -> None:
    clock.advance(5)
    master.store.plan(slow_request(frozen_for))
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert master.lease.remaining() == 0.0


def test_an_answer_after_demotion_is_dropped(master: Contender) -> None:
    master.store.plan(meanwhile(lambda: master.lease.lose(Loss.ORPHANED)))
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert reason_of(master) is Loss.ORPHANED


def test_an_answer_after_the_release_is_dropped(master: Contender) -> None:
    master.store.plan(meanwhile(master.lease.release))
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert reason_of(master) is Loss.RELEASED
    assert master.record.holder is None


def test_a_renewal_that_lands_after_the_release_changes_nothing(master: Contender, standby: Contender) -> None:
    def late(call: object, clock: object) -> object:
        master.lease.release()
        standby.lease.acquire()
        return call()  # type: ignore[operator]

    master.store.plan(late)
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert master.record.holder == standby.lease.holder
    assert standby.lease.check()


def test_a_row_that_another_has_taken_is_lost_at_once(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    del master.store.records[NAME]
    standby.lease.acquire()
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert reason_of(master) is Loss.TAKEN
    assert master.lease.stop_by() == clock.now()
    assert master.record.holder == standby.lease.holder


@pytest.mark.parametrize("whose", ["mine", "the next one's"])
def test_only_one_whose_own_grant_was_taken_by_force_has_time_to_be_polite(
    master: Contender, standby: Contender, clock: VirtualClock, whose: str
) -> None:
    """The record stays taken until my grant would have run out. But of another's grant it says nothing of mine."""
    stop_by = clock.now() + master.config.stop_budget
    if whose != "mine":
        master.store.records[NAME] = replace(master.record, holder=None)  # it has lost my grant
        standby.lease.acquire()
    by = new_holder(f"{FORCED}:alice")
    left = master.store.read(NAME).expires_in or 0.0
    master.store.swap(NAME, master.record, forced(master.record, by=by, left=left))
    with pytest.raises(LeaseLost, match="alice took it by force"):
        master.lease.renew()
    assert reason_of(master) is Loss.TAKEN
    assert master.lease.stop_by() == (stop_by if whose == "mine" else clock.now())


def test_a_row_that_is_gone_is_lost_and_not_made_again(master: Contender) -> None:
    del master.store.records[NAME]
    with pytest.raises(LeaseLost):
        master.lease.renew()
    assert reason_of(master) is Loss.TAKEN
    assert NAME not in master.store.records


def test_a_row_that_cannot_be_read_is_lost_at_once(master: Contender) -> None:
    def garbage(call: object, clock: object) -> None:
        raise RecordUnreadable("memory", "the table is gone")

    master.store.plan(garbage)
    with pytest.raises(LeaseLost, match="the table is gone"):
        master.lease.renew()
    assert reason_of(master) is Loss.UNREADABLE


def test_a_holder_stops_before_anyone_else_may_start(
    master: Contender, standby: Contender, clock: VirtualClock
) -> None:
    clock.advance(12)
    master.lease.renew()
    master.store.plan(*[lost_answer] * 3)
    for _ in range(3):  # each of these does move the store's expiry, and none moves my deadline
        clock.advance(4)
        with pytest.raises(StoreError):
            master.lease.renew()
    stop_by = master.lease.stop_by()
    standby.lease.acquire()
    assert clock.now() >= stop_by + (30 - 15 - 10)


# Giving it back


def test_a_release_frees_it_at_once_with_the_epoch_kept(master: Contender, standby: Contender) -> None:
    assert master.lease.release()
    assert reason_of(master) is Loss.RELEASED
    assert isinstance(standby.lease.try_acquire(), Grant)


def test_a_release_after_a_lost_renewal_still_frees_it(master: Contender) -> None:
    master.store.plan(lost_answer)
    with pytest.raises(StoreError):
        master.lease.renew()
    assert master.lease.release()
    assert master.record.holder is None


def test_a_stale_release_touches_nothing(master: Contender, standby: Contender, clock: VirtualClock) -> None:
    clock.advance(31)
    standby.lease.acquire()
    before = standby.record
    assert not master.lease.release()
    assert standby.record == before


def test_releasing_frees_a_take_whose_answer_was_lost(clock: VirtualClock, store: MemoryStore) -> None:
    contender = Contender(clock, store, acquire_timeout=0)
    store.plan(None, lost_answer)
    with pytest.raises(StoreError):
        contender.lease.acquire()
    assert contender.lease.release()
    assert store.records[NAME].holder is None


def test_a_release_is_asked_of_nobody_if_the_lease_was_never_asked_for(clock: VirtualClock, store: MemoryStore) -> None:
    assert not Contender(clock, store).lease.release()
    assert store.calls == []


def test_who_was_told_no_has_nothing_to_give_back(
    clock: VirtualClock, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    slow, quick = Contender(clock, store, if_held="skip"), Contender(clock, store.peer(), "b")
    slow.store.plan(meanwhile(quick.lease.acquire), None, None, lost_request)
    with pytest.raises(LeaseHeldByOther):
        slow.lease.acquire()
    slow.lease.give_back()
    assert not caplog.records[1:], "the first one says who is master"
    assert quick.lease.check()


def test_a_grant_that_was_told_no_at_first_is_given_back(clock: VirtualClock, store: MemoryStore) -> None:
    """An object store hears a request for a second time, and the record is there already."""
    contender = Contender(clock, store)
    contender.store.plan(None, lambda call, clock: call() and None)
    contender.lease.acquire()
    assert contender.lease.release()
    assert store.records[NAME].holder is None


def test_a_no_after_a_lost_answer_does_not_make_up_for_it(clock: VirtualClock, store: MemoryStore) -> None:
    slow, quick = Contender(clock, store), Contender(clock, store.peer(), "b")
    late = list[Any]()
    slow.store.plan(None, lambda call, clock: late.append(call) or lost_request(call, clock))
    with pytest.raises(StoreError):
        slow.lease.try_acquire()
    slow.store.plan(meanwhile(quick.lease.acquire))
    assert isinstance(slow.lease.try_acquire(), Denied)
    quick.lease.release()
    store.records.clear()
    late[0]()  # what was sent first lands now
    assert slow.lease.release()
    assert store.records[NAME].holder is None


def test_epochs_only_grow(clock: VirtualClock, store: MemoryStore) -> None:
    epochs = []
    for turn in range(9):
        contender = Contender(clock, store, f"c{turn}")
        store.plan(*([None, lost_answer] if turn % 3 == 1 else []))
        epochs.append(contender.lease.acquire())
        if turn % 2:
            contender.lease.release()
        else:
            clock.advance(31)
    assert epochs == sorted(set(epochs))


def test_unguarded_work_has_epoch_zero_and_is_never_lost(clock: VirtualClock) -> None:
    from spark_lease.config.sources import configure
    from spark_lease.holds import open_contender

    lease = open_contender(configure(name="n", enabled=False), clock)
    assert lease.acquire() == 0
    clock.advance(5)
    lease.renew()
    assert lease.check() == 0
    clock.advance(3600)  # a laptop slept, a debugger stood still: there is nothing to be lost
    assert lease.check() == 0
    assert lease.remaining() == math.inf


class StuckLock:
    """One that cannot be given back."""

    def try_lock(self) -> bool:
        return True

    def is_held(self) -> bool:
        return True

    def unlock(self) -> None:
        raise StoreError("/share", "no answer within 5 s")

    def close(self) -> None: ...


def test_a_release_stands_although_its_lock_cannot_be_given_back(
    master: Contender, standby: Contender, caplog: pytest.LogCaptureFixture
) -> None:
    master.lease._locker._lock = StuckLock()  # type: ignore[attr-defined]
    with caplog.at_level("INFO", logger="spark_lease"):
        master.lease.give_back()
    assert (
        "nightly: released, but its lock stays until this process closes it: lease store /share: no answer"
        in caplog.text
    )
    assert f"nightly: released, epoch {master.lease.epoch}" in caplog.text
    assert "not released" not in caplog.text
    assert isinstance(standby.lease.try_acquire(), Grant)
