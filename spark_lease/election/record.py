"""The lease record, and the pure rules for taking, renewing and releasing it.

`locker.py` applies these rules; a store only reads and swaps records.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from ..clock import wall_time
from ..config.settings import MAX_NAME
from ..errors import ConfigError

FORCED = "released-by-force"
"""Prefix of the placeholder holder that blocks a force-released lease until the former master must have stopped."""


class Protection(StrEnum):
    """What ends the guarded work when the lease is lost."""

    CONTAINED = "contained"
    """The kernel, with a namespace that ends, and proves ended, every process that the work started."""
    KERNEL = "kernel"
    """A keeper process, and the kernel if the keeper cannot: even if both it and the work are frozen."""
    KEEPER = "keeper"
    """A keeper process, which must be running."""
    THREAD = "thread"
    """Threads of the same process, which must be running."""
    SERVER = "server"
    """A Spark Connect server, which is asked to interrupt the work and cannot be forced."""
    NONE = "none"
    """Nothing: part of the work runs as another user, whose processes we may not signal."""

    def covers(self, wanted: str) -> bool:
        """True if this is as strong as `wanted`, or stronger. The members are listed strongest first."""
        order = list(Protection)
        return order.index(self) <= order.index(Protection(wanted))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the store holds of one lease.

    `holder` is None if the lease is free. `epoch` is that of the last grant: milliseconds since 1970 by the store's
    clock, or the previous epoch plus one if that is larger. `duration` is the holder's, in seconds. `stamp` belongs to
    the store: it changes with every write, and `swap` compares it (SQL: the expiry in ms). `protection` is the
    holder's `Protection` (empty: not known), for people to read. `directive` is an operator's pause or transfer
    (`Directive.text`; empty: none); the next grant removes it.
    """

    holder: str | None
    epoch: int
    duration: float
    stamp: int | None = None
    protection: str = ""
    directive: str = ""

    def stamped(self, stamp: int, epoch: int) -> LeaseRecord:
        """The same record with the stamp and the epoch that the store has written."""
        return LeaseRecord(self.holder, epoch, self.duration, stamp, self.protection, self.directive)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of the store: the record (None: there never was one), the seconds until it expires and the seconds
    since 1970, both by the store's own clock (None: it has none)."""

    record: LeaseRecord | None
    expires_in: float | None = None
    now: float | None = None

    @property
    def wall(self) -> float:
        """Seconds since 1970 by the store's clock, or by this machine's for a store without one."""
        return wall_time() if self.now is None else self.now

    @property
    def left(self) -> float | None:
        """`expires_in`, or None if the store cannot tell: it has no clock, or its clock was set back."""
        return None if self.is_set_back else self.expires_in

    @property
    def is_set_back(self) -> bool:
        """True if the record has more time left than its whole duration: the store's clock was set back since."""
        record, left = self.record, self.expires_in
        if record is None or record.holder is None or left is None:
            return False
        # A broker writes no duration: the record keeps that of an earlier contender.
        return left > record.duration and _OURS.search(record.holder) is not None

    @property
    def why_unknown(self) -> str:
        """The reason why `left` is None."""
        return SET_BACK if self.is_set_back else "the store has no clock"


_OURS = re.compile(r":\d+:\d+:[0-9a-f]{8}$")
"""The ending of every holder name that `new_holder` makes."""
SET_BACK = "the store's clock was set back"
"""A value of `Snapshot.why_unknown`."""


def taken(record: LeaseRecord | None, *, holder: str, duration: float, protection: str = "") -> LeaseRecord:
    """The record by which a contender replaces a free or expired one: with a larger epoch, at least one more."""
    epoch = 1 if record is None else record.epoch + 1
    return LeaseRecord(holder, epoch, duration, protection=protection)


def renewed(record: LeaseRecord, *, duration: float, protection: str = "") -> LeaseRecord:
    """The same grant for another `duration` seconds; the store stamps it."""
    # Spelled out, as in `stamped`: `replace` would take a tenth of our part of a renewal.
    protection = protection or record.protection
    return LeaseRecord(record.holder, record.epoch, duration, None, protection, record.directive)


def released(record: LeaseRecord) -> LeaseRecord:
    """A free record with the same epoch: epochs never start again."""
    return replace(record, holder=None, stamp=None)


def with_directive(record: LeaseRecord, directive: str) -> LeaseRecord:
    """The same record with another directive; its expiry stays."""
    return replace(record, directive=directive)


def is_directive(old: LeaseRecord | None, new: LeaseRecord) -> bool:
    """True if only the directive differs."""
    return old is not None and old.directive != new.directive and new == replace(old, directive=new.directive)


def forced(record: LeaseRecord, *, by: str, left: float) -> LeaseRecord:
    """`record` taken from a holder that may be alive; free after `left` more seconds, when that holder must have ended.

    This is no grant: the epoch stays. The holder finds another name at its next renewal and stops. Freeing the record
    at once would let the next master start beside it. `by` is the placeholder holder, see `is_forced`.
    """
    return replace(record, holder=by, duration=left, stamp=None, protection="")


def is_forced(holder: str | None) -> bool:
    """True if `holder` is the placeholder of a forced release, not a contender."""
    return bool(holder and holder.startswith(FORCED))


def taken_by_force(holder: str | None) -> str:
    """A sentence on who took the lease, if `holder` `is_forced`; empty for a contender."""
    if not holder or not is_forced(holder):
        return ""
    by = holder.rsplit(":", 3)[0].partition(":")[2]
    return f"{by} took it by force; it is free once the former master's lease has run out"


def is_grant_of(record: LeaseRecord | None, holder: str, epoch: int | None = None) -> bool:
    """True if `record` belongs to `holder` (and to `epoch`, if given)."""
    return record is not None and record.holder == holder and epoch in (None, record.epoch)


def expires_in(seen: Snapshot, *, still_for: float) -> float:
    """Seconds until another contender may take the lease; 0 or less: now.

    The store's clock decides. If it cannot tell (`Snapshot.left`), the record may be taken once it has been seen
    unchanged for its own stored duration: its holder counts the deadline from before the write, which was before the
    first look. The contender's own duration never counts.
    """
    if seen.record is None or seen.record.holder is None:
        return 0.0
    if seen.left is not None:
        return seen.left
    return seen.record.duration - still_for


class UnchangedSince:
    """Measures for how long a record has stayed unchanged, over repeated readings."""

    def __init__(self) -> None:
        self._record: LeaseRecord | None = None
        self._since = -math.inf  # not read yet
        self.has_moved = False
        """True once the record was seen to change."""

    def still_for(self, record: LeaseRecord | None, now: float) -> float:
        """Seconds. `now` must be after the answer: the record may have been renewed while the answer was on its way."""
        if record != self._record or self._since < 0:
            self.has_moved |= self._since >= 0
            self._record, self._since = record, now
        return now - self._since


def new_holder(label: str = "") -> str:
    """A name `label:pid:start:random`, unique for every hold, so that equal labels never share a lease.

    Raises ConfigError if the whole is longer than `MAX_NAME` characters.
    """
    holder = f"{label or os.uname().nodename}:{os.getpid()}:{wall_time():.0f}:{os.urandom(4).hex()}"
    if len(holder) > MAX_NAME:
        raise ConfigError("holder", f"is {len(holder)} characters with its unique ending, {MAX_NAME} fit: shorten it")
    return holder
