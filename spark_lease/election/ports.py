"""What `election/` needs of others: a `LeaseStore` that reads and swaps records, a `Lock`, a `Journal`, `Notes`.

They decide nothing: deadlines, expiry, epochs and lost answers are judged once, in this folder. "No" is a value
(`Denied`, None), "don't know" is an exception (`StoreError`).
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
    """The lease is ours, under this epoch. At the instant `give_up_at` (own clock) an operator wants it back: `why`.
    `over`: the record that a new grant replaced; None for a renewal."""

    epoch: int
    give_up_at: float = math.inf
    why: str = ""
    over: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The lease is not ours. `holder` has it (None: it is free); ask again in `expires_in` seconds. `why`: the reason,
    if it is not the holder. `may_be_over`: the store has no clock, and no renewal has been seen so far."""

    holder: str | None
    expires_in: float = 0.0
    why: str = ""
    may_be_over: bool = False
    epoch: int = 0
    """Of the record that replaced ours."""


class LeaseStore(Protocol):
    """One shared place that keeps lease records. Used by one thread at a time; opens itself when first asked."""

    where: str
    """Its name in messages, without credentials."""

    def read(self, name: str) -> Snapshot:
        """The record of lease `name` and the seconds until it expires. Raises StoreError."""
        ...

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        """Replace `old` by `new` in one atomic step, stamped by the store.

        Returns what was written, stamp included, or None if the record was not `old`; then nothing changed. `old` None:
        there is no record yet. A `new` without a holder is a release. A `new` whose epoch differs from `old`'s is a
        grant, and its epoch a minimum: a store with a clock raises it to its milliseconds since 1970 if they are more,
        so that epochs grow even if rows were lost. A `new` that differs in its directive alone (`is_directive`) keeps
        the expiry. Raises StoreError if the outcome is unknown: `new` may have been written, or may still be.
        """
        ...

    def names(self) -> Sequence[str]:
        """The names of all leases that have a record. Raises StoreError."""
        ...

    def close(self) -> None:
        """Close the connections. Never raises, releases no lease."""
        ...


@runtime_checkable
class Notifies(Protocol):
    """A `LeaseStore` that waits by itself: it is notified of a release, or frees a resource meanwhile."""

    def await_release(self, name: str, timeout: float, poll: float) -> LeaseRecord | bool:
        """Wait for a release, or until the store is closed: `timeout` seconds at most, `poll` if it is not notified.

        Returns the record that a release left behind, if that ended the wait; else True. False, at once, if this store
        cannot wait. Never raises.
        """
        ...


@runtime_checkable
class HasSession(Protocol):
    """A `LeaseStore` in a database, whose open session can look up other things too."""

    def session(self) -> AbstractContextManager[Any]:
        """The session of the renewals, as an SQLAlchemy Connection, for one short request with their time limit.

        Nothing is renewed meanwhile. An exception closes the session; the next request opens another.
        Raises SQLAlchemyError, StoreError.
        """
        ...

    @property
    def notes(self) -> Notes:
        """The notes beside its leases, read and written in `session`."""
        ...


class Journal(Protocol):
    """Records beside a lease each grant and how each hold ended (`journal_entries.py`).

    The lease comes first: an entry that cannot be written is left out, and the next grant adds it. No method raises.
    """

    def granted(self, holder: str, epoch: int, over: Snapshot) -> None:
        """Record that `holder` was granted the lease in place of `over`. Does not block."""
        ...

    def ended(self, epoch: int, why: str, *, at: int, detail: str) -> None:
        """Record the end of the hold `epoch`, `at` ms since 1970 by its clock. Takes one `attempt_timeout` at most."""
        ...

    def close(self) -> None: ...


class Notes(Protocol):
    """Small texts beside the leases, each under a lease, a kind and a key, for later holders.

    A holder finds all that earlier holders added: `add` refuses a holder whose lease is gone.
    """

    where: str

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        """Note `text`, unless there is a note with that key. Durable once it returns.

        Returns the text that is stored now: `text`, or that of the first writer. None if lease `name` is no longer
        `holder`'s under `epoch`: then the caller's work does not count. Raises StoreError.
        """
        ...

    def append(self, name: str, kind: str, key: str, text: str) -> bool:
        """Note `text`, also beside a lease of another holder; False if the key exists. Raises StoreError."""
        ...

    def get(self, name: str, kind: str, key: str) -> str | None:
        """The text with that key, or None. Raises StoreError."""
        ...

    def all(self, name: str, kind: str) -> dict[str, str]:
        """The texts by their keys. Raises StoreError."""
        ...

    def every(self, name: str, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        """`all` of several kinds, in one request. Raises StoreError."""
        ...

    def remove(self, name: str, kind: str, key: str) -> bool:
        """Remove a note; False if there is none. Raises StoreError."""
        ...

    def prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        """Remove notes older than `age` seconds. Raises StoreError."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that a holder keeps besides its record while it lives: no clock and no restored backup frees it.

    A `RecordRules` with a lock grants nothing without it. One thread at a time calls it.
    """

    def try_lock(self) -> bool:
        """Try to lock, without waiting; True if it is ours now. Raises StoreError."""
        ...

    def is_held(self) -> bool:
        """False if the lock is certainly gone. Raises StoreError if that is unknown."""
        ...

    def unlock(self) -> None:
        """Unlock, if locked. Raises StoreError."""
        ...

    def close(self) -> None:
        """Unlock without waiting. Never raises."""
        ...


class Locker(Protocol):
    """What `Contender` needs of any lock. One thread at a time calls it."""

    def try_acquire(self) -> Grant | Denied:
        """Take the lock if it is free or expired; does not wait for it. Raises StoreError."""
        ...

    def renew(self) -> Grant | Denied:
        """Keep it: Grant if it is still ours, Denied if it is not. Raises StoreError if that is unknown."""
        ...

    def release(self) -> bool:
        """Release it; False if it was not ours. Raises StoreError."""
        ...

    def wait(self, timeout: float, poll: float) -> None:
        """Wait until another attempt is useful: `timeout` seconds at most, `poll` if the store does not notify of a
        release."""
        ...

    def close(self) -> None:
        """Close the connections. Never raises, releases nothing."""
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
        """Wait until no renewal is overdue and return the epoch. Raises LeaseLost, StoreError."""
        ...

    def lose(self, reason: Loss, detail: str = "") -> None:
        """Make the hold lost from now on; the watching thread then demotes."""
        ...

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        """See `GuardedHold.note`."""
        ...

    def noted(self, kind: str) -> dict[str, str]:
        """See `GuardedHold.noted`."""
        ...
