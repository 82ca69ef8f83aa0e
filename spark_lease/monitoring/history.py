"""Who held a lease when: built from the journal entries of its grants and ends, and checked for overlaps.

This module asks no store and no clock. Times are milliseconds since 1970 by the store's clock, as epochs are. A time
that is not known is reported as unknown, and is never taken for an overlap.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from ..clock import iso_text
from ..election.journal_entries import APPLICATION, ENDED, FINISHED, GIVEN_BACK, GRANT, RAN_OUT, RELEASED, TAKEN_AWAY
from ..election.record import Snapshot, is_forced
from ..errors import Loss, RecordUnreadable
from ..journal.runs import BEGUN, Run

UNKNOWN = "unknown"

_SLACK, _DRIFT = 100, 0.01
"""Milliseconds, and a share of a hold's length, by which two clocks may differ over that hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One hold of a lease. `start` None: not known, as with a broker, which has no epochs. `end` None: if `why` is
    empty, the hold goes on, else its end is not known. `is_exact` False: it ended at `end` at the latest."""

    lease: str
    epoch: int
    holder: str
    host: str = ""
    site: str = ""
    start: int | None = None
    end: int | None = None
    is_exact: bool = True
    why: str = ""
    detail: str = ""
    applications: tuple[str, ...] = ()
    run_keys: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return " · ".join(each for each in (self.host, self.site) if each)

    @property
    def lasted(self) -> float | None:
        """Seconds from `start` to `end`; None if one of them is not known."""
        return None if self.start is None or self.end is None else (self.end - self.start) / 1000

    @property
    def goes_on(self) -> bool:
        return not self.why

    @property
    def ends_exactly(self) -> bool:
        """False also after a forced release: the hold ended at its next renewal, and its time was over at `end`."""
        return self.is_exact and self.why != TAKEN_AWAY

    @property
    def times(self) -> tuple[str, str]:
        """Begin and end, for people: "?" is not known, "≤" at the latest."""
        begun = "?" if self.start is None else iso_text(self.start / 1000)
        if self.goes_on or self.end is None:
            return begun, "now" if self.goes_on else "?"
        return begun, f"{'' if self.ends_exactly else '≤ '}{iso_text(self.end / 1000)}"

    @property
    def ended_by(self) -> str:
        """How it ended, for people: "failed: exit 3"."""
        return ": ".join(filter(None, (self.why, self.detail)))

    @property
    def position(self) -> float:
        """The time by which holds are sorted."""
        known = self.start if self.start is not None else self.end
        return float("inf") if known is None else known


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two holds of the lease at one time, from `start` to `end` (None: still)."""

    first: Hold
    second: Hold
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record as the next grant found it, or as it is now."""

    holder: str | None
    epoch: int
    until: int | None
    left: float | None = 0.0
    """Seconds until it runs out; None if the store cannot say."""


@dataclass(frozen=True, slots=True)
class _Grant:
    epoch: int
    holder: str
    host: str
    site: str
    after: _Seen | None


@dataclass(frozen=True, slots=True)
class _Notes:
    """All journal entries of one lease, in the order of the epochs."""

    lease: str
    grants: Sequence[_Grant]
    ends: Mapping[int, Mapping[str, Any]]
    now: _Seen | None
    known: Mapping[int, str]
    """Holders by epoch."""


def holds_of(lease: str, noted: Mapping[str, Mapping[str, str]], seen: Snapshot, *, where: str) -> list[Hold]:
    """The holds of `lease`, the oldest first: from its journal entries by kind and key, and from the current record.

    A grant without an entry is known from the next entry, or from the record. Raises RecordUnreadable for an entry that
    this library would not have written; `where` names the store.
    """
    try:
        notes = _parsed(lease, noted, seen)
        pairs = zip_longest(notes.grants, notes.grants[1:])
        holds = [_ended(notes, grant, following) for grant, following in pairs]
        holds += [hold for grant in notes.grants if (hold := _backfilled(notes, grant))]
        if notes.now and (hold := _from_record(notes, notes.now)):
            holds.append(_as_it_stands(hold, notes.now))
        applications = defaultdict[str, list[str]](list)
        for epoch, _, application in (key.partition("\n") for key in noted.get(APPLICATION, {})):
            applications[epoch].append(application)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordUnreadable(where, f"cannot read a note of {lease}'s history: {error}") from None
    joined = [_with(hold, applications.get(str(hold.epoch), ())) for hold in holds]
    return sorted(joined, key=lambda hold: (hold.position, hold.epoch))


def with_runs(holds: Iterable[Hold], runs: Iterable[Run]) -> list[Hold]:
    """The same holds with their run keys, and with the applications that worked on those."""
    found, by_epoch = [], defaultdict[int, list[Run]](list)
    for run in runs:
        by_epoch[run.epoch].append(run)
    for hold in holds:
        mine = by_epoch[hold.epoch]
        keys = tuple(dict.fromkeys(run.key for run in mine))
        found.append(_with(replace(hold, run_keys=keys), [run.application for run in mine]))
    return found


def with_ends(runs: Iterable[Run], holds: Iterable[Hold]) -> list[Run]:
    """The same runs; a run without a noted end ended with its hold, and in the same way.

    It never counts as "finished", though: a key is done only if that was noted.
    """
    by_epoch = {hold.epoch: hold for hold in holds if not hold.goes_on}
    found = []
    for run in runs:
        if run.outcome == BEGUN and (hold := by_epoch.get(run.epoch)):
            end = "" if hold.end is None else iso_text(hold.end / 1000)
            why = UNKNOWN if hold.why in (RELEASED, FINISHED) else hold.why
            run = replace(run, outcome=why, finished=end)
        found.append(run)
    return found


def since(holds: Iterable[Hold], instant: int) -> list[Hold]:
    """The holds that had not ended by `instant`, as far as that is known."""
    return [hold for hold in holds if hold.end is None or hold.end >= instant]


def overlaps(holds: Sequence[Hold]) -> list[Overlap]:
    """Pairs of holds of which one had begun before the other had ended. There must be none."""
    found, last = list[Overlap](), None
    for hold in sorted((hold for hold in holds if hold.start is not None), key=lambda hold: hold.start or 0):
        start = hold.start or 0
        if last and (last.goes_on or (last.is_exact and (last.end or 0) > start)):
            ends = [each.end for each in (last, hold) if each.end is not None]
            found.append(Overlap(last, hold, start, min(ends, default=None)))
        if hold.goes_on or (hold.is_exact and hold.end is not None):
            last = hold if last is None or _reach(hold) > _reach(last) else last
    return found


def not_exact(holds: Iterable[Hold]) -> int:
    """The number of holds whose beginning or end is not known to the millisecond."""
    return sum(1 for hold in holds if hold.start is None or not (hold.goes_on or (hold.ends_exactly and hold.end)))


def _reach(hold: Hold) -> float:
    return float("inf") if hold.goes_on else float(hold.end or 0)


def _with(hold: Hold, applications: Iterable[str]) -> Hold:
    return replace(hold, applications=tuple(dict.fromkeys(filter(None, [*hold.applications, *applications]))))


def _parsed(lease: str, noted: Mapping[str, Mapping[str, str]], seen: Snapshot) -> _Notes:
    grants = []
    for key, text in noted.get(GRANT, {}).items():
        entry = json.loads(text)
        after = entry["after"]
        replaced = _Seen(after["holder"], int(after["epoch"]), after["until_ms"]) if after is not None else None
        host, site = str(entry.get("host", "")), str(entry.get("site", ""))
        grants.append(_Grant(int(key), str(entry["holder"]), host, site, replaced))
    ends = {int(key): json.loads(text) for key, text in noted.get(ENDED, {}).items()}
    record, now = seen.record, None
    if record:
        until = None if seen.left is None else record.stamp
        now = _Seen(record.holder, record.epoch, until, seen.left)
    known = {each.epoch: each.holder for each in grants}
    return _Notes(lease, sorted(grants, key=lambda each: each.epoch), ends, now, known)


def _ended(notes: _Notes, grant: _Grant, following: _Grant | None) -> Hold:
    """The hold that the grant began, and how it ended."""
    epoch = grant.epoch
    hold = Hold(lease=notes.lease, epoch=epoch, holder=grant.holder, host=grant.host, site=grant.site, start=epoch)
    if end := notes.ends.get(grant.epoch):
        return _as_noted(hold, end, _next_epoch(notes, hold, following))
    if notes.now and (notes.now.holder, notes.now.epoch) == (grant.holder, grant.epoch):
        return _as_it_stands(hold, notes.now)
    if following and following.after and following.after.epoch == grant.epoch:
        return _as_replaced(hold, following.after, following.epoch)
    if not following and notes.now and notes.now.holder is None and notes.now.epoch == grant.epoch:
        return replace(hold, why=RELEASED, is_exact=False)
    later = following or notes.now
    end_by = later.epoch if later and later.epoch > grant.epoch else None
    return replace(hold, why=UNKNOWN, end=end_by, is_exact=False)


def _next_epoch(notes: _Notes, hold: Hold, following: _Grant | None) -> int | None:
    """When the next hold began, if that is known: its own entry may be missing."""
    known = [following.epoch, following.after.epoch if following.after else 0] if following else []
    known += [notes.now.epoch] if notes.now else []
    return min((each for each in known if each > hold.epoch), default=None)


def _as_noted(hold: Hold, end: Mapping[str, Any], next_epoch: int | None) -> Hold:
    why, detail = str(end["why"]), str(end.get("detail", ""))
    latest = int(end["at"] if "at" in end else end["by"])
    # A released hold ended before the next one began, as far as its holder's clock can tell.
    slack = max(_SLACK, (latest - hold.epoch) * _DRIFT)
    is_close = next_epoch is not None and latest - next_epoch <= slack
    if next_epoch and ("by" in end or (is_close and why in (*GIVEN_BACK, Loss.PREEMPTED))):
        latest = min(latest, next_epoch)
    # If the store's clock was set back, the epoch of the grant may be the larger number.
    return replace(hold, why=why, detail=detail, end=max(latest, hold.epoch), is_exact="at" in end)


def _as_replaced(hold: Hold, after: _Seen, epoch: int) -> Hold:
    """The hold as it ended if the next grant, `epoch`, found the record `after`."""
    if after.holder is None:
        return replace(hold, why=RELEASED, end=epoch, is_exact=False)
    if after.holder != hold.holder:  # a broker took the lease in between
        return replace(hold, why=UNKNOWN, end=epoch, is_exact=False)
    if after.until is None:
        return replace(hold, why=RAN_OUT, end=epoch, is_exact=False)
    return replace(hold, why=RAN_OUT, end=max(after.until, hold.epoch))


def _as_it_stands(hold: Hold, now: _Seen) -> Hold:
    if now.left is not None and now.left <= 0:
        return replace(hold, why=RAN_OUT, end=max(now.until or 0, hold.epoch))
    return hold


def _backfilled(notes: _Notes, grant: _Grant) -> Hold | None:
    """The hold that the grant put an end to, if that hold has no entry of its own."""
    if (after := grant.after) is None or (hold := _from_record(notes, after)) is None:
        return None
    if end := notes.ends.get(hold.epoch):
        return _as_noted(hold, end, grant.epoch)
    return _as_replaced(hold, after, grant.epoch)


def _from_record(notes: _Notes, seen: _Seen) -> Hold | None:
    """The hold that a record shows, unless its grant has an entry."""
    if seen.holder is None or is_forced(seen.holder) or notes.known.get(seen.epoch) == seen.holder:
        return None
    # If the epoch was another holder's, or is 0, the holder is a broker: it writes no epoch.
    own = seen.epoch if seen.epoch not in notes.known else 0
    return Hold(lease=notes.lease, epoch=own, holder=seen.holder, start=own or None)
