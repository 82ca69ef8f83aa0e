"""The descendants of a driver, and its neighbours: processes from before its block began.

Only for a driver that is not contained: the processes that it started must be searched for.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

from ..system.processes import (
    Descendants,
    Process,
    folders,
    is_forked,
    is_out_of_reach,
    look,
    marks_of,
    proc_file,
    processes,
    with_descendants,
)

KEEPS, SWEEPS = "spark-lease keeper", "spark-lease sweeper"
"""Part of the command line of a keeper, and of its sweeper: a kill by command line hits only one of them."""
_WORKERS = (b"pyspark.daemon", b"pyspark/daemon", b"from multiprocessing.", b"from multiprocess.", b"loky.backend")
"""Parts of the command lines of workers that a driver, or its JVM, may have started before its block."""
_OURS = (KEEPS.encode(), SWEEPS.encode())
_HELPERS, _FORKS = (*_OURS, b".resource_tracker import main"), b".forkserver import main"


class GuardedProcesses:
    """The descendants of `heads` (pid → start time) that were seen. Cheap while no process is started."""

    def __init__(self, heads: Callable[[], Mapping[int, int]]) -> None:
        self._heads, self._descendants = heads, Descendants()
        self._seen = frozenset[tuple[int, int]]()
        self._members: dict[int, Process] = {}
        self.before = set[tuple[int, int]]()
        """The identities of neighbours."""
        self.workers = set[tuple[int, int]]()
        """The identities of earlier workers: not started by the block, but killed with the driver."""
        self._strangers: dict[tuple[int, int], Process] = {}
        self.may_have_grown = True
        self._has_failed = False

    def look_ahead(self, mark: str) -> None:
        """Call it while the driver waits: a process without `mark` now is not read again at the grant.

        Children of the heads are read again: one may be about to exec a program whose environment has the mark."""
        heads, there = self._heads(), dict(folders())
        strangers = [each for each in processes(there).values() if each.parent not in heads]
        self._strangers = {(each.pid, there[each.pid]): each for each in strangers if mark not in marks_of(each.pid)}

    def leave_out_what_is_there(self, mark: str) -> None:
        """What the heads have started already, and what carries `mark`, are neighbours: not of this hold, not to be
        ended. Such are a shell's helpers from before it became the driver by exec, and what an earlier hold left to run
        on. Known workers, and what was forked from a head since its exec, are kept. May be called again, once the JVM
        is known, whose workers are kept as well."""
        there, heads = folders(), self._heads()
        strangers = self._strangers_among(there)
        everything = strangers | processes({pid for pid, _ in there} - strangers.keys())
        kept = set(heads)
        for each in sorted(everything.values(), key=lambda each: each.started):
            if each.parent in kept and (each.parent not in heads or _may_work(each)):
                kept.add(each.pid)
        others = [each for each in everything.values() if each.pid not in kept]
        fresh = {each.pid for each in others if each.pid not in strangers and mark in marks_of(each.pid)}
        found = [each for each in others if each.parent in heads or each.pid in fresh]
        self.workers = {everything[pid].identity for pid in kept - set(heads)}
        self.before = {each.identity for each in with_descendants(found, everything)}

    def _strangers_among(self, there: frozenset[tuple[int, int]]) -> dict[int, Process]:
        """The strangers of `look_ahead`. One whose parent has ended has another parent by now, and is read again: a
        driver that is the first process of its container adopts all of them."""
        pids, seen = {pid for pid, _ in there}, there & self._strangers.keys()
        return {each.pid: each for each in map(self._strangers.__getitem__, seen) if each.parent in pids}

    def grow(self, *, thoroughly: bool = False) -> list[Process]:
        """Look around and return the new processes. `thoroughly`: also if no process seems to have been started.

        Raises OSError if this process may open no more files."""
        self.may_have_grown = thoroughly or self._has_failed or self._descendants.any() or not self._seen
        self._has_failed = self.may_have_grown
        fresh = self._look(frozenset() if thoroughly else self._seen) if self.may_have_grown else []
        self._has_failed = False
        return fresh

    def forget_what_was_seen(self) -> None:
        """Read all processes again at the next look: there is a new head, and a stranger may be its child."""
        self._seen = frozenset()

    def alive(self) -> list[Process]:
        return [each for each in self._members.values() if self._is_alive(each)]

    def out_of_reach(self) -> list[Process]:
        """Those that now run as another user, so that we may not kill them."""
        return [each for each in self.alive() if is_out_of_reach(each.pid)] if os.geteuid() else []

    def _is_alive(self, process: Process) -> bool:
        now = look(process.pid)  # /proc may hide it once it runs as another user
        return now.started == process.started if now else is_out_of_reach(process.pid)

    def _look(self, seen: frozenset[tuple[int, int]]) -> list[Process]:
        here = folders()
        self._members = {pid: each for pid, each in self._members.items() if self._is_alive(each)}
        strangers = [each for each in processes(pid for pid, _ in here - seen).values() if each.alive]
        fresh = list[Process]()
        # Repeated, because a child may have been read before its parent: the younger may have the smaller pid.
        while kin := [each for each in strangers if self._is_kin(each)]:
            self._members |= {each.pid: each for each in kin}
            fresh += kin
            strangers = [each for each in strangers if each not in kin]
        self._seen = here
        return fresh

    def _is_kin(self, process: Process) -> bool:
        """True for a new child of a head or a descendant; not for a keeper of this driver's leases or its sweeper."""
        heads = self._heads()
        parents = {pid: each.started for pid, each in self._members.items()} | dict(heads)
        started = parents.get(process.parent)
        # Older than its parent: that pid was another process's. Under spark-submit the JVM is the parent of Python.
        if started is None or process.started < started or process.pid in (*heads, os.getpid()):
            return False
        known = self._members.get(process.pid)
        if (known and known.identity == process.identity) or process.identity in self.before:
            return False
        line = _line(process.pid)
        return not any(word in line for word in _OURS)


def describe(strangers: Sequence[Process]) -> str:
    """A sentence on the processes that are `out_of_reach`."""
    names = ", ".join(f"{each.name} (pid {each.pid})" for each in strangers[:3])
    return f"{names} runs as another user, and nothing here may end it"


def is_helper(pid: int) -> bool:
    """True for a helper process of Python or of this package: none of them does the block's work."""
    line = _line(pid)
    return any(word in line for word in _HELPERS) or (_FORKS in line and not is_forked(pid))  # its workers have it too


def _may_work(child: Process) -> bool:
    """True for a child of a driver that may be one of its workers: a known kind, or the driver's own program, forked or
    started again."""
    line = _line(child.pid)
    if any(word in line for word in _WORKERS) or line == _line(child.parent):
        return True
    return is_forked(child.pid) and _program(child.pid) == _program(child.parent)


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):  # it has ended
        return os.readlink(f"/proc/{pid}/exe")
    return ""


def _line(pid: int) -> bytes:
    with contextlib.suppress(OSError):  # it has ended
        return proc_file(pid, "cmdline")
    return b""
