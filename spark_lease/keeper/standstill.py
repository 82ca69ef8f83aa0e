"""A locker that does not renew for work that was stopped: by SIGSTOP, Ctrl-Z, a debugger, or by a terminal that it is
in the background of. It could not end itself, and it does nothing that the lease is good for.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import StoreError
from ..lockers.base import Grant, Held, Locker, NotesLosses


class WhileItMoves:
    """`locker`, but no renewal for work that stands still now, and stood still at the renewal before."""

    def __init__(self, locker: Locker, *, name: str, stands_still: Callable[[], str]) -> None:
        """`name` is the lease's; `stands_still` says in words who does, or nothing."""
        self._locker, self._name, self._stands_still = locker, name, stands_still
        self._before = ""

    def try_acquire(self) -> Grant | Held:
        return self._locker.try_acquire()

    def renew(self) -> Grant | Held:
        before, self._before = self._before, self._stands_still()
        if before and self._before:
            raise StoreError(self._name, f"not asked, because {self._before} was stopped")
        return self._locker.renew()

    def release(self) -> bool:
        return self._locker.release()

    def note_loss(self, epoch: int, why: str, at: int, detail: str) -> None:
        if isinstance(self._locker, NotesLosses):
            self._locker.note_loss(epoch, why, at, detail)

    def wait(self, timeout: float, poll: float) -> None:
        self._locker.wait(timeout, poll)

    def close(self) -> None:
        self._locker.close()
