"""A locker that tells how long each of its renewals took, for metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ..clock import Clock
from ..election.ports import Denied, Grant, Locker
from .wrapped import Wrapped

OnRenewal = Callable[[float, bool], None]
"""Gets the seconds that a renewal took, and whether it was confirmed. Must not wait."""


class Timed(Wrapped):
    """`locker`, whose renewals are told to `on_renewal`."""

    def __init__(self, locker: Locker, clock: Clock, on_renewal: OnRenewal) -> None:
        super().__init__(locker)
        self._clock, self._on_renewal = clock, on_renewal

    def renew(self) -> Grant | Denied:
        began, done = self._clock.now(), False
        try:
            answer = super().renew()
            done = isinstance(answer, Grant)
            return answer
        finally:
            with contextlib.suppress(Exception):  # a number that cannot be told is no reason to lose a lease
                self._on_renewal(self._clock.now() - began, done)
