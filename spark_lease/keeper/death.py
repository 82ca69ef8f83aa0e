"""Proof that a process, and all that it started, is gone: what an early release stands on.

A closed pipe or socket proves nothing, a forked child keeps it open; a pidfd does (pidfd_open(2)). And the end of a
driver proves nothing about its workers: they are found by the mark that they inherited, and killed, until twice nobody
is left. Only this machine is looked at.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

from ..clock import Clock
from ..processes import Process, kill, look, marked, processes

_LOOK_AGAIN = 0.005


class Watched:
    """One process, which may not be our child. Raises ProcessLookupError if there is none (any more)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        before = look(pid)
        with contextlib.suppress(AttributeError, PermissionError):  # an old kernel, or a sandbox that forbids it
            self._fd = os.pidfd_open(pid)
        # Looked at on both sides of the pidfd: it may have ended in between, and its number be another's.
        after = look(pid)
        if before is None or after is None or after.started != before.started:
            self.close()
            raise ProcessLookupError(pid)
        self._started = before.started

    def fileno(self) -> int:
        """Readable once the process has ended; -1 where there is no such thing: then ask `ended` now and then."""
        return self._fd

    @property
    def ended(self) -> bool:
        """True once it has ended, also if nobody has buried it yet."""
        if self._fd >= 0:
            return bool(select.select([self._fd], [], [], 0)[0])
        # Without a pidfd: the number may belong to somebody else by now, who started at another time.
        found = look(self.pid)
        return found is None or found.started != self._started

    @property
    def stopped(self) -> bool:
        """True while it stands still, by SIGSTOP, Ctrl-Z or a debugger (proc(5): states T and t)."""
        found = look(self.pid)
        return found is not None and found.state in "Tt"

    def kill(self) -> None:
        if not self.ended:
            found = look(self.pid)
            kill([found] if found else [])

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sweep(mark: str, *, group: int = 0, clock: Clock, until: float) -> bool:
    """SIGKILL whoever carries `mark` or is in process group `group`, until twice nobody is left.

    False if somebody is, at the instant `until`. Call it after those that may start others are dead.
    """
    never, clean = threading.Event(), 0
    while clean < 2:  # a worker may have been between fork and the first look
        left = _left(mark, group)
        kill(left)
        clean = 0 if left else clean + 1
        if left:
            if clock.now() >= until:
                return False
            clock.wait(never, _LOOK_AGAIN)
    return True


def _left(mark: str, group: int) -> list[Process]:
    in_group = [each for each in processes().values() if group and each.group == group and each.alive]
    return [*marked(mark), *(each for each in in_group if each.pid != os.getpid())]
