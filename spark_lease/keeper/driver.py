"""A driver as the process beside it sees it: what belongs to it, whether it stands still, and its proven end.

```
python ─── watched by a pidfd ─── strand        Its own forked children map its published deadline.
 └ java ── watched by a pidfd ─── strand        Told by Python when it starts one.
    └ pyspark.daemon ──────────── strand to its group, found among the JVM's children when the first Python task runs.
       └ workers                                Everything that was started, not forked, carries the mark.
```
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path

from ..clock import Clock
from ..processes import Births, Process, kill, look, marked, proc_file, processes
from ..system.containment import Init
from .death import Watched, sweep
from .kernel import Strand, Wire

KEEPS = "spark-lease keeps"
"""What a keeper's command line says."""
_PROC = Path("/proc")


class Tasks(Enum):
    """Where the tasks of a driver run, as far as Python has said."""

    UNKNOWN = auto()
    HERE = auto()
    ELSEWHERE = auto()
    """Or they did, or without the mark: nothing is proven by what is found here, and never will be."""


class EarlyRelease:
    """Whether the end of a driver on this machine proves that nothing of it runs, as `release_on_death` says."""

    def __init__(self, setting: str | float, clock: Clock) -> None:
        self._setting, self._clock = setting, clock
        self._tasks = Tasks.UNKNOWN
        self._dead_since: float | None = None

    def tasks_run(self, where: Tasks) -> None:
        if self._tasks is not Tasks.ELSEWHERE:
            self._tasks = where

    @property
    def is_provable(self) -> bool:
        """False if it never will be proven: tasks may run on other machines, or without the mark."""
        if self._setting == "local":
            return self._tasks is Tasks.HERE
        return self._setting != "never"

    @property
    def grace(self) -> float:
        """Seconds that executors elsewhere may take to end after their driver."""
        return self._setting if isinstance(self._setting, float) else 0.0

    def is_proven(self, *, gone: bool) -> bool:
        """`gone`: nothing of the driver is left on this machine."""
        if not self.is_provable or not gone:
            return False
        self._dead_since = self._dead_since or self._clock.now()
        return self._clock.now() - self._dead_since >= self.grace


