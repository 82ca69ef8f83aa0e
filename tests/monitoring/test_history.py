"""The history of a lease, put together from notes: no store, no clock."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_lease.election.record import LeaseRecord, Snapshot
from spark_lease.errors import RecordUnreadable
from spark_lease.journal.runs import Run
from spark_lease.monitoring.history import Hold, holds_of, not_exact, overlaps, since, with_runs

NOBODY = Snapshot(None)


def grant(holder: str, after: tuple[str | None, int, int | None] | None = None) -> str:
    found = dict(zip(("holder", "epoch", "until_ms"), after, strict=True)) if after else None
    return json.dumps({"holder": holder, "host": f"host of {holder}", "after": found})


def holds(
    grants: dict[int, str], ends: dict[int, dict[str, Any]] | None = None, seen: Snapshot = NOBODY, **more: Any
) -> list[Hold]:
    noted = {
        "grant": {str(epoch): text for epoch, text in grants.items()},
        "ended": {str(epoch): json.dumps(said) for epoch, said in (ends or {}).items()},
        **more,
    }
    return holds_of("n", noted, seen, where="here")


def told(found: list[Hold]) -> list[tuple[object, ...]]:
    return [(hold.holder, hold.start, hold.end, hold.is_exact, hold.why) for hold in found]


def standing(holder: str | None, epoch: int, left: float | None = 10.0) -> Snapshot:
    return Snapshot(LeaseRecord(holder, epoch, 30.0, 9000), left)


def test_a_release_a_loss_and_a_holder_of_today() -> None:
    found = holds(
        {1000: grant("a"), 2000: grant("b", (None, 1000, 0)), 3000: grant("c", (None, 2000, 0))},
        {1000: {"why": "released", "at": 1500}, 2000: {"why": "taken", "at": 2100, "detail": "held by c"}},
        standing("c", 3000),
    )
    assert told(found) == [
        ("a", 1000, 1500, True, "released"),
        ("b", 2000, 2100, True, "taken"),
        ("c", 3000, None, True, ""),
    ]
    assert (found[1].detail, found[2].host, found[2].goes_on) == ("held by c", "host of c", True)
    assert not overlaps(found) and not not_exact(found)


@pytest.mark.parametrize("grants", [{2000: grant("b", (None, 1000, 0))}, {}, {3000: grant("c", ("b", 2000, 2900))}])
def test_what_was_given_back_ended_before_the_next_one_began_whatever_its_clock_says(grants: dict[int, str]) -> None:
    seen = standing("b", 2000) if 3000 not in grants else standing("c", 3000)
    for why in ("finished", "preempted"):
        found = holds({1000: grant("a"), **grants}, {1000: {"why": why, "at": 2040}}, seen)
        assert (found[0].end, found[0].why, overlaps(found)) == (2000, why, [])
    found = holds({1000: grant("a"), **grants}, {1000: {"why": "taken", "at": 2040}}, seen)
    assert found[0].end == 2040


def test_a_hold_that_ran_out_ends_at_the_expiry_that_the_next_one_found() -> None:
    found = holds({1000: grant("a"), 2000: grant("b", ("a", 1000, 1800))}, {}, standing("b", 2000, -1.0))
    assert told(found) == [("a", 1000, 1800, True, "ran out"), ("b", 2000, 9000, True, "ran out")]


def test_a_grant_that_was_not_noted_is_known_from_the_next_one_and_from_the_record() -> None:
    found = holds({2000: grant("b", ("a", 1000, 1800))}, {2000: {"why": "released", "at": 2500}}, standing("c", 3000))
    assert told(found) == [
        ("a", 1000, 1800, True, "ran out"),
        ("b", 2000, 2500, True, "released"),
        ("c", 3000, None, True, ""),
    ]


def test_a_broker_is_seen_by_what_it_left_and_nobody_knows_since_when() -> None:
    found = holds(
        {1000: grant("a"), 3000: grant("b", ("broker", 1000, 2900))},
        {1000: {"why": "released", "at": 1500}},
        standing("broker", 3000),
    )
    assert told(found) == [
        ("a", 1000, 1500, True, "released"),
        ("broker", None, 2900, True, "ran out"),
        ("b", 3000, None, False, "unknown"),
        ("broker", None, None, True, ""),
    ]
    assert not overlaps(found)


def test_without_a_common_clock_an_end_is_a_bound_and_never_an_overlap() -> None:
    """The one who released had a clock that is ahead."""
    found = holds(
        {1000: grant("a"), 2000: grant("b", (None, 1000, None)), 3000: grant("c", ("b", 2000, None))},
        {1000: {"why": "released", "by": 2600}},
        Snapshot(LeaseRecord("c", 3000, 30.0, 7), None),
    )
    assert told(found) == [
        ("a", 1000, 2000, False, "released"),
        ("b", 2000, 3000, False, "ran out"),
        ("c", 3000, None, True, ""),
    ]
    assert not overlaps(found) and not_exact(found) == 2


def test_a_row_that_was_deleted_leaves_an_end_that_nobody_knows() -> None:
    found = holds({1000: grant("a"), 2000: grant("b")}, {}, standing(None, 2000, 0.0))
    assert told(found) == [("a", 1000, 2000, False, "unknown"), ("b", 2000, None, False, "released")]
    assert not_exact(found) == 2


def test_two_that_held_it_at_one_time_are_found() -> None:
    """A row was deleted under a holder that worked on until it noticed."""
    found = holds(
        {1000: grant("a"), 2000: grant("b")},
        {1000: {"why": "taken", "at": 2700}, 2000: {"why": "released", "at": 2500}},
        standing(None, 2000, 0.0),
    )
    (both,) = overlaps(found)
    assert (both.first.holder, both.second.holder, both.start, both.end) == ("a", "b", 2000, 2500)


def test_one_that_was_given_back_long_after_another_was_granted_is_an_overlap() -> None:
    """A row stood twice: a clock that differs does not explain it."""
    found = holds(
        {1000: grant("a"), 3000: grant("b")},
        {1000: {"why": "finished", "at": 9000}, 3000: {"why": "finished", "at": 9500}},
        standing(None, 3000, 0.0),
    )
    assert [(both.start, both.end) for both in overlaps(found)] == [(3000, 9000)]


def test_an_overlap_with_one_long_before_is_found_as_well() -> None:
    found = holds(
        {1000: grant("a"), 2000: grant("b"), 3000: grant("c", (None, 2000, 0))},
        {1000: {"why": "expired", "at": 3500}, 2000: {"why": "released", "at": 2500}},
        standing("c", 3000),
    )
    assert [(both.first.holder, both.second.holder, both.end) for both in overlaps(found)] == [
        ("a", "b", 2500),
        ("a", "c", 3500),
    ]


def test_a_backup_that_made_an_older_holder_master_again_is_an_overlap() -> None:
    found = holds({1000: grant("a"), 2000: grant("b", ("a", 1000, 1900))}, {}, standing("a", 1000))
    assert [(both.first.holder, both.second.holder, both.end) for both in overlaps(found)] == [("a", "b", None)]


def test_one_that_begins_in_the_instant_in_which_the_other_ended_is_none() -> None:
    assert not overlaps(holds({1: grant("a"), 5: grant("b")}, {1: {"why": "released", "at": 5}}, standing("b", 5)))


def test_only_what_had_not_ended_is_shown_since_then() -> None:
    found = holds(
        {1000: grant("a"), 2000: grant("b", (None, 1000, 0)), 3000: grant("c", (None, 2000, 0))},
        {1000: {"why": "released", "at": 1500}, 2000: {"why": "released", "at": 2500}},
        standing("c", 3000),
    )
    assert [hold.holder for hold in since(found, 2200)] == ["b", "c"]
    assert [hold.holder for hold in since(found, 99_000)] == ["c"]


def test_runs_and_applications_are_found_by_their_epoch() -> None:
    runs = [
        Run("n", "k1", 1000, "a", "failed", application="local-1"),
        Run("n", "k2", 1000, "a", "finished", application="local-1"),
        Run("n", "k3", 7, "z", "finished", application="local-7"),
    ]
    (found,) = with_runs(holds({1000: grant("a")}, application={"1000\nlocal-0": "{}", "8\nx": "{}"}), runs)
    assert found.run_keys == ("k1", "k2")
    assert found.applications == ("local-0", "local-1")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"holder": "a", "after": {}}', "x" * 99])
def test_a_note_that_none_of_us_made_is_refused(text: str) -> None:
    with pytest.raises(RecordUnreadable, match="a note of n's history"):
        holds({1000: text})
