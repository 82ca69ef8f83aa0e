"""A driver inside a namespace of its own, as the keeper outside sees it.

Nothing has to be searched for: the end of the namespace's init is the end of everything that the submission started.
"""

import os
from collections.abc import Collection

from ..clock import Clock
from ..system.containment import Init, pid_of
from ..system.kernel import PipeEnd
from ..system.processes import Process
from .death import Watched
from .driver import EarlyRelease, Tasks


class ContainedDriver:
    """Has what `Driver` has. Raises ProcessLookupError if there is no process `pid` any more."""

    may_have_started = False
    hidden = ""

    def __init__(self, pid: int, init: Init, *, release_on_death: str | float, clock: Clock) -> None:
        self._init, self.early_release = init, EarlyRelease(release_on_death, clock)
        self.python = Watched(pid)
        self.jvm: Watched | None = None
        self._told_jvm = 0

    def look_ahead(self) -> None:
        """There is nothing to be told apart."""

    def begin(self) -> None:
        """What was there before is outside."""

    def hold(self, target: int, fd: int) -> None:
        """Take a pidfd of the JVM that is attached next: its number here is another than inside."""
        self._told_jvm = pid_of(fd)
        os.close(fd)

    def attach_jvm(self, pid: int, *, marked: bool) -> None:
        """Another JVM from now on; `pid` 0: none. Raises ProcessLookupError."""
        if self.jvm:
            self.jvm.close()
        self.jvm = Watched(self._told_jvm) if pid else None
        self.early_release.tasks_run(Tasks.UNKNOWN if pid else Tasks.HERE)

    def ends(self) -> list[Watched | Init]:
        """What to watch for an end."""
        return [self.python, self._init]

    def stands_still(self) -> str:
        """Which of Python and its JVM was stopped from outside; empty if neither was."""
        if self.python.stopped:
            return f"the driver (pid {self.python.pid}) was stopped"
        return f"its JVM (pid {self.jvm.pid}) was stopped" if self.jvm and self.jvm.stopped else ""

    def kill(self) -> None:
        """End everything inside. Waits for nothing."""
        self._init.kill()

    def is_gone(self, until: float) -> bool:
        """True once everything inside has ended."""
        return self._init.ended

    def is_over(self, until: float) -> bool:
        """True once nothing of it runs any more, here or elsewhere, as far as `release_on_death` says so."""
        return self.early_release.is_proven(gone=self._init.ended)

    def left_behind(self, *, thoroughly: bool) -> list[Process]:
        """Nothing: the lease is kept until everything inside has ended."""
        return []

    def untie_all_but(self, left: Collection[tuple[int, int]]) -> None:
        """Nothing is tied."""

    def close(self) -> None:
        """There is no sweeper."""

    def pipe_end_to(self, target: int) -> PipeEnd | None:
        """None: the parent-death signal ends everything inside with the keeper."""
        return None

    def look_around(self) -> tuple[list[int], list[int]]:
        """Nothing has to be tied."""
        return [], []

    def out_of_reach(self) -> list[Process]:
        """The kernel ends every user's processes inside."""
        return []

    def disarm_kernel(self) -> None:
        """The end of Python ends nothing else."""

    def disarm(self) -> None:
        """The end of the keeper goes on to end what is inside."""
