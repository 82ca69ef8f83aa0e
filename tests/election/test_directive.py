"""What an operator wants of a lease: the text in the record, and what it means to contenders and to a master."""

from __future__ import annotations

import math

import pytest

from spark_lease.election.directive import Directive, directive_of, label_of
from spark_lease.election.ports import Denied, Grant
from spark_lease.election.record import with_directive
from spark_lease.errors import LeaseHeldByOther, LeaseLost, Loss
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.faults import lost_answer, meanwhile
from tests.support.policy import NAME, Contender

PAUSED = Directive("anna", "schema change")


def want(store: MemoryStore, directive: Directive | None) -> None:
    record = store.records[NAME]
    assert store.peer().swap(NAME, record, with_directive(record, directive.text() if directive else ""))


def store_time(store: MemoryStore) -> float:
    return store.clock.now() + store.offset


@pytest.mark.parametrize(
    "directive",
    [
        Directive("a"),
        PAUSED,
        Directive("ä/:\"'", "r", "lyon", 1.5e9, 1.4e9),
        Directive("a", give_up=0.0, until=math.inf),
    ],
)
def test_a_directive_is_read_as_it_was_written(directive: Directive) -> None:
    assert directive_of(directive.text()) == directive


@pytest.mark.parametrize("text", ["{", "[]", "7", '{"reason":"x"}', '{"by":"a","until":"soon"}'])
def test_a_directive_that_cannot_be_read_blocks_everybody_and_demotes_nobody(text: str) -> None:
    directive = directive_of(text)
    assert directive and directive.blocks("h", "s", now=1e12) and directive.give_up == math.inf
    assert "spark-lease resume" in str(directive)


def test_the_label_of_a_holder_is_what_its_configuration_calls_it() -> None:
    assert label_of("site:a:4711:1795262899:74fc676c") == "site:a"


def test_a_paused_lease_is_taken_by_nobody_and_kept_by_its_master(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer(), "b", if_held="skip")
    master.lease.acquire()
    want(store, PAUSED)
    for _ in range(10):
        clock.advance(5)
        master.lease.renew()
    assert master.lease.check()
    assert master.lease.release()
    assert standby.lease.try_acquire() == Denied(None, 30.0, "paused by anna: schema change")
    with pytest.raises(LeaseHeldByOther, match="nightly: paused by anna: schema change") as raised:
        standby.lease.acquire()
    assert raised.value.exit_code == 99
    want(store, None)
    assert isinstance(standby.lease.try_acquire(), Grant)


def test_a_pause_that_comes_between_look_and_swap_is_applied(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer(), "b")
    master.lease.acquire()
    master.lease.release()
    standby.store.plan(meanwhile(lambda: want(store, PAUSED)))
    assert isinstance(standby.lease.try_acquire(), Denied)


def test_a_pause_ends_by_the_stores_clock(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer(), "b")
    master.lease.acquire()
    master.lease.release()
    want(store, Directive("anna", until=store_time(store) + 3600))
    clock.advance(3599)
    answer = standby.lease.try_acquire()
    assert isinstance(answer, Denied) and answer.expires_in == pytest.approx(1, abs=0.01)
    clock.advance(1.1)
    assert isinstance(standby.lease.try_acquire(), Grant)
    assert standby.record.directive == ""


def test_a_master_that_is_to_give_up_does_so_at_its_next_renewal_and_nobody_takes_it_by_force(
    clock: VirtualClock, store: MemoryStore
) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer(), "b")
    master.lease.acquire()
    want(store, Directive("anna", give_up=store_time(store)))
    clock.advance(5)
    with pytest.raises(LeaseLost, match=r"preempted.*paused by anna"):
        master.lease.renew()
    loss = master.lease.loss()
    assert loss and loss.reason is Loss.PREEMPTED
    assert master.lease.stop_by() == clock.now() + master.config.stop_budget  # there is time to be polite
    clock.advance(40)
    assert isinstance(standby.lease.try_acquire(), Denied)
    want(store, None)
    assert isinstance(standby.lease.try_acquire(), Grant)


