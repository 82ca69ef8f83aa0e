"""A driver inside a namespace of its own, as the keeper outside sees it.

No process must be searched for: the end of the namespace's init is the end of everything that the submission started.
"""

import os

from ..clock import Clock
from ..config.settings import Config
from ..system.containment import Init, pid_of
from ..system.processes import Process
from .death import Watched
from .driver import EarlyRelease, Tasks


class ContainedDriver:
    """Has the methods of `Driver`. Raises ProcessLookupError if there is no process `pid` any more."""

    may_have_started = False
    hidden = ""

    def __init__(self, pid: int, config: Config, *, init: Init, clock: Clock) -> None:
        self._init, self.early_release = init, EarlyRelease(config.release_on_death, clock)
        self.python = Watched(pid)
        self.jvm: Watched | None = None
        self._told_jvm = 0

    def _nothing(self, *_: object, **__: object) -> None:
        """Do nothing: the end of init ends all inside, so no process must be told apart, tied or swept."""

    def _none(self, *_: object, **__: object) -> list[Process]:
        """Find none: the lease is kept until everything inside has ended, and the kernel kills every user there."""
        return []

    look_ahead = begin = untie_all_but = pipe_end_to = close = disarm_kernel = disarm = _nothing
    left_behind = out_of_reach = _none

    def hold(self, target: int, fd: int) -> None:
        """Take a pidfd of the JVM that is attached next: its pid here differs from its pid inside."""
        self._told_jvm = pid_of(fd)
        os.close(fd)

    def attach_jvm(self, pid: int, *, marked: bool) -> None:
        if self.jvm:
            self.jvm.close()
        self.jvm = Watched(self._told_jvm) if pid else None
        self.early_release.tasks_run(Tasks.UNKNOWN if pid else Tasks.HERE)

    def ends(self) -> list[Watched | Init]:
        return [self.python, self._init]

    def kill(self) -> None:
        self._init.kill()

    def is_gone(self, until: float) -> bool:
        return self._init.ended

    def is_over(self, until: float) -> bool:
        return self.early_release.is_proven(gone=self._init.ended)

    def look_around(self) -> tuple[list[int], list[int]]:
        """Find none: no process must be tied."""
        return [], []
