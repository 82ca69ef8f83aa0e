"""Finds the processes of a Spark driver or a command in /proc, and ends them for certain.

```
python job.py                         spark-submit job.py (client mode)
python                                java SparkSubmit
 └ java                                ├ python job.py
    └ pyspark.daemon (own group)       └ pyspark.daemon (own group)
       └ worker, worker                   └ worker, worker
```
Workers outlive a JVM that was killed, and are then part of no tree any more: a mark in the environment finds them.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

MARK = "SPARK_LEASE_MARK"
"""Environment variable that is set before the JVM starts, and inherited by all that it starts.

A list: a guarded process that is started by guarded work adds its own mark behind those it inherited.
"""

_PROC = Path("/proc")
_PF_EXITING, _PF_FORKNOEXEC = 0x4, 0x40
Identity = tuple[int, int]
"""Identifies a process for certain: its pid, which may be reused, and its start (clock ticks after boot)."""


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    pid: int
    parent: int
    group: int
    state: str
    started: int = 0
    """0: not known."""

    @property
    def identity(self) -> Identity:
        return self.pid, self.started

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def need_linux() -> None:
    """Raise ConfigError if this is not Linux: only there is guarded work ended for certain."""
    if sys.platform != "linux":
        problem = f"is {sys.platform}, and guarded work is ended for certain on Linux alone: use a container there"
        raise ConfigError("system", f"{problem}, or enabled = false for development without a lease")


def shell_code(code: int) -> int:
    """The return code of a child as a shell reports it: 137 for one that SIGKILL ended."""
    return code if code >= 0 else 128 - code


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def exit_text(status: int | None) -> str:
    """How a process ended, from its wait status: "exit 3", "SIGKILL"; empty if it ended well, or is not known."""
    code = os.waitstatus_to_exitcode(status) if status is not None else 0
    return signal_name(-code) if code < 0 else f"exit {code}" if code else ""


def is_proc_there() -> bool:
    """False in an image or a chroot without /proc: then nothing can be searched for."""
    return _PROC.joinpath("self").exists()


def sees_others() -> bool:
    """False where /proc hides the processes of other users (proc(5), hidepid)."""
    return _PROC.joinpath("1").exists()


def folders() -> frozenset[tuple[int, int]]:
    """The processes of this machine that can be seen, far cheaper than by `processes`; none without /proc.

    Each is a pid and the inode of its folder in /proc: another process that gets the same pid has another inode.
    """
    if not is_proc_there():
        return frozenset()
    with os.scandir(_PROC) as entries:
        return frozenset((int(each.name), each.inode()) for each in entries if each.name.isdigit())


def processes(pids: Iterable[int] | None = None) -> dict[int, Process]:
    """All processes of this machine that can be seen, by pid, or those of `pids`; none without /proc.

    Raises OSError if this process may open no more files.
    """
    numbers = sorted(pid for pid, _ in folders()) if pids is None else pids
    return {pid: found for pid in numbers if (found := _read(pid))}


def proc_file(pid: int, what: str) -> bytes:
    """/proc/PID/`what` (proc(5)). Raises OSError if it is another user's, or has ended."""
    with open(f"/proc/{pid}/{what}", "rb", buffering=0) as file:
        return file.read()


def _read(pid: int) -> Process | None:
    """proc(5), /proc/pid/stat."""
    try:
        name, fields = _stat(pid)
        return Process(name, pid, int(fields[1]), int(fields[2]), fields[0], int(fields[19]))
    except IndexError:
        return None
    except OSError as error:  # it ended while we looked
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):  # these do not mean that
            raise
        return None


def _stat(pid: int) -> tuple[str, list[str]]:
    """Its name, and the fields from the third on."""
    before, _, after = proc_file(pid, "stat").decode(errors="replace").rpartition(")")
    return before.partition("(")[2], after.split()


def is_forked(pid: int) -> bool:
    """True for a process without an exec since its fork, whatever title it has given itself."""
    return bool(_flags(pid) & _PF_FORKNOEXEC)


def is_exiting(pid: int) -> bool:
    """True for a process that the kernel is ending. Its sockets are closed some milliseconds before its end shows."""
    return bool(_flags(pid) & _PF_EXITING)


