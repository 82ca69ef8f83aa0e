"""The state of a lease as its record alone shows it, for `status` and `doctor`.

A record does not say how often its holder renews. It is compared with the settings of this command, in proportion to
the stored duration.
"""

import shlex
from typing import Any

from ..clock import iso_text, wall_time
from ..config.settings import Config
from ..election.directive import directive_of, label_of
from ..election.ports import LeaseStore
from ..election.record import LeaseRecord, Snapshot, expires_in, is_forced
from ..errors import RecordUnreadable
from ..fencing.status import Fences

HELD = (
    *("holder", "site", "epoch", "since", "expires_in", "in_doubt", "protection", "fences", "directive"),
    *("standbys", "last_change"),
)

_FIRST = 1_000_000_000_000
"""A smaller epoch (before September 2001) was counted, and is no time."""
_AHEAD = 60_000
"""Milliseconds by which a clock may have been set back since a grant."""
_OVERDUE = 1.5
"""Retry periods: one without a due renewal, and half of one in which a renewal may be on its way."""

Row = dict[str, Any]


def look_at(store: LeaseStore, name: str, config: Config) -> Row:
    """Read one lease. `expires_in` and `in_doubt` are None if unknown, "" if there is nothing to know.

    `problem` says why there is nothing to show, `note` gives further facts. Raises StoreError.
    """
    try:
        return described(store.where, name, store.read(name), config)
    except RecordUnreadable as error:
        return _nothing(name, "unreadable", str(error))


def described(where: str, name: str, seen: Snapshot, config: Config, *, still_for: float | None = None) -> Row:
    """The row of one lease. `still_for`: the seconds for which a watcher has seen the record unchanged; for a store
    that cannot tell what is left."""
    record = seen.record
    if record is None:
        return _nothing(name, "unknown", no_such_lease(name, where))
    left = expires_in(seen, still_for=still_for or 0.0)
    row = _nothing(name, "free") | {"epoch": record.epoch, "directive": _wanted(record, seen)}
    if record.holder is None or (left <= 0 and is_forced(record.holder)):
        return row
    row |= {"state": "held" if left > 0 else "expired", "holder": record.holder, "since": _since(record, seen) or ""}
    if left <= 0:
        return row
    row |= {"protection": record.protection, "expires_in": round(left, 1)}
    if seen.left is None and still_for is None:
        see = f"spark-lease status --watch {shlex.quote(name)}"
        note = f"{where}: {seen.why_unknown}: {name} is expired if it stays unchanged for {left:g} s: {see}"
        return row | {"expires_in": None, "in_doubt": None, "note": note}
    if is_forced(record.holder):
        return row | {"note": f"{name}: taken from its holder by force, free in {left:.1f} s"}
    return row | _renewed(name, record, config, left)


def no_such_lease(name: str, where: str) -> str:
    return f"{name}: there is no such lease in {where}: spark-lease status lists those that are there"


def _wanted(record: LeaseRecord, seen: Snapshot) -> str:
    directive = directive_of(record.directive)
    if directive is None or seen.wall >= directive.until:
        return ""
    return directive.in_full() if record.holder and seen.wall < directive.give_up else str(directive)


def _nothing(name: str, state: str, problem: str = "") -> Row:
    row: Row = {"lease": name, "state": state, **dict.fromkeys(HELD, "")}
    return row | ({"problem": problem} if problem else {})


def _renewed(name: str, record: LeaseRecord, config: Config, left: float) -> Row:
    """What the last renewal tells about a held lease."""
    period, ago = record.duration * config.retry_period / config.lease_duration, record.duration - left
    if not period:  # a broker's record has no duration
        return {"in_doubt": None}
    if ago <= period * _OVERDUE:
        return {"in_doubt": False}
    return {"in_doubt": True, "note": f"{name}: in doubt, last renewed {ago:.1f} s ago, expected every {period:.1f} s"}


def _since(record: LeaseRecord, seen: Snapshot) -> str | None:
    """The epoch as a time, by the store's clock; None if the epoch was counted."""
    now = wall_time() * 1000
    if seen.expires_in is not None and record.stamp:
        now = record.stamp - seen.expires_in * 1000
    return moment(record.epoch / 1000) if _FIRST <= record.epoch <= now + _AHEAD else None


def moment(instant: float) -> str:
    """Seconds since 1970 as an ISO 8601 time in UTC."""
    return f"{iso_text(instant)[:19]}Z"


def _standby(each: Row) -> str:
    label = label_of(each["holder"])
    return label if each["state"] == "cold" else f"{label} ({each['state']} since {each['since']})"


def for_programs(value: Any) -> Any:
    """The value for JSON, with null for what is missing or unknown."""
    if isinstance(value, list):
        return [for_programs(each) for each in value]
    if isinstance(value, dict):
        return {key: for_programs(each) for key, each in value.items()} or None
    return None if value == "" else value


def cell(value: object) -> str:
    """A value of a row, for people."""
    if isinstance(value, list):
        return ", ".join(_standby(each) for each in value)
    if isinstance(value, dict):
        return str(Fences(**value)) if value else "?"
    if value is None:
        return "?"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
