"""A locker that tells how long each of its renewals took, for whoever measures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..clock import Clock
from .base import Grant, Held, Locker, NotesLosses

OnRenewal = Callable[[float, bool], None]
"""Gets the seconds that a renewal took, and whether it was confirmed. Must not wait."""


class Timed:
    """`locker`, whose renewals are told to `on_renewal`. Implements `Locker`."""

    def __init__(self, locker: Locker, clock: Clock, on_renewal: OnRenewal) -> None:
        self._locker, self._clock, self._on_renewal = locker, clock, on_renewal

    def try_acquire(self) -> Grant | Held:
        return self._locker.try_acquire()

    def renew(self) -> Grant | Held:
        began, done = self._clock.now(), False
        try:
            answer = self._locker.renew()
            done = isinstance(answer, Grant)
            return answer
        finally:
            with contextlib.suppress(Exception):  # a number that cannot be told is no reason to lose a lease
                self._on_renewal(self._clock.now() - began, done)

    def release(self) -> bool:
        return self._locker.release()

    def note_loss(self, epoch: int, why: str, at: int, detail: str) -> None:
        if isinstance(self._locker, NotesLosses):
            self._locker.note_loss(epoch, why, at, detail)

    def wait(self, timeout: float, poll: float) -> None:
        self._locker.wait(timeout, poll)

    def close(self) -> None:
        self._locker.close()
