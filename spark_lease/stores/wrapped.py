"""A locker that does as another does; others build on it and change one thing."""

from __future__ import annotations

from ..election.ports import Denied, Grant, Locker, NotesEnds


class Wrapped:
    """Implements `Locker` and `NotesEnds`."""

    def __init__(self, locker: Locker) -> None:
        self._locker = locker

    def try_acquire(self) -> Grant | Denied:
        return self._locker.try_acquire()

    def renew(self) -> Grant | Denied:
        return self._locker.renew()

    def release(self) -> bool:
        return self._locker.release()

    def wait(self, timeout: float, poll: float) -> None:
        self._locker.wait(timeout, poll)

    def ends_as(self, why: str, detail: str) -> None:
        if isinstance(self._locker, NotesEnds):
            self._locker.ends_as(why, detail)

    def note_loss(self, epoch: int, why: str, at: int, detail: str) -> None:
        if isinstance(self._locker, NotesEnds):
            self._locker.note_loss(epoch, why, at, detail)

    def close(self) -> None:
        self._locker.close()
