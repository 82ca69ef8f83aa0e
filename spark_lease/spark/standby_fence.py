"""The fence that refuses the Delta transactions of a warm standby until it is master."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import NotMaster


class StandbyFence:
    """Refuses every transaction until this process is master. A `TransactionFence`."""

    property = ""

    def __init__(self, name: str, *, is_master: Callable[[], bool]) -> None:
        self._name, self._is_master = name, is_master
        self.is_open = False
        """The lease is this process's, or not waited for any more."""

    def begin(self, table: str, newest: str | None) -> None:
        if not self.is_open and not self._is_master():
            raise NotMaster(self._name, table)

    def commit(self) -> None:
        """What has begun was allowed to."""

    def aborted(self, table: str) -> None:
        """It wrote nothing."""
