"""A second process beside the keeper: it waits for the keeper's end, and then kills what the kernel did not.

When the keeper ends, the kernel kills the driver and all that is tied to them. A process is tied within half a second
of its start: if it was started just before both were frozen, it would go on writing after their lease has run out.
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
_ARGUMENTS = slice(45, 47)  # proc_pid_stat(5), arg_start and arg_end, counted after the name
_ONLY, _DISMISSED = b"only ", b"dismissed"
_BURIED_WITHIN = 0.1
_FOR, _PERIOD = 1.0, 0.05
"""Seconds for which the sweeper looks again, and between two looks: a process shows no mark during its exec."""


class Sweeper:
    """Does nothing until `arm`, and nothing after `dismiss`. Asks no store, and has only its end of one pipe open."""

    def __init__(self, mark: str, mapped: str, lease: str) -> None:
        """`mark` and `mapped` find the processes of the driver: see `sweep`. Its command line names the `lease`."""
        told, self._tell = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):  # the fork must never go on as a second keeper
                _keep_nothing_open_but(told)
                with contextlib.suppress(OSError, ValueError, IndexError):  # it also sweeps under the keeper's name
                    _call_itself(f"{SWEEPS} {lease}".encode())
                _wait(mark, mapped)
            os._exit(0)
        os.close(told)

    def arm(self, spared: Collection[Identity]) -> None:
        """From now on, when the keeper ends, kill the driver's processes except the neighbours `spared`."""
        self._write(json.dumps(sorted(spared)).encode())

    def kill_only(self, left: Collection[Identity]) -> None:
        """From now on, when the keeper ends, kill these, and what they start, and nothing else."""
        self._write(_ONLY + json.dumps(sorted(left)).encode())

    def dismiss(self) -> None:
        """Kill nothing: the keeper ends by itself, or guards nothing any more."""
        self._write(_DISMISSED)

    def close(self) -> None:
        """Dismiss and reap it: the first process of a container might not reap it."""
        self.dismiss()
        clock, never = BootClock(), threading.Event()
        end = clock.now() + _BURIED_WITHIN  # the sweeper may be frozen
        with contextlib.suppress(ChildProcessError):  # reaped elsewhere
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0 and clock.now() < end:
                clock.wait(never, 0.001)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the sweeper was killed
            os.write(self._tell, line + b"\n")


def _keep_nothing_open_but(fd: int) -> None:
    """Close above all the write end of the kill pipe: the kernel kills when the last one is closed."""
    os.dup2(fd, 0)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    for each in os.listdir("/proc/self/fd"):
        if int(each) > 2:
            with contextlib.suppress(OSError):  # the descriptor of this listing
                os.close(int(each))


def _call_itself(line: bytes) -> None:
    """Replace the keeper's command line, which is in memory of our own since the fork."""
    ctypes.CDLL(None).prctl(_SET_NAME, _NAME, 0, 0, 0)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[_ARGUMENTS])
    if room := max(0, end - start - 1):  # an emulation of the kernel may say 0
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
