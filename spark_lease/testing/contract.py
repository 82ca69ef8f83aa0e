"""The promises of lockers and lease stores, as pytest classes: subclass one, and give it its fixture.

class TestMyStore(LeaseStoreContract):
    @pytest.fixture
    def open_store(self): ...   # a function that returns a new LeaseStore on the same, empty place
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from subprocess import PIPE
from typing import Any, TypeVar

import pytest

from ..clock import BootClock
from ..config.settings import ENV, Config, as_text
from ..config.sources import configure
from ..election.directive import Directive
from ..election.ports import Denied, Grant, LeaseStore
from ..election.record import LeaseRecord, expires_in, released, renewed, taken, with_directive
from ..errors import LeaseLost, StoreError
from ..holds import LocalHold, open_contender
from ..stores.registry import open_store

OpenContender = Callable[..., LocalHold]
OpenStore = Callable[[], LeaseStore]
T = TypeVar("T")


class LeaseStoreContract:
    """The promises of a lease store. Needs a fixture `open_store`; the tests close the stores that it returns."""

    def test_a_lease_that_was_never_taken_has_no_record(self, open_store: OpenStore) -> None:
        assert open_store().read("never taken").record is None

    def test_what_was_written_is_read_back_by_another(self, open_store: OpenStore) -> None:
        mine, other = open_store(), open_store()
        written = mine.swap("n", None, taken(None, holder="me", duration=12.5))
        assert written is not None
        assert written.stamp is not None
        seen = other.read("n")
        assert seen.record == written
        assert (written.holder, written.duration) == ("me", 12.5)
        assert written.epoch >= 1
        if seen.expires_in is not None:
            assert 0 < seen.expires_in <= 12.5

    def test_a_record_that_is_not_there_any_more_is_not_replaced(self, open_store: OpenStore) -> None:
        mine, other = open_store(), open_store()
        first = self.take(mine, "me")
        second = other.swap("n", first, renewed(first, duration=9.0))
        assert second is not None
        before = mine.read("n").record
        assert mine.swap("n", None, taken(None, holder="x", duration=1.0)) is None
        assert mine.swap("n", LeaseRecord("else", 1, 5.0, first.stamp), taken(first, holder="x", duration=1.0)) is None
        assert mine.swap("n", LeaseRecord("me", 2, 5.0, second.stamp), taken(first, holder="x", duration=1.0)) is None
        assert mine.read("n").record == before

    def test_a_release_frees_it_at_once_and_keeps_the_epoch(self, open_store: OpenStore) -> None:
        store = open_store()
        record = self.take(store, "me")
        assert store.swap("n", record, released(record)) is not None
        seen = store.read("n")
        assert seen.record is not None
        assert (seen.record.holder, seen.record.epoch) == (None, record.epoch)
        assert expires_in(seen, still_for=0.0) <= 0

    def test_a_stale_release_changes_nothing(self, open_store: OpenStore) -> None:
        store = open_store()
        old = self.take(store, "me")
        free = store.swap("n", old, released(old))
        assert free is not None
        theirs = store.swap("n", free, taken(free, holder="other", duration=30.0))
        assert store.swap("n", old, released(old)) is None
        assert store.read("n").record == theirs

    def test_epochs_go_on_over_release_and_reopening(self, open_store: OpenStore) -> None:
        record: LeaseRecord | None = None
        epochs = [0]
        for turn in range(3):
            store = open_store()
            record = store.swap("n", record, taken(record, holder=f"h{turn}", duration=5.0))
            assert record is not None
            epochs.append(record.epoch)
            record = store.swap("n", record, released(record))
            store.close()
        assert epochs == sorted(set(epochs))

    def test_a_renewal_keeps_the_epoch(self, open_store: OpenStore) -> None:
        store = open_store()
        record = self.take(store, "me")
        again = store.swap("n", record, renewed(record, duration=5.0))
        assert again is not None
        assert again.epoch == record.epoch

    def test_a_directive_changes_nothing_else_and_stays_until_the_lease_is_taken(self, open_store: OpenStore) -> None:
        mine, other = open_store(), open_store()
        record = self.take(mine, "me")
        seen = other.read("n")
        directive = '{"by":"ä:\'"}'
        changed = other.swap("n", record, with_directive(record, directive))
        assert changed is not None
        after = other.read("n")
        assert after.record == changed
        assert (changed.holder, changed.epoch, changed.directive) == ("me", record.epoch, directive)
        if seen.expires_in is not None and after.expires_in is not None:
            assert after.expires_in <= seen.expires_in
            assert changed.stamp == record.stamp
        assert mine.swap("n", record, renewed(record, duration=5.0)) is None  # it knows no directive: refused
        again = mine.swap("n", changed, renewed(changed, duration=5.0))
        assert again is not None and again.directive == directive
        free = mine.swap("n", again, released(again))
        assert free is not None and free.directive == directive == other.read("n").record.directive  # type: ignore[union-attr]
        assert other.swap("n", with_directive(free, ""), taken(free, holder="you", duration=5.0)) is None
        theirs = other.swap("n", free, taken(free, holder="you", duration=5.0))
        assert theirs is not None and mine.read("n").record == theirs
        assert theirs.directive == ""

    def test_two_names_are_independent(self, open_store: OpenStore) -> None:
        store = open_store()
        self.take(store, "me")
        self.take(store, "you", name="other")
        assert store.read("n").record != store.read("other").record
        assert sorted(store.names()) == ["n", "other"]

    def test_one_of_many_wins(self, open_store: OpenStore) -> None:
        for old in (None, self.take(open_store(), "first", name="expired")):
            name = "expired" if old else "fresh"
            won = self.race(
                open_store,
                lambda store, who, name=name, old=old: store.swap(  # type: ignore[misc]
                    name, old, taken(old, holder=who, duration=5.0)
                ),
            )
            assert len([each for each in won if each is not None]) == 1

    def test_names_that_are_first_taken_at_once_do_not_lose_one_another(self, open_store: OpenStore) -> None:
        def insist(store: LeaseStore, who: str) -> LeaseRecord | None:
            for _ in range(20):
                if won := store.swap(who, None, taken(None, holder=who, duration=5.0)):
                    return won
            return None

        assert None not in self.race(open_store, insist)

    def test_a_closed_store_can_be_closed_again(self, open_store: OpenStore) -> None:
        store = open_store()
        store.read("n")
        store.close()
        store.close()

    @staticmethod
    def take(store: LeaseStore, holder: str, name: str = "n") -> LeaseRecord:
        record = store.swap(name, None, taken(None, holder=holder, duration=5.0))
        assert record is not None
        return record

    @staticmethod
    def race(open_store: OpenStore, attempt: Callable[[LeaseStore, str], T]) -> list[T]:
        """Run `attempt` for eight contenders, each with a store of its own, at the same moment."""

        def contend(number: int, ready: Callable[[], object]) -> T:
            store = open_store()
            store.read("n")
            ready()
            answer = attempt(store, f"c{number}")
            store.close()
            return answer

        return _at_once(8, contend)


class LockerContract:
    """The promises of a locker to contenders: subclass it and give it a fixture `config`.

    class TestMine(LockerContract):
        @pytest.fixture
        def config(self, tmp_path):
            return configure(url=f"mine://{tmp_path}")   # an empty place; the tests shorten its timings
    """

    @pytest.fixture
    def contender(self, config: Config) -> Iterator[OpenContender]:
        """A function that opens one more contender; its arguments are settings."""
        opened: list[LocalHold] = []

        def open_one(**changes: Any) -> LocalHold:
            opened.append(open_contender(_short(config, **changes), BootClock()))
            return opened[-1]

        yield open_one
        for each in opened:
            each.close()

    def test_it_is_granted_kept_and_given_back(self, contender: OpenContender) -> None:
        mine, other = contender(), contender()
        assert mine.acquire() == mine.check() == mine.epoch >= 1
        assert isinstance(other.try_acquire(), Denied)
        for _ in range(3):
            mine.renew()
        assert mine.check() == mine.epoch
        assert mine.release()
        granted = other.try_acquire()
        assert isinstance(granted, Grant)
        assert granted.epoch > mine.epoch

    def test_one_of_many_threads_is_granted(self, contender: OpenContender) -> None:
        contenders = [contender() for _ in range(6)]

        def contend(number: int, ready: Callable[[], object]) -> Grant | Denied:
            ready()
            return _insist(contenders[number].try_acquire)

        assert [type(each) for each in _at_once(len(contenders), contend)].count(Grant) == 1

    def test_one_of_many_processes_is_granted(self, config: Config, contender: OpenContender) -> None:
        first = contender()  # it creates the table, or the folder
        first.acquire()
        first.release()
        first.close()
        short = _short(config, lease_duration=8.0, if_held="skip")
        environ = {f"{ENV}{each.name.upper()}": as_text(getattr(short, each.name)) for each in fields(Config)}
        command = [sys.executable, "-c", "import sys; from spark_lease.cli.main import main; sys.exit(main())"]
        arguments = [*command, "run", "--", "sleep", "5"]
        started = [subprocess.Popen(arguments, env=os.environ | environ, stdout=PIPE, stderr=PIPE) for _ in range(5)]
        outputs = [each.communicate(timeout=60) for each in started]
        assert sorted(each.returncode for each in started) == [0, 99, 99, 99, 99], outputs

    def test_it_runs_out_by_the_holders_duration_and_not_by_the_contenders(self, contender: OpenContender) -> None:
        mine, other = contender(lease_duration=4.0), contender(lease_duration=2.0)
        mine.acquire()
        _insist(mine.renew)
        renewed_at = BootClock().now()
        assert isinstance(other.try_acquire(), Denied)
        mine.close()  # as if the holder had vanished: a living one keeps its lock
        epoch = other.acquire()
        assert BootClock().now() - renewed_at > 3.9
        assert epoch > mine.epoch
        assert other.check() == epoch

    def test_who_lost_it_can_neither_renew_nor_release_it(self, contender: OpenContender) -> None:
        old, new = contender(lease_duration=2.0), contender()
        old.acquire()
        old._locker.close()  # its lock is gone, too
        new.acquire()
        try:
            old.renew()
            raise AssertionError("renewed a lease that another holds")
        except (LeaseLost, StoreError):
            pass
        with contextlib.suppress(StoreError):
            assert not old.release()
        new.renew()
        assert new.check() == new.epoch

    def test_equal_labels_are_two_contenders(self, contender: OpenContender) -> None:
        one, other = contender(holder="same"), contender(holder="same")
        one.acquire()
        assert isinstance(other.try_acquire(), Denied)
        one.renew()
        assert one.check()

    def test_two_names_are_two_leases(self, contender: OpenContender) -> None:
        one, other = contender(name="one"), contender(name="other")
        one.acquire()
        other.acquire()
        one.renew()
        assert one.release()
        other.renew()
        assert other.check()

    def test_epochs_grow_over_releases_and_reopening(self, contender: OpenContender) -> None:
        epochs = []
        for _ in range(3):
            lease = contender()
            epochs.append(lease.acquire())
            lease.release()
            lease.close()
        assert epochs == sorted(set(epochs))

    def test_a_paused_lease_is_kept_and_not_taken(self, config: Config, contender: OpenContender) -> None:
        mine, other = contender(), contender()
        mine.acquire()
        with contextlib.closing(open_store(_short(config))) as store:
            _want(store, Directive("anna").text())
            mine.renew()
            assert mine.check()
            assert mine.release()
            answer = other.try_acquire()
            assert isinstance(answer, Denied)
            assert answer.why == "paused by anna"
            _want(store, "")
            assert isinstance(_insist(other.try_acquire), Grant)
            _want(store, Directive("anna", give_up=0.0).text())
            with pytest.raises(LeaseLost, match="preempted"):
                other.renew()

    def test_a_release_reaches_a_standby_that_waits(self, contender: OpenContender) -> None:
        mine, standby = contender(lease_duration=60.0), contender()
        mine.acquire()
        waiting = threading.Thread(target=standby.acquire)
        waiting.start()
        mine.renew()
        assert mine.release()
        waiting.join(20)
        assert standby.check() > mine.epoch


def _at_once(many: int, contend: Callable[[int, Callable[[], object]], T]) -> list[T]:
    """The answers of `many` contenders, which wait for one another when they call `ready`."""
    start, answers = threading.Barrier(many), list[T]()

    def one(number: int) -> None:
        answers.append(contend(number, lambda: start.wait(10)))

    threads = [threading.Thread(target=one, args=(number,), daemon=True) for number in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == many
    return answers


def _short(config: Config, **changes: Any) -> Config:
    """`config` with a lease that tests can wait for, and the timings that follow from it."""
    given = {each.name: getattr(config, each.name) for each in fields(Config)}
    for each in ("renew_deadline", "stop_budget", "kill_budget", "retry_period", "attempt_timeout"):
        del given[each]
    return configure(**given | {"name": "n", "lease_duration": 6.0, "poll_period": 0.1} | changes)


def _want(store: LeaseStore, directive: str) -> None:
    record = store.read("n").record
    assert record is not None
    assert store.swap("n", record, with_directive(record, directive)) is not None


def _insist(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: a store that many ask at once may be too slow for one of them."""
    while True:
        with contextlib.suppress(StoreError):
            return ask()
