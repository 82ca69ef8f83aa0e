"""The two seams: `Locker`, how a contender takes, keeps and gives back a lock, and `LeaseStore`, for lockers that
are leases. Both are dumb on purpose: deadlines, expiry, epochs and lost answers are judged above them, once.

"No" is a value (`Denied`, None), "don't know" is an exception (`StoreError`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ..errors import Loss
from .record import LeaseRecord, Snapshot


@dataclass(frozen=True, slots=True)
class Grant:
    """Mine, under this epoch. At the instant `give_up_at` (own clock) I am to give it up, says an operator: `why`.
    `over`: the record that it replaced, if it is not a renewal."""

    epoch: int
    give_up_at: float = math.inf
    why: str = ""
    over: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """Not mine. `holder` says whose (None: it is free); it is worth asking again in `expires_in` seconds. `why` says
    what else keeps me from taking it. `may_be_over`: the store cannot tell, and no renewal was seen so far."""

    holder: str | None
    expires_in: float = 0.0
    why: str = ""
    may_be_over: bool = False
    epoch: int = 0
    """Of the record that stands in place of mine."""


class LeaseStore(Protocol):
    """One shared place that keeps lease records. Used by one thread at a time; opens itself when first asked."""

    where: str
    """What to call it in a message, without credentials."""

    def read(self, name: str) -> Snapshot:
        """The record of lease `name` and how long it is still good for. Raises StoreError."""
        ...

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        """Write `new` where `old` stands, in one atomic step, stamped by the store.

        Returns what was written, stamp included, or None if something else than `old` was there; then nothing changed.
        `old` None means that there is no record yet. A `new` without a holder is a release. A `new` with another epoch
        than `old` is a grant, and its epoch the least that will do: a store with a clock raises it to its milliseconds
        since 1970 if they are more, so that epochs grow even over rows that were lost. A `new` that differs from `old`
        in its directive alone (`is_directive`) leaves the expiry as it is.
        Raises StoreError when the outcome is unknown: it may have been written, or may still be.
        """
        ...

    def names(self) -> Sequence[str]:
        """The leases that have a record. Raises StoreError."""
        ...

    def close(self) -> None:
        """Let go of connections. Never raises, releases no lease."""
        ...


@runtime_checkable
class Notifies(Protocol):
    """A `LeaseStore` that can wait by itself, because it is told of a release, or lets go of something meanwhile."""

    def await_release(self, name: str, timeout: float, poll: float) -> LeaseRecord | bool:
        """Return when it is worth looking again, or once the store is closed: at the latest after `timeout` seconds, or
        after `poll` if it is not told of a release.

        The record that a release left behind, if that is what ended the wait; else True. False, at once, if nothing can
        be waited for here. Never raises.
        """
        ...


@runtime_checkable
class HasSession(Protocol):
    """A `LeaseStore` in a database. Its session is open at a grant: no other need be opened to look something up."""

    def session(self) -> AbstractContextManager[Any]:
        """The session of the renewals, as a Connection of SQLAlchemy, for one quick request that ends as theirs do.

        Nothing is renewed meanwhile. After an exception the session is gone, and the next request opens another.
        Raises SQLAlchemyError, StoreError.
        """
        ...

    @property
    def notes(self) -> Notes:
        """The notes beside its leases, each asked for in `session`."""
        ...


class Journal(Protocol):
    """Keeps beside a lease who was granted it and how each hold ended (`journal_entries.py`).

    The lease comes first: what cannot be written is left out, and the next grant fills it in. Nothing here raises.
    """

    def granted(self, holder: str, epoch: int, over: Snapshot) -> None:
        """`holder` was granted the lease in place of the record `over`. Waits for nothing."""
        ...

    def ended(self, epoch: int, why: str, *, at: int, detail: str) -> None:
        """The hold under `epoch` ended, `at` ms since 1970 as its epoch counts them. Waits one `attempt_timeout`."""
        ...

    def close(self) -> None: ...


class Notes(Protocol):
    """Small texts beside the leases, each under a lease, a kind and a key: what a later holder has to find.

    The next holder finds all that earlier holders noted: `add` tells a holder whose lease is gone so.
    """

    where: str

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        """Note `text`, unless there is a note with that key. Durable once it returns.

        Returns the text that stands there then: mine, or that of the first writer. None if the lease `name` is not
        `holder`'s under `epoch` any more; then, at the latest, my work counts for nothing. Raises StoreError.
        """
        ...

    def append(self, name: str, kind: str, key: str, text: str) -> bool:
        """Note `text`, also beside a lease that is not mine; False if the key is there already. Raises StoreError."""
        ...

    def get(self, name: str, kind: str, key: str) -> str | None:
        """The text with that key, if there is one. Raises StoreError."""
        ...

    def all(self, name: str, kind: str) -> dict[str, str]:
        """The texts by their keys. Raises StoreError."""
        ...

    def every(self, name: str, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        """`all` of each of several kinds, asked for at once. Raises StoreError."""
        ...

    def remove(self, name: str, kind: str, key: str) -> bool:
        """False if there is none. Raises StoreError."""
        ...

    def prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        """Remove what was noted more than `age` seconds ago. Raises StoreError."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """What a holder keeps besides its record for as long as it lives: no clock and no restored backup frees it.

    A `RecordRules` that has one grants nothing without it. Calls come from one thread at a time.
    """

    def try_lock(self) -> bool:
        """True if it is mine now; does not wait for it. Raises StoreError."""
        ...

    def is_held(self) -> bool:
        """False if it is certain that it is mine no more. Raises StoreError, which says neither."""
        ...

    def unlock(self) -> None:
        """Give it back, if I have it. Raises StoreError."""
        ...

    def close(self) -> None:
        """Give it back without waiting for anything. Never raises."""
        ...


class Locker(Protocol):
    """What `Contender` needs of any lock. Calls come from one thread at a time."""

    def try_acquire(self) -> Grant | Denied:
        """Take the lock if it is free or expired; does not wait for it. Raises StoreError."""
        ...

    def renew(self) -> Grant | Denied:
        """Keep it: Grant says that it is still mine, Denied that it is not. Raises StoreError, which says neither."""
        ...

    def release(self) -> bool:
        """Give it back if it is mine; False if it was not. Raises StoreError."""
        ...

    def wait(self, timeout: float, poll: float) -> None:
        """Return when it is worth trying again: at the latest after `timeout` seconds, or after `poll` if no store
        tells of a release."""
        ...

    def close(self) -> None:
        """Let go of connections. Never raises, releases nothing."""
        ...


class HeldLease(Protocol):
    """The part of a `GuardedHold` that a fence needs."""

    name: str
    holder: str

    @property
    def epoch(self) -> int: ...

    def check(self) -> int:
        """The epoch, or raises LeaseLost."""
        ...

    def wait_certain(self, timeout: float = ...) -> int:
        """The epoch, once the lease is mine beyond doubt. Raises LeaseLost, StoreError."""
        ...

    def lose(self, reason: Loss, detail: str = "") -> None:
        """Close it from now on; the watching thread demotes."""
        ...

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        """See `GuardedHold.note`."""
        ...

    def noted(self, kind: str) -> dict[str, str]:
        """See `GuardedHold.noted`."""
        ...
