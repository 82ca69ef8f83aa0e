"""Signals and kills the command of a front door and all that it started, and knows when they have ended."""

import contextlib
import logging
import os
import signal
import threading
from contextlib import closing

from ..clock import Clock
from ..system.containment import Init
from ..system.descriptors import readable
from ..system.processes import Identity, Process, kill, look, proc_file, processes, with_descendants
from .channel import Channel
from .death import Watched
from .guarded_processes import GuardedProcesses

log = logging.getLogger(__name__)

_LOOK_AGAIN, _LOOK_SOON, _AT_ONCE = 0.05, 0.005, 0.02
_NEVER = threading.Event()


class ContainedWork:
    """The command and everything else in its namespace."""

    def __init__(self, init: Init, channel: Channel, clock: Clock) -> None:
        self._init, self._channel, self._clock = init, channel, clock

    def signal(self, number: int) -> None:
        self._channel.tell({"signal": number})

    def wait_until_over(self, until: float) -> bool:
        while not self._init.ended and (left := until - self._clock.now()) > 0:
            readable([self._init], left)
        return self._init.ended

    def kill(self) -> None:
        self._init.kill()

    def out_of_reach(self) -> list[Process]:
        return []


class SearchedWork:
    """The command and its descendants, as far as they can be found."""

    def __init__(
        self, group: int, supervisor: int, clock: Clock, *, neighbours: set[Identity], found_by: bytes
    ) -> None:
        """`found_by`: an entry of the command's environment, if only that tells its orphans from others; else empty."""
        self._group, self._supervisor, self._clock = group, supervisor, clock
        self._neighbours, self._found_by = neighbours, found_by
        self._ended_with: int | None = None
        self._said_blind = False
        head = look(supervisor)
        self._processes = GuardedProcesses(lambda: {supervisor: head.started if head else 0})

    def signal(self, number: int) -> None:
        try:
            kill(self._descendants(), number)
        except OSError as error:  # for example, no more files may be opened
            self._signal_group(number)
            if not self._said_blind:
                self._said_blind = True
                log.warning("cannot look for what the command has started, its process group is signalled: %s", error)

    def wait_until_over(self, until: float) -> bool:
        while not (gone := self._all_are_gone()) and (left := until - self._clock.now()) > 0:
            with contextlib.suppress(ProcessLookupError), closing(Watched(self._supervisor)) as supervisor:
                if supervisor.fileno() >= 0:
                    readable([supervisor], min(left, _LOOK_AGAIN))
                    continue
            self._clock.wait(_NEVER, min(left, _LOOK_SOON))
        return gone

    def kill(self) -> None:
        # The group first, and most often that is all. If there are very many processes, the search for those that left
        # the group takes longer than the kernel waits before it kills us too.
        self._signal_group(signal.SIGKILL)
        if not self.wait_until_over(self._clock.now() + _AT_ONCE):
            self.signal(signal.SIGKILL)

    def out_of_reach(self) -> list[Process]:
        with contextlib.suppress(OSError):  # the next call looks again
            self._processes.grow()
        return self._processes.out_of_reach()

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)

    def _descendants(self) -> list[Process]:
        """Descendants of the supervisor, orphans that became ours if it was killed, and the command's group."""
        everything = processes()
        found = [
            each
            for each in everything.values()
            if each.alive
            and each.identity not in self._neighbours
            and (each.parent in (self._supervisor, os.getpid()) or each.group == self._group or self._is_told(each))
        ]
        return [each for each in with_descendants(found, everything) if each.pid != self._supervisor]

    def _is_told(self, process: Process) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._found_by) and self._found_by in proc_file(process.pid, "environ")
        return False

    def _all_are_gone(self) -> bool:
        """True once all have certainly ended: an orphan becomes a child of the supervisor, which ends by itself after
        its last child; if the supervisor was killed, the orphan becomes ours."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._supervisor:
                    self._ended_with = ended[1]
        if self._ended_with is None:
            return False
        with contextlib.suppress(OSError):  # without a look nothing is proven
            return (self._ended_with == 0 and not self._found_by) or not self._descendants()
        return False


GuardedWork = ContainedWork | SearchedWork
"""The command and all that it started."""
