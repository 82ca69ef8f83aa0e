"""A driver as its keeper sees it: its processes, whether it is stopped, and the proof of its end.

```
python ─── watched by a pidfd ─── pipe end        Its own forked children map its published deadline.
 └ java ── watched by a pidfd ─── pipe end        Told by Python when it starts one.
    └ pyspark.daemon ──────────── pipe end to its group, found among the JVM's children when the first Python task runs.
       └ workers                                Every process that was started, not forked, carries the mark.
```
"""

import contextlib
import errno
import signal
from collections.abc import Collection
from enum import Enum, auto

from ..clock import Clock
from ..config.settings import Config
from ..system.containment import Init
from ..system.kernel import KillPipe, PipeEnd, is_one_of_the_last
from ..system.processes import Identity, Process, is_proc_there, kill, look, marked, processes, sees_others
from .death import Watched, processes_of, sweep
from .guarded_processes import GuardedProcesses, is_helper
from .sweeper import Sweeper

_GENERATIONS = 20
"""How often to look for children of processes that were just stopped."""
HIDDEN = "/proc hides other users' processes (hidepid)"
NO_PROC = "no /proc is mounted"
_JOINS = 2
"""Looks after which a child of the JVM that leads no group is not the PySpark daemon."""


class Tasks(Enum):
    """Where the tasks of a driver run, as far as Python has reported."""

    UNKNOWN = auto()
    HERE = auto()
    ELSEWHERE = auto()
    """Or they once did, or run without the mark: a search of this machine proves nothing, now or later."""


