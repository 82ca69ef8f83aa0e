"""A locker that does not renew for work that was stopped: by SIGSTOP, Ctrl-Z, a debugger, or by a terminal that it is
in the background of. It could not end itself, and it does nothing that the lease is good for.
"""

from __future__ import annotations

from collections.abc import Callable

from ..election.ports import Denied, Grant, Locker
from ..errors import StoreError
from ..stores.wrapped import Wrapped


class SkipWhileStopped(Wrapped):
    """`locker`, but no renewal for work that stands still now, and stood still at the renewal before."""

    def __init__(self, locker: Locker, *, name: str, stands_still: Callable[[], str]) -> None:
        """`name` is the lease's; `stands_still` says in words which process was stopped, or nothing."""
        super().__init__(locker)
        self._name, self._stands_still = name, stands_still
        self._before = ""

    def renew(self) -> Grant | Denied:
        before, self._before = self._before, self._stands_still()
        if before and self._before:
            raise StoreError(self._name, f"not asked, because {self._before}")
        return super().renew()