def test_a_directive_is_applied_also_by_a_master_whose_grant_was_answered_late(
    clock: VirtualClock, store: MemoryStore
) -> None:
    master = Contender(clock, store)
    master.store.plan(None, lost_answer)
    with pytest.raises(Exception, match="the answer was lost"):
        master.lease.try_acquire()
    want(store, Directive("anna", give_up=store_time(store)))
    assert isinstance(master.lease.try_acquire(), Grant)
    with pytest.raises(LeaseLost, match="preempted"):
        master.lease.renew()


def test_a_transferred_lease_is_given_up_in_time_and_taken_by_one_alone(
    clock: VirtualClock, store: MemoryStore
) -> None:
    paris, lyon = Contender(clock, store, site="paris"), Contender(clock, store.peer(), "b", site="lyon")
    paris.lease.acquire()
    now = store_time(store)
    want(store, Directive("anna", to="lyon", give_up=now + 12, until=now + 600))
    clock.advance(5)
    paris.lease.renew()
    clock.advance(5)
    paris.lease.renew()
    clock.advance(5)
    with pytest.raises(LeaseLost, match=r"preempted.*reserved for lyon by anna"):
        paris.lease.renew()
    assert isinstance(lyon.lease.try_acquire(), Denied)  # not by force
    clock.advance(31)
    again = Contender(clock, store.peer(), "c", site="paris")
    answer = again.lease.try_acquire()
    assert isinstance(answer, Denied) and answer.why.startswith("reserved for lyon by anna until ")
    assert isinstance(lyon.lease.try_acquire(), Grant)
    assert lyon.record.directive == ""
    lyon.lease.renew()


def test_a_transfer_to_who_has_it_already_demotes_nobody(clock: VirtualClock, store: MemoryStore) -> None:
    master = Contender(clock, store, "host-7")
    master.lease.acquire()
    want(store, Directive("anna", to="host-7", give_up=store_time(store)))
    clock.advance(5)
    master.lease.renew()
    assert master.lease.check()


def test_a_transfer_that_nobody_took_is_void_in_the_end(clock: VirtualClock, store: MemoryStore) -> None:
    paris = Contender(clock, store, site="paris")
    paris.lease.acquire()
    paris.lease.release()
    want(store, Directive("anna", to="lyon", until=store_time(store) + 600))
    other = Contender(clock, store.peer(), "b", site="paris")
    assert isinstance(other.lease.try_acquire(), Denied)
    clock.advance(601)
    assert isinstance(other.lease.try_acquire(), Grant)


def test_a_standby_of_the_preferred_site_goes_first_after_a_release(clock: VirtualClock, store: MemoryStore) -> None:
    master = Contender(clock, store, preferred_site="paris")
    lyon = Contender(clock, store.peer(), "b", site="lyon", preferred_site="paris")
    paris = Contender(clock, store.peer(), "c", site="paris", preferred_site="paris")
    master.lease.acquire()
    for standby in (lyon, paris):
        assert isinstance(standby.lease.try_acquire(), Denied)
    master.lease.release()
    answer = lyon.lease.try_acquire()
    assert isinstance(answer, Denied) and answer.why == "lets the preferred site go first"
    assert isinstance(paris.lease.try_acquire(), Grant)
    paris.lease.release()
    assert isinstance(lyon.lease.try_acquire(), Denied)
    clock.advance(1.6)
    assert isinstance(lyon.lease.try_acquire(), Grant)  # nobody of the preferred site is there


def test_who_finds_it_free_at_once_or_run_out_waits_for_no_other_site(clock: VirtualClock, store: MemoryStore) -> None:
    first = Contender(clock, store, site="lyon", preferred_site="paris")
    assert isinstance(first.lease.try_acquire(), Grant)
    second = Contender(clock, store.peer(), "b", site="lyon", preferred_site="paris")
    assert isinstance(second.lease.try_acquire(), Denied)
    clock.advance(31)
    assert isinstance(second.lease.try_acquire(), Grant)


@pytest.mark.parametrize("until", ["1e300", "-1", "NaN", "Infinity"])
def test_a_time_that_no_calendar_has_is_never(until: str) -> None:
    directive = directive_of(f'{{"by": "anna", "until": {until}}}')
    assert directive and directive.until == math.inf
    assert str(directive) == "paused by anna"
