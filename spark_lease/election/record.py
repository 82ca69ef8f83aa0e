"""The lease record, and the pure rules of taking, renewing and releasing it.

Nothing here asks a store. `locker.py` applies these rules; a store only reads and swaps records.
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
"""How the holder begins that stands in a record until its last one has ended for certain."""


class Protection(StrEnum):
    """What ends a holder's work when its lease ends."""

    CONTAINED = "contained"
    """The kernel, which also ends and proves ended all that the work ever started: a namespace of its own."""
    KERNEL = "kernel"
    """A process beside it, and the kernel if that cannot: even work that is frozen together with that process."""
    KEEPER = "keeper"
    """A process beside it, which has to run for that."""
    THREAD = "thread"
    """Threads of the same process, which have to run for that."""
    SERVER = "server"
    """A Spark Connect server, which is asked to interrupt it and cannot be made to."""
    NONE = "none"
    """Nothing: some of it runs as another user, which this one may not signal."""

    def covers(self, wanted: str) -> bool:
        """True if this is what is `wanted`, or better. They stand in order, the best first."""
        order = list(Protection)
        return order.index(self) <= order.index(Protection(wanted))


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What the store holds of one lease.

    `holder` is None where it is free. `epoch` is that of the last grant: the milliseconds since 1970 by the
    store's clock, or one more than the epoch before if that is larger. `duration` is the holder's, in seconds.
    `stamp` belongs to the store: it changes with every write and `swap` compares it (SQL: the expiry in ms).
    `protection` is what the holder said at the grant (`Protection`; empty: not known), for people to read.
    `directive` is what an operator wants of the lease (`Directive.text`; empty: nothing). The next holder ends it.
    """

    holder: str | None
    epoch: int
    duration: float
    stamp: int | None = None
    protection: str = ""
    directive: str = ""

    def stamped(self, stamp: int, epoch: int) -> LeaseRecord:
        """The same, as the store has written it."""
        return LeaseRecord(self.holder, epoch, self.duration, stamp, self.protection, self.directive)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the store: the record (None: there never was one), and by the store's own clock (None: it has none)
    the seconds until it expires, and the seconds since 1970."""

    record: LeaseRecord | None
    expires_in: float | None = None
    now: float | None = None

    @property
    def wall(self) -> float:
        """Seconds since 1970 by the store's clock, or by this machine's for a store without one."""
        return wall_time() if self.now is None else self.now

    @property
    def left(self) -> float | None:
        """`expires_in` as far as it can be believed; None where the store cannot tell: it has no clock, or it says more
        than the whole duration of the last renewal, so that its clock was set back since."""
        return None if self.is_set_back else self.expires_in

    @property
    def is_set_back(self) -> bool:
        """True if the store's clock was set back since the record was written, by more than has passed."""
        record, left = self.record, self.expires_in
        if record is None or record.holder is None or left is None:
            return False
        # A broker writes no duration, and leaves that of the contender before it.
        return left > record.duration and _OURS.search(record.holder) is not None

    @property
    def why_unknown(self) -> str:
        """Why `left` is None."""
        return SET_BACK if self.is_set_back else "the store has no clock"


_OURS = re.compile(r":\d+:\d+:[0-9a-f]{8}$")
"""How the name of each holder ends that `new_holder` has made."""
SET_BACK = "the store's clock was set back"
"""Why what it says is left of a lease is not believed, see `Snapshot.is_set_back`."""


def taken(record: LeaseRecord | None, *, holder: str, duration: float, protection: str = "") -> LeaseRecord:
    """The record that a contender wants in place of a free or expired one: a new and larger epoch, at least."""
    epoch = 1 if record is None else record.epoch + 1
    return LeaseRecord(holder, epoch, duration, protection=protection)


def renewed(record: LeaseRecord, *, duration: float, protection: str = "") -> LeaseRecord:
    """The same grant for `duration` more; the store stamps it."""
    # Spelled out, as in `stamped`: `replace` would be a tenth of what a renewal costs here.
    protection = protection or record.protection
    return LeaseRecord(record.holder, record.epoch, duration, None, protection, record.directive)


def released(record: LeaseRecord) -> LeaseRecord:
    """A free record that keeps its epoch: epochs never start again."""
    return replace(record, holder=None, stamp=None)


def with_directive(record: LeaseRecord, directive: str) -> LeaseRecord:
    """The same, with what an operator wants of it; its expiry stays."""
    return replace(record, directive=directive)


def is_directive(old: LeaseRecord | None, new: LeaseRecord) -> bool:
    """True if `new` is `old` with another directive."""
    return old is not None and old.directive != new.directive and new == replace(old, directive=new.directive)


def forced(record: LeaseRecord, *, by: str, left: float) -> LeaseRecord:
    """`record` taken from a holder that may live, and free only after `left` more seconds, by which it has ended.

    No grant: the epoch stays. Its holder finds another's name at its next renewal and stops; to free the row at once
    would let the next one start beside it. `by` is the holder to be, see `is_forced`.
    """
    return replace(record, holder=by, duration=left, stamp=None, protection="")


def is_forced(holder: str | None) -> bool:
    """True if that is no contender, but who took a lease from one."""
    return bool(holder and holder.startswith(FORCED))


def taken_by_force(holder: str | None) -> str:
    """For people, where a holder `is_forced`: who took the lease. Empty for a contender."""
    if not holder or not is_forced(holder):
        return ""
    by = holder.rsplit(":", 3)[0].partition(":")[2]
    return f"{by} took it by force; it is free once the former master's lease has run out"


def is_grant_of(record: LeaseRecord | None, holder: str, epoch: int | None = None) -> bool:
    """True if `record` is `holder`'s (and of `epoch`, if given)."""
    return record is not None and record.holder == holder and epoch in (None, record.epoch)


def expires_in(seen: Snapshot, *, still_for: float) -> float:
    """Seconds until another may take what was `seen`; 0 or less means now.

    The store's clock decides. Where it cannot tell (`Snapshot.left`), standing still does: the record may be taken
    after it was seen unchanged for `still_for` >= its own stored duration. Its holder counts its deadline from before
    it was written, and so from before it was seen. The contender's own duration never counts.
    """
    if seen.record is None or seen.record.holder is None:
        return 0.0
    if seen.left is not None:
        return seen.left
    return seen.record.duration - still_for


class UnchangedSince:
    """For how long a record was seen unchanged, by an observer that looks again and again."""

    def __init__(self) -> None:
        self._record: LeaseRecord | None = None
        self._since = -math.inf  # no look yet
        self.has_moved = False
        """True once it was seen to change."""

    def still_for(self, record: LeaseRecord | None, now: float) -> float:
        """Seconds. `now` is after the answer: the record may have been renewed while it was on its way."""
        if record != self._record or self._since < 0:
            self.has_moved |= self._since >= 0
            self._record, self._since = record, now
        return now - self._since


def new_holder(label: str = "") -> str:
    """`label:pid:start:random`, unique for every hold, so that equal labels never share a lease.

    Raises ConfigError if the whole is longer than `MAX_NAME` characters.
    """
    holder = f"{label or os.uname().nodename}:{os.getpid()}:{wall_time():.0f}:{os.urandom(4).hex()}"
    if len(holder) > MAX_NAME:
        raise ConfigError("holder", f"is {len(holder)} characters with its unique ending, {MAX_NAME} fit: shorten it")
    return holder
