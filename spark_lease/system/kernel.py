"""Has the kernel kill a process at an instant, and some processes when another one ends.

Linux only. Neither way needs root, a parent or a running process: a target that is stopped, swapped out or inside a C
call is killed like any other.

One limit: a frozen cgroup v1 or a paused virtual machine delays even SIGKILL until the thaw.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import closing

from ..clock import BootClock

_CLOCK_BOOTTIME, _TIMER_ABSTIME, _SIGEV_SIGNAL = 7, 1, 0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NS = 1_000_000_000
_HEIGHT, _ROOM = 1024, 64
"""The write end of a kill pipe gets a descriptor this high, with room above it for the kill pipes of some leases."""
_PROOF = 2.0
"""Seconds within which a child of ours must be killed to prove that it can be."""


class _SigEvent(ctypes.Structure):
    """sigevent(7); 64 bytes whatever it notifies by."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("_pad", ctypes.c_char * 48),
    )


class _ITimerSpec(ctypes.Structure):
    """timer_settime(2): struct itimerspec."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns"))


def _libc(name: str) -> ctypes.CDLL:
    """The library that has `name`: timers were in librt before glibc 2.34."""
    for library in (None, "librt.so.1"):
        try:
            found = ctypes.CDLL(library, use_errno=True)
            getattr(found, name)
        except (OSError, AttributeError):
            continue
        return found
    raise OSError(errno.ENOSYS, f"no {name} in this C library")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


class KillTimer:
    """Kills this process at an instant of CLOCK_BOOTTIME, whatever it does by then (timer_create(2)).

    Not armed until `move`. A forked child does not inherit it. Raises OSError if there is no such timer.
    """

    def __init__(self) -> None:
        self._lib = _libc("timer_settime")
        self._id = ctypes.c_void_p()
        event = _SigEvent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
        created = self._lib.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._id))
        _check(created, "timer_create")

    def move(self, instant: float) -> None:
        """Kill at `instant` (seconds) and not before; at once if that has passed."""
        # All zero would disarm it: an instant that has passed must not be taken for "never".
        self._set(max(int(instant * _NS), 1))

    def disarm(self) -> None:
        self._set(0)

    def _set(self, ns: int) -> None:
        spec = _ITimerSpec(value_s=ns // _NS, value_ns=ns % _NS)
        _check(self._lib.timer_settime(self._id, _TIMER_ABSTIME, ctypes.byref(spec), None), "timer_settime")


class KillPipe:
    """Kills its targets at the moment when this process ends, for whatever reason (pipe(7), fcntl(2): F_SETSIG).

    Only this process holds the write end of a pipe. Each target has a `PipeEnd`, a read end of its own: the kernel
    signals only for read ends that are open somewhere when the last write end closes. This process holds the read ends
    too. When it ends, its highest descriptor is closed first (task_work_run, last in, first out), so the write end is
    numbered above them. Another process could hold them instead, but both may be killed at one instant.
    """

    def __init__(self) -> None:
        self._read, write = os.pipe2(os.O_CLOEXEC)
        self._write = _above(write)

    def pipe_end(self, target: int) -> PipeEnd:
        """A pipe end to `target`: a pid, or minus a process group. Raises OSError if there is none."""
        # Opened again and not duplicated: signal and owner belong to the open description, not to the descriptor.
        fd = os.open(f"/proc/self/fd/{self._read}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if fd > self._write:  # so many files are open
            self._write = _above(self._write, 2 * fd)
        pipe_end = PipeEnd(fd)
        try:
            pipe_end.arm(target)
        except OSError:
            pipe_end.close()
            raise
        return pipe_end

    def close(self) -> None:
        """Kill all targets whose pipe ends are armed and held."""
        os.close(self._write)
        os.close(self._read)


class PipeEnd:
    """One target of a kill pipe. `fd` may be sent to another process, which then holds the same pipe end."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def arm(self, target: int) -> None:
        """`target` is a pid, or minus a process group. The kernel remembers the process, not its pid."""
        fcntl.fcntl(self.fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self.fd, fcntl.F_SETOWN, target)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)

    def disarm(self) -> None:
        """Make this pipe end kill nothing from now on, in whichever process it is held."""
        fcntl.fcntl(self.fd, fcntl.F_SETOWN, 0)
        fcntl.fcntl(self.fd, fcntl.F_SETFL, os.O_NONBLOCK)

    def close(self) -> None:
        os.close(self.fd)


def _above(fd: int, height: int = _HEIGHT) -> int:
    """Give a descriptor a number that is higher than those of most files, and return it."""
    height = min(_limit(), height) - _ROOM
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(height, fd))
    except OSError:  # too many files are open, or the limit is too low
        return fd
    os.close(fd)
    return moved


def is_one_of_the_last(fd: int) -> bool:
    """True for a descriptor that must stay free for other files of this process: its lease store, /proc."""
    limit = _limit()
    return fd >= limit - min(_ROOM, limit // 8)


def _limit() -> int:
    """How many files this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


@functools.cache
def why_not() -> str:
    """Why the kernel cannot do its part here, found by having it kill two children of ours; empty if it can.

    Calls without an error prove nothing: pid 1 of a container, for example, is not killed by a timer that it armed.
    """
    try:
        _must_die("a timer", _child(lambda: KillTimer().move(0.0)))
        child = _child(lambda: None)  # before the pipe: a later child would hold it open
        kill_pipe = KillPipe()
        with closing(kill_pipe.pipe_end(child)):
            kill_pipe.close()
            _must_die("the end of a pipe", child)
    except (OSError, AttributeError, ValueError) as error:
        return str(error)
    return ""


def _child(work: Callable[[], None]) -> int:
    """Fork a child that does `work` and then waits to be killed, for as long as we live."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    try:
        work()
        while os.getppid() == parent:
            select.select([], [], [], 0.1)
    finally:
        os._exit(1)


def _must_die(by: str, pid: int) -> None:
    clock = BootClock()
    end = clock.now() + _PROOF
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and clock.now() < end:
        select.select([], [], [], 0.001)
    if not ended[0]:
        os.kill(pid, signal.SIGKILL)
        ended = os.waitpid(pid, 0)
        raise OSError(f"{by} killed nothing within {_PROOF:g} s")
    if not os.WIFSIGNALED(ended[1]):
        raise OSError(f"{by}: not to be had here")


def adopts_orphans() -> bool:
    """Have every descendant that loses its parent become our child (prctl(2), PR_SET_CHILD_SUBREAPER); False if that
    is not possible here."""
    try:
        _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl")
    except OSError:
        return False
    return True


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process signalled when its parent ends (prctl(2), PR_SET_PDEATHSIG); now, if `parent` has ended.

    An exec does not change that.
    """
    _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number), "prctl")
    if os.getppid() != parent:
        os.kill(os.getpid(), number)
