"""Proof that a process, and all that it started, is gone: an early release needs it.

The end of a pipe or socket proves nothing, because a forked child may keep it open; a pidfd proves it (pidfd_open(2)).
The end of a driver proves nothing about its workers: they are found by the mark that they inherited, and killed, until
two looks in a row find none. Only this machine is searched.
"""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Collection, Iterable

from ..clock import Clock
from ..system.descriptors import readable
from ..system.processes import Identity, Process, is_alive, kill, look, mapping, marked, processes, with_descendants

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.005


class Watched:
    """One process, which need not be our child. Raises ProcessLookupError if there is none (any more)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        before = look(pid)
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            pass  # raised below
        except (AttributeError, OSError):
            log.debug("no pidfd: an old kernel or Python, or a sandbox that forbids it")
        # Read before and after the pidfd is opened: it may have ended in between, and its pid be another process's.
        after = look(pid)
        if before is None or after is None or after.identity != before.identity:
            self.close()
            raise ProcessLookupError(pid)
        self.started = before.started

    def fileno(self) -> int:
        """Readable once the process has ended; -1 if there are no pidfds: then poll `ended`."""
        return self._fd

    @property
    def ended(self) -> bool:
        """True once it has ended, also if its parent has not reaped it yet."""
        if self._fd >= 0:
            return bool(readable([self._fd], 0))
        return not is_alive((self.pid, self.started))

    @property
    def stopped(self) -> bool:
        """True while it is stopped, by SIGSTOP, Ctrl-Z or a debugger (proc(5): states T and t)."""
        found = look(self.pid)
        return found is not None and found.state in "Tt"

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended, is another user's, or is pid 1, which takes none."""
        if self.pid <= 1:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._fd >= 0:
                signal.pidfd_send_signal(self._fd, number)
            elif not self.ended:
                os.kill(self.pid, number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def stopped(python: Watched, jvm: Watched | None) -> str:
    """Which of Python and its JVM was stopped from outside; empty if neither was."""
    if python.stopped:
        return f"the driver (pid {python.pid}) was stopped"
    return f"its JVM (pid {jvm.pid}) was stopped" if jvm and jvm.stopped else ""


def sweep(
    mark: str,
    *,
    groups: Collection[int] = (),
    mapped: str = "",
    spared: Collection[Identity] = (),
    clock: Clock,
    until: float,
) -> bool:
    """SIGKILL all of `processes_of`, except those `spared`, until two looks in a row find none.

    False if some are left at the instant `until`. Call it once the processes that may start others are dead.
    """
    never, clean = threading.Event(), 0
    while clean < 2:  # a worker may have been in the middle of its fork at the first look
        left = [each for each in processes_of(mark, groups, mapped) if each.identity not in spared]
        kill(left)
        clean = 0 if left else clean + 1
        if left:
            if clock.now() >= until:
                return False
            clock.wait(never, _LOOK_AGAIN)
    return True


def processes_of(mark: str, groups: Collection[int], mapped: str) -> list[Process]:
    """All living processes but this one that carry `mark`, are in one of the `groups`, or map memory named `mapped`."""
    others = [each for each in processes().values() if each.alive and each.pid != os.getpid()]
    found = marked(mark, others) + (mapping(mapped, others) if mapped else [])
    return found + [each for each in others if each.group in groups]


class LeftBehind:
    """Processes that a failed block has left running, and what they start from now on; no others.

    Python is not one of them: it may go on with something else, perhaps under another lease.
    """

    def __init__(self, left: Iterable[Identity]) -> None:
        self._members = set(left)

    def alive(self) -> list[Process]:
        """Those that still run. A grandchild whose parent has ended is known if it was seen before."""
        everything = processes()
        found = with_descendants((each for each in everything.values() if each.identity in self._members), everything)
        self._members |= {each.identity for each in found}
        return found

    def kill(self) -> None:
        kill(self.alive())
