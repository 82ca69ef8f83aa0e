"""What every lease store promises, as a pytest class: subclass it and give it a fixture `open_store`.

class TestMine(LeaseStoreContract):
    @pytest.fixture
    def open_store(self): ...   # a function that returns a new LeaseStore on the same, empty place
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..lockers.base import LeaseStore
from ..record import LeaseRecord, expires_in, released, renewed, taken

OpenStore = Callable[[], LeaseStore]


class LeaseStoreContract:
    """Needs a fixture `open_store`; the stores that it gives are closed by the tests."""

    def test_a_lease_that_was_never_taken_has_no_record(self, open_store: OpenStore) -> None:
        assert open_store().read("nobody's").record is None

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

    def test_two_names_are_independent(self, open_store: OpenStore) -> None:
        store = open_store()
        self.take(store, "me")
        other = store.swap("other", None, taken(None, holder="you", duration=5.0))
        assert other is not None
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
    def race(
        open_store: OpenStore, attempt: Callable[[LeaseStore, str], LeaseRecord | None]
    ) -> list[LeaseRecord | None]:
        """Eight contenders, each with a store of its own, at the same moment."""
        start, won = threading.Barrier(8), list[LeaseRecord | None]()

        def contend(who: str) -> None:
            store = open_store()
            store.read("n")
            start.wait(10)
            won.append(attempt(store, who))
            store.close()

        threads = [threading.Thread(target=contend, args=(f"c{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(won) == 8
        return won
