"""Ties the JVM, the children and the worker groups of a driver to its Python by pipe ends: they end with it."""

from __future__ import annotations

import logging

from .channel import Channel
from .contained import ContainedDriver
from .driver import Driver

log = logging.getLogger(__name__)


class Ties:
    """Ties processes of a driver to its Python. What cannot be tied now is tied at the next look."""

    def __init__(self, driver: Driver | ContainedDriver, channel: Channel, *, lease: str) -> None:
        self._driver, self._channel, self._lease = driver, channel, lease
        self._owed: set[int] = set()

    def look(self) -> None:
        """Tie what has shown up since the last look, and let go of what has ended."""
        appeared, ended = self._driver.look_around()
        for target in {*self._owed, *appeared} - set(ended):
            self.tie(target)
        for target in ended:
            self._owed.discard(target)
            self._channel.tell({"drop": target})

    def tie_jvm(self, pid: int) -> None:
        """A new JVM, 0 for none; what hung on the one before is owed no more."""
        self._owed.clear()
        self.tie(pid)

    def tie(self, target: int) -> None:
        """Have Python hold a pipe end to a process, or to minus a group."""
        self._owed.discard(target)
        try:
            pipe_end = self._driver.pipe_end_to(target) if target else None
            handed = pipe_end is None or self._channel.tell({"hold": target}, [pipe_end.fd])
        except PermissionError:  # it has become another user, and nothing of ours can end it
            return
        except OSError as error:
            log.warning("%s: cannot arm the kill pipe of process %d yet: %s", self._lease, target, error)
            handed = False
        if not handed:
            self._owed.add(target)