def _flags(pid: int) -> int:
    """The kernel's PF_ flags of the main thread (proc(5), /proc/pid/stat); 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int(_stat(pid)[1][6])
    return 0


class Descendants:
    """Tells whether any process may have been started since the last look, far cheaper than looking at all.

    The kernel shows the pid that it gave out last (proc(5), /proc/loadavg). If it does not, or an emulated kernel does
    not keep that up to date, the answer is always yes. In any case it is yes from time to time.
    """

    _TRUST = 10

    def __init__(self) -> None:
        self._fd, self._trusted = -1, 0
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._newest()
        probe = threading.Thread(target=lambda: None)  # takes a pid like a process
        self._is_live = False
        with contextlib.suppress(RuntimeError):  # no more may be started
            probe.start()
            self._is_live = self._newest() != self._last
            probe.join()

    def any(self) -> bool:
        """True if there may be a new process since the last time that this was True."""
        newest = self._newest()
        self._trusted = self._trusted + 1 if self._is_live and newest == self._last else 0
        # Twice after a start: a process has its pid a moment before it can be seen.
        if self._trusted > 1 and self._trusted % self._TRUST:
            return False
        self._last = newest
        return True

    def _newest(self) -> bytes:
        with contextlib.suppress(OSError):
            return os.pread(self._fd, 128, 0).split()[-1]
        return b""


def look(pid: int) -> Process | None:
    """The process `pid` if it is alive; without /proc nothing else is known of it."""
    found = None
    with contextlib.suppress(OSError):  # no more files may be opened
        found = _read(pid) if is_proc_there() else _ask(pid)
    return found if found and found.alive else None


def is_alive(process: Identity) -> bool:
    found = look(process[0])
    return found is not None and found.identity == process


def _ask(pid: int) -> Process | None:
    try:
        return Process("?", pid, 0, os.getpgid(pid), "?")
    except OSError:
        return None


def rss(pid: int) -> int:
    """Bytes of memory that a process has; 0 if it has ended, or /proc does not show it (proc(5), statm)."""
    with contextlib.suppress(OSError):
        return int(proc_file(pid, "statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def is_out_of_reach(pid: int) -> bool:
    """True for a process that exists and may not be signalled: it runs as another user."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        pass
    return False


def tree(*roots: int) -> list[Process]:
    """The living descendants of the processes `roots` and themselves, parents first."""
    everything = processes()
    return with_descendants((everything[root] for root in roots if root in everything), everything)


def with_descendants(roots: Iterable[Process], everything: Mapping[int, Process]) -> list[Process]:
    """Those of the processes `roots` and of their descendants that live, parents first."""
    children = defaultdict[int, list[Process]](list)
    for each in everything.values():
        children[each.parent].append(each)
    found = {each.pid: each for each in roots}
    unseen = list(found)
    for pid in unseen:
        fresh = {each.pid: each for each in children[pid] if each.pid not in found}
        found |= fresh
        unseen += fresh
    return [each for each in found.values() if each.alive]


def marked(mark: str, among: Collection[Process] | None = None) -> list[Process]:
    """The living processes that carry the mark, except this one (proc(5), /proc/pid/environ)."""
    others = processes().values() if among is None else among
    return [each for each in others if each.alive and each.pid != os.getpid() and mark in marks_of(each.pid)]


def mapping(name: str, among: Collection[Process]) -> list[Process]:
    """Those that map memory of this name: forked children show no mark (proc(5), /proc/pid/maps)."""
    found = []
    for each in among:
        with contextlib.suppress(OSError):
            if name.encode() in proc_file(each.pid, "maps"):
                found.append(each)
    return found


def marks_of(pid: int) -> list[str]:
    """The marks that a process was started with; none if it ended, is another user's, or was only forked."""
    with contextlib.suppress(OSError):  # it ended, or is another user's
        for entry in proc_file(pid, "environ").split(b"\0"):
            if entry.startswith(MARK.encode() + b"="):
                return entry.decode().partition("=")[2].split(":")
    return []


def add_mark(environ: MutableMapping[str, str]) -> str:
    """Append a new mark to those in `environ`, and return it."""
    mark = os.urandom(16).hex()
    # A list: if a guard inside a guard replaced the mark, it would hide its work from the outer one.
    environ[MARK] = ":".join([*filter(None, [environ.get(MARK)]), mark])
    return mark


def kill(victims: Collection[Process], number: int = signal.SIGKILL) -> None:
    """Signal each of `victims`, and the whole group of those that lead one: it may have forked since we looked.

    Never pid 1, and never -1, as the group of pid 1 would be: that is every process of this machine, or container.
    """
    victims = [victim for victim in victims if victim.pid > 1]
    # Never our own group, which would end us before the others: its members are signalled one by one.
    groups = {victim.pid for victim in victims if victim.pid == victim.group} - {os.getpgrp()}
    for pid in [-group for group in groups] + [each.pid for each in victims if each.group not in groups]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