class EarlyRelease:
    """Decides by `release_on_death` whether a driver's end on this machine proves that nothing of it runs."""

    def __init__(self, setting: str | float, clock: Clock) -> None:
        self._setting, self._clock = setting, clock
        self._tasks = Tasks.UNKNOWN
        self._dead_since: float | None = None

    def tasks_run(self, where: Tasks) -> None:
        """Set where the tasks run. Once they ran elsewhere, some may do so for ever."""
        if self._tasks is not Tasks.ELSEWHERE:
            self._tasks = where

    @property
    def is_provable(self) -> bool:
        """False if it can never be proven: tasks may run on other machines, or without the mark."""
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
        config: Config,
        *,
        mark: str,
        mapped: str,
        kill_pipe: KillPipe | None,
        clock: Clock,
        sweeper: Sweeper | None = None,
    ) -> None:
        """`mark` and `mapped` find its children. `kill_pipe` None: the kernel does no part of it."""
        self._clock, self._mark, self._mapped, self._kill_pipe = clock, mark, mapped, kill_pipe
        self._sweeper = sweeper
        self._python_too = config.on_lost == "exit"
        self.early_release = EarlyRelease(config.release_on_death, clock)
        self.python = Watched(pid)
        self.jvm: Watched | None = None
        self._groups: set[int] = set()
        self._pipe_ends: dict[int, PipeEnd] = {}
        self._held: dict[int, PipeEnd] = {}
        self._joining = dict[int, int]()
        self._processes = GuardedProcesses(self._heads)
        self._killed = False
        self.hidden = "" if sees_others() else HIDDEN if is_proc_there() else NO_PROC
        """Why some processes that were started cannot be seen here; empty if all can."""
        if self.hidden:
            self.early_release.tasks_run(Tasks.ELSEWHERE)

    def attach_jvm(self, pid: int, *, marked: bool) -> None:
        """Watch another JVM from now on; 0: none. `marked`: it was started with the mark. Raises ProcessLookupError."""
        if self.jvm:
            self.jvm.close()
            self._cut(self.jvm.pid)
        self.jvm = Watched(pid) if pid else None
        self._processes.forget_what_was_seen()
        # Unknown until its Spark master is known: separate executors would not be children of this driver.
        self.early_release.tasks_run(Tasks.ELSEWHERE if not marked else Tasks.UNKNOWN if pid else Tasks.HERE)

    def ends(self) -> list[Watched | Init]:
        """The processes to watch for their end."""
        return [self.python]

    def pipe_end_to(self, target: int) -> PipeEnd | None:
        """A new pipe end to `target`, for Python to hold; None if the kernel cannot do its part, or `target` has ended.

        Raises OSError if none can be made now.
        """
        if self._kill_pipe is None:
            return None
        self._cut(target)
        try:
            made = self._kill_pipe.pipe_end(target)
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise
            return None
        if is_one_of_the_last(made.fd):
            made.close()
            raise OSError(errno.EMFILE, "the last descriptors are kept for the lease store: raise the hard ulimit -n")
        self._pipe_ends[target] = made
        return made

    def look_ahead(self) -> None:
        """Look around while the driver waits for the lease, so that `begin` takes less time."""
        self._processes.look_ahead(self._mark)

    def begin(self) -> None:
        """The block begins: existing processes are not its work, except JVM and workers. Call it before any look."""
        self._processes.leave_out_what_is_there(self._mark)
        if self._sweeper:
            self._sweeper.arm(self._processes.before)

    def hold(self, target: int, fd: int) -> None:
        """Hold a pipe end of Python's own kill pipe, which ends the JVM, a group or a child together with Python."""
        if before := self._held.pop(target, None):
            before.close()
        self._held[target] = PipeEnd(fd)
        if self._kill_pipe is None:  # it was on its way during `disarm`
            self._cut(target)
        elif is_one_of_the_last(fd):  # it would take a descriptor that the store needs
            self._held.pop(target).close()

    @property
    def may_have_started(self) -> bool:
        return self._processes.may_have_grown

    def look_around(self) -> tuple[list[int], list[int]]:
        """What was started since the last look, and what has ended: pids, and minus the groups of Python workers."""
        fresh = self._processes.grow()
        jvm = self.jvm.pid if self.jvm else 0
        self._joining |= {each.pid: 0 for each in fresh if each.parent == jvm}
        appeared = [each.pid for each in fresh if each.parent != jvm]
        for pid in list(self._joining):
            found = look(pid)
            self._joining[pid] += 1
            if found and found.group == pid:
                self._groups.add(pid)
            if found is None or found.group == pid or self._joining[pid] > _JOINS:
                del self._joining[pid]
                appeared += [-pid if found.group == pid else pid] if found else []
        ended = [target for target in self._pipe_ends if self._has_ended(target)]
        for target in ended:
            self._cut(target)
        for group in [group for group in self._groups if not look(group)]:
            ended += self._forget_if_empty(group)
        return [each for each in appeared if each < 0 or self._python_too], ended

    def out_of_reach(self) -> list[Process]:
        """The processes that the driver has started and that we may not kill."""
        return self._processes.out_of_reach()

    def left_behind(self, *, thoroughly: bool) -> list[Process]:
        """Processes that the block has started and that still run. `thoroughly`: also those that no look has seen.

        Without processes that Spark has started, and without neighbours, earlier workers and their descendants.
        """
        self._processes.grow(thoroughly=thoroughly)
        found = self._processes.alive()
        if thoroughly:
            known = {each.identity for each in found}
            found += [each for each in processes_of(self._mark, (), self._mapped) if each.identity not in known]
        everything = processes() if found else {}

        def is_its_own(process: Process | None) -> bool:
            while process and process.pid != self.python.pid:
                is_sparks = (self.jvm and process.pid == self.jvm.pid) or process.group in self._groups
                if is_sparks or process.identity in self._processes.before | self._processes.workers:
                    return False
                process = everything.get(process.parent)
            return True

        others = [each for each in found if each.pid != self.python.pid and not is_helper(each.pid)]
        return [each for each in others if is_its_own(each)]

    def untie_all_but(self, left: Collection[Identity]) -> None:
        """From now on the end of this process kills nothing but `left`."""
        if self._sweeper:
            self._sweeper.kill_only(left)
        pids = {pid for pid, _ in left}
        for target in [each for each in self._pipe_ends if each not in pids]:
            self._cut(target)

    def _has_ended(self, target: int) -> bool:
        return target > 0 and target not in self._heads() and look(target) is None

    def _heads(self) -> dict[int, int]:
        return {each.pid: each.started for each in (self.python, self.jvm) if each}

    def _forget_if_empty(self, group: int) -> list[int]:
        """Forget an empty group: its number may be reused from now on."""
        with contextlib.suppress(OSError):  # no more files may be opened: the next look tries again
            everything = processes().values()
            if not any(each.group == group for each in everything):
                self._groups.discard(group)
                self._cut(-group)
                return [-group]
        return []

    def kill(self) -> None:
        """Kill all of it, Python too if it must not survive. Does not block."""
        self._killed = True
        if self.python.ended or self._python_too:
            self._stop_family()
            self.python.kill()
        if self.jvm:
            self.jvm.kill()
        kill([each for pid in self._groups if (each := look(pid))])
        if self.python.ended or self._python_too:
            left = [each for each in marked(self._mark) if each.identity not in self._processes.before]
            kill([*self._processes.alive(), *left])

    def _stop_family(self) -> None:
        """Stop all of it first: a stopped process starts no other one, and still shows its parent."""
        for _ in range(_GENERATIONS):
            fresh = self._processes.grow(thoroughly=True)
            kill(fresh, signal.SIGSTOP)
            if not fresh:
                break

    def is_gone(self, until: float) -> bool:
        """True once nothing of it is left here. Once Python has ended, kills what is left; looks until `until`."""
        if self.jvm and not self.jvm.ended:
            return False
        if not self.python.ended:  # it may live on if only Spark must stop
            return self._killed and not self._python_too and not any(look(pid) for pid in self._groups)
        kill(self._processes.alive())
        swept = sweep(
            self._mark,
            groups=self._groups,
            mapped=self._mapped,
            spared=self._processes.before,
            clock=self._clock,
            until=until,
        )
        return swept and not self._processes.alive()

    def is_over(self, until: float) -> bool:
        """True once nothing of it runs any more, here or elsewhere, as far as `release_on_death` says so."""
        may_be_over = self.early_release.is_provable and self.is_gone(until)
        return self.early_release.is_proven(gone=may_be_over)

    def disarm(self) -> None:
        """Disarm everything, for good: a child that is tied later would die with this process."""
        self._kill_pipe = None
        if self._sweeper:
            self._sweeper.dismiss()
        self.disarm_kernel()
        for target in list(self._pipe_ends):
            self._cut(target)

    def close(self) -> None:
        """This process ends: dismiss the sweeper."""
        if self._sweeper:
            self._sweeper.close()

    def disarm_kernel(self) -> None:
        """From now on the end of Python kills no other process."""
        while self._held:
            _, pipe_end = self._held.popitem()
            pipe_end.disarm()
            pipe_end.close()

    def _cut(self, target: int) -> None:
        for pipe_end in filter(None, (self._pipe_ends.pop(target, None), self._held.pop(target, None))):
            pipe_end.disarm()
            pipe_end.close()
