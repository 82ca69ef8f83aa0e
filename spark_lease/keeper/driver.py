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
import os
from pathlib import Path

from ..clock import Clock
from ..processes import kill, look, marked
from .death import Watched, sweep
from .kernel import Strand, Wire

_PROC = Path("/proc")


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
        self._python_too, self._release_on_death = on_lost_exit, release_on_death
        self.python = Watched(pid)
        self.jvm: Watched | None = None
        self._groups: set[int] = set()
        self._strands: dict[int, Strand] = {}
        self._held: list[Strand] = []
        self._known, self._children = frozenset[str](), set[int]()
        self._provable = self._marked = True
        self._remote = False
        self._dead_since: float | None = None

    def attach_jvm(self, pid: int, *, marked: bool) -> None:
        """Another JVM from now on; 0: none. `marked`: it was started with the mark. Raises ProcessLookupError."""
        if self.jvm:
            self.jvm.close()
            self._cut(self.jvm.pid)
        self.jvm = Watched(pid) if pid else None
        self._known = frozenset()
        # Not until its master is known: executors of their own would be nobody's children here.
        self._provable = pid == 0 and not self._remote
        self._marked = marked

    def attach_master(self, *, local: bool) -> None:
        """Where tasks run. Once they ran elsewhere, some may for ever."""
        self._remote |= not local
        self._provable = self._marked and not self._remote

    def strand_to(self, target: int) -> Strand | None:
        """A new strand to `target`, to be held by Python; None where the kernel does no part."""
        if self._wire is None:
            return None
        with contextlib.suppress(OSError):  # it has ended: nothing to kill
            self._strands[target] = self._wire.strand(target)
            return self._strands[target]
        return None

    def hold(self, fd: int) -> None:
        """A strand of Python's own wire, which ends `JVM` or workers together with Python."""
        self._held.append(Strand(fd))

    def new_groups(self) -> list[int]:
        """The groups of Python workers that have shown up since the last look. Cheap where nothing was started."""
        if self.jvm is None or self.jvm.ended:
            return []
        here = frozenset(os.listdir(_PROC))
        for name in here - self._known:
            if name.isdigit() and (found := look(int(name))) and found.parent == self.jvm.pid:
                self._children.add(found.pid)
        self._known = here
        fresh = []
        for pid in list(self._children):
            found = look(pid)
            if found is None:
                self._children.discard(pid)
            elif found.group == pid:  # it takes a moment between its start and its setpgid(2)
                self._children.discard(pid)
                self._groups.add(pid)
                fresh.append(pid)
        return fresh

    def stands_still(self) -> bool:
        """True if Python or its JVM was stopped from outside."""
        return self.python.stopped or (self.jvm is not None and self.jvm.stopped)

    def kill(self) -> None:
        """End all of it, Python as well if it is not to survive. Waits for nothing."""
        if self._python_too:
            self.python.kill()
        if self.jvm:
            self.jvm.kill()
        kill([each for pid in self._groups if (each := look(pid))])
        if self.python.ended or not self._python_too:
            kill(marked(self._mark))

    def is_over(self, until: float) -> bool:
        """True once all of it is certain to be gone. What is left after Python is killed; looks until `until`."""
        if not self.python.ended or (self.jvm and not self.jvm.ended):
            return False
        if not sweep(self._mark, groups=self._groups, mapped=self._mapped, clock=self._clock, until=until):
            return False
        self._dead_since = self._dead_since or self._clock.now()
        if self._release_on_death == "local":
            return self._provable
        return self._clock.now() - self._dead_since >= float(self._release_on_death)

    @property
    def is_provable(self) -> bool:
        """False if `is_over` will never be true: tasks may run on other machines, or without the mark."""
        return self._release_on_death != "never" and (self._provable or self._release_on_death != "local")

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