class Driver:
    """Python, its JVM and its workers. Raises ProcessLookupError if there is no such Python any more."""

    def __init__(
        self,
        pid: int,
        *,
        mark: str,
        mapped: str,
        wire: Wire | None,
        on_lost_exit: bool,
        release_on_death: str | float,
        clock: Clock,
    ) -> None:
        """`mark` and `mapped` find its children. `on_lost_exit`: Python is not to survive a loss. `wire` None: the
        kernel does no part of it."""
        self._clock, self._mark, self._mapped, self._wire = clock, mark, mapped, wire
        self._python_too, self.early_release = on_lost_exit, EarlyRelease(release_on_death, clock)
        self.python = Watched(pid)
        self.jvm: Watched | None = None
        self._groups: set[int] = set()
        self._strands: dict[int, Strand] = {}
        self._held: list[Strand] = []
        self._births = Births()
        self._known, self._joining = frozenset[str](), set[int]()
        self._family: dict[int, Process] = {}
        self._killed = False
        self.may_have_started = True

    def attach_jvm(self, pid: int, *, marked: bool) -> None:
        """Another JVM from now on; 0: none. `marked`: it was started with the mark. Raises ProcessLookupError."""
        if self.jvm:
            self.jvm.close()
            self._cut(self.jvm.pid)
        self.jvm = Watched(pid) if pid else None
        self._known = frozenset()
        # Not until its master is known: executors of their own would be nobody's children here.
        self.early_release.tasks_run(Tasks.ELSEWHERE if not marked else Tasks.UNKNOWN if pid else Tasks.HERE)

    def attach_master(self, *, local: bool) -> None:
        """Where tasks run. Once they ran elsewhere, some may for ever."""
        self.early_release.tasks_run(Tasks.HERE if local else Tasks.ELSEWHERE)

    def ends(self) -> list[Watched | Init]:
        """What to watch for an end."""
        return [self.python]

    def strand_to(self, target: int) -> Strand | None:
        """A new strand to `target`, to be held by Python; None where the kernel does no part, or it has ended.

        Raises OSError if there is none to be had now.
        """
        if self._wire is None:
            return None
        self._cut(target)
        try:
            self._strands[target] = self._wire.strand(target)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
            return None
        return self._strands[target]

    def hold(self, fd: int) -> None:
        """A strand of Python's own wire, which ends `JVM` or workers together with Python."""
        self._held.append(Strand(fd))

    def look_around(self) -> list[int]:
        """The groups of Python workers that have shown up since the last look. Cheap where nothing was started."""
        if not _PROC.is_dir():
            return []
        self.may_have_started = self._births.any() or not self._known
        if self.may_have_started:
            self._look_at_the_new()
        return self._new_leaders()

    def _look_at_the_new(self) -> None:
        here = frozenset(os.listdir(_PROC))
        parents = {each.pid: each.started for each in (self.python, self.jvm) if each}
        parents |= {each.pid: each.started for each in self._family.values()}
        for name in sorted(here - self._known, key=len):
            if name.isdigit() and (found := look(int(name))) and self._is_kin(found, parents):
                self._family[found.pid] = found
                parents.setdefault(found.pid, found.started)
                if self.jvm and found.parent == self.jvm.pid:
                    self._joining.add(found.pid)
        self._known = here
        for group in {each for each in self._groups if str(each) not in here}:
            self._forget_if_empty(group)
        self._family = {pid: each for pid, each in self._family.items() if str(pid) in here}

    def _is_kin(self, process: Process, parents: Mapping[int, int]) -> bool:
        """True for a child of whom we know; not for us and our like, who keep the other leases of this driver."""
        started = parents.get(process.parent)
        # Older than its parent: that number was another's. Under spark-submit the JVM is the parent of Python.
        heads = (self.python.pid, self.jvm.pid if self.jvm else 0, os.getpid())
        if started is None or process.started < started or process.pid in heads:
            return False
        with contextlib.suppress(OSError):
            return KEEPS.encode() not in proc_file(process.pid, "cmdline")
        return False

    def _forget_if_empty(self, group: int) -> None:
        """A number is not given to anybody else while a group bears it; afterwards it may be a stranger's."""
        if all(each.group != group for each in processes().values()):
            self._groups.discard(group)
            self._cut(-group)

    def _new_leaders(self) -> list[int]:
        fresh = []
        for pid in list(self._joining):
            found = look(pid)
            if found is None or found.group == pid:  # it takes a moment between its start and its setpgid(2)
                self._joining.discard(pid)
            if found and found.group == pid:
                self._groups.add(pid)
                fresh.append(pid)
        return fresh

    def stands_still(self) -> str:
        """Who of Python and its JVM was stopped from outside; empty if nobody was."""
        if self.python.stopped:
            return f"the driver (pid {self.python.pid})"
        return f"its JVM (pid {self.jvm.pid})" if self.jvm and self.jvm.stopped else ""

    def kill(self) -> None:
        """End all of it, Python as well if it is not to survive. Waits for nothing."""
        self._killed = True
        if self._python_too:
            self.look_around()  # while its children still say who their parent is
            self.python.kill()
        if self.jvm:
            self.jvm.kill()
        kill([each for pid in self._groups if (each := look(pid))])
        if self.python.ended or self._python_too:
            kill([*self._kin(), *marked(self._mark)])

    def is_gone(self, until: float) -> bool:
        """True once nothing of it is left here. What is left after Python is killed; looks until `until`."""
        if self.jvm and not self.jvm.ended:
            return False
        if not self.python.ended:  # it may live on where only Spark is to be stopped
            return self._killed and not self._python_too and not any(look(pid) for pid in self._groups)
        kill(self._kin())
        swept = sweep(self._mark, groups=self._groups, mapped=self._mapped, clock=self._clock, until=until)
        return swept and not self._kin()

    def is_over(self, until: float) -> bool:
        """True once nothing of it runs any more, here or elsewhere, as far as `release_on_death` says so."""
        may_be_over = self.early_release.is_provable and self.is_gone(until)
        return self.early_release.is_proven(gone=may_be_over)

    def _kin(self) -> list[Process]:
        """Those of the family that are alive: they need not carry the mark, if they were started without it."""
        found = [(each, look(each.pid)) for each in self._family.values()]
        return [now for each, now in found if now and now.started == each.started]

    def disarm(self) -> None:
        """The kernel kills nobody any more."""
        self.untie()
        for target in list(self._strands):
            self._cut(target)

    def untie(self) -> None:
        """The end of Python ends nobody else any more."""
        while self._held:
            strand = self._held.pop()
            strand.disarm()
            strand.close()

    def _cut(self, target: int) -> None:
        if strand := self._strands.pop(target, None):
            strand.disarm()
            strand.close()
