"""A second process beside the keeper: it waits for the keeper's end, and then kills what the kernel did not.

The kernel ends the driver with the keeper, and what is tied to them. A process is tied within half a second of its
start: one that was started just before both were frozen would write on after their lease has run out.
"""

import contextlib
import ctypes
import json
import os
import threading
from collections.abc import Collection

from ..clock import BootClock
from ..system.processes import Identity
from .death import LeftBehind, sweep
from .guarded_processes import SWEEPS

_SET_NAME, _NAME = 15, b"lease sweeper"  # linux/prctl.h, PR_SET_NAME
_ARGUMENTS = slice(45, 47)  # proc_pid_stat(5), arg_start and arg_end, counted from behind the name
_ONLY, _DISMISSED = b"only ", b"dismissed"
_BURIED_WITHIN = 0.1
_FOR, _PERIOD = 1.0, 0.05
"""Seconds in which it looks again and again: a process shows no mark while it is becoming another program."""


class Sweeper:
    """Does nothing until `arm`, and nothing after `dismiss`. Asks no store, and has only its end of one pipe open."""

    def __init__(self, mark: str, mapped: str, lease: str) -> None:
        """`mark` and `mapped` find the processes of the driver: see `sweep`. Its command line names the `lease`."""
        told, self._tell = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):  # nothing of it may go on as a second keeper
                _keep_nothing_open_but(told)
                with contextlib.suppress(OSError, ValueError, IndexError):  # it sweeps under the keeper's name, too
                    _call_itself(f"{SWEEPS} {lease}".encode())
                _wait(mark, mapped)
            os._exit(0)
        os.close(told)

    def arm(self, spared: Collection[Identity]) -> None:
        """From now on the keeper's end is a kill, but of the neighbours `spared`."""
        self._write(json.dumps(sorted(spared)).encode())

    def kill_only(self, left: Collection[Identity]) -> None:
        """From now on the keeper's end is a kill of these, and of what they start, and of nothing else."""
        self._write(_ONLY + json.dumps(sorted(left)).encode())

    def dismiss(self) -> None:
        """The keeper ends by itself, or guards nothing any more."""
        self._write(_DISMISSED)

    def close(self) -> None:
        """Dismiss and bury it: the first process of a container may not do that."""
        self.dismiss()
        clock, never = BootClock(), threading.Event()
        end = clock.now() + _BURIED_WITHIN  # it may be frozen
        with contextlib.suppress(ChildProcessError):  # another has buried it
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and clock.now() < end:
                clock.wait(never, 0.001)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it was killed: then there is none
            os.write(self._tell, line + b"\n")


def _keep_nothing_open_but(fd: int) -> None:
    """Above all no write end of the kill pipe: the kernel kills when the last one is closed."""
    os.dup2(fd, 0)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    for each in os.listdir("/proc/self/fd"):
        if int(each) > 2:
            with contextlib.suppress(OSError):  # that of this list
                os.close(int(each))


def _call_itself(line: bytes) -> None:
    """In place of the keeper's command line, which is in memory of our own since the fork."""
    ctypes.CDLL(None).prctl(_SET_NAME, _NAME, 0, 0, 0)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[_ARGUMENTS])
    if room := max(0, end - start - 1):  # an imitation of the kernel may say 0
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, line, min(len(line), room))


def _wait(mark: str, mapped: str) -> None:
    told = b""
    while chunk := os.read(0, 1 << 16):
        told += chunk
        if _DISMISSED in told:
            return
    if not told:
        return
    last = told.splitlines()[-1]
    named = {(pid, started) for pid, started in json.loads(last.removeprefix(_ONLY))}
    left = LeftBehind(named) if last.startswith(_ONLY) else None
    clock, never = BootClock(), threading.Event()
    end = clock.now() + _FOR
    while clock.now() < end:
        if left:
            left.kill()
        else:
            sweep(mark, mapped=mapped, spared=named, clock=clock, until=end)
        clock.wait(never, _PERIOD)
