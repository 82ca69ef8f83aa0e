"""Nothing that a test started outlives the tests: two processes above pytest see to it.

    what was started (make)  →  its child  →  pytest, its workers, servers, drivers, JVMs

Both upper ones are subreapers: a process whose parent ended becomes their child, however it was started (prctl(2),
PR_SET_CHILD_SUBREAPER). When pytest ends, its supervisor kills what is left, frozen or not, until it has no child any
more. There are two of them because each may be killed itself: the other one then does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time

from spark_lease.system.processes import tree

FOLDER = "TESTS_FOLDER"
"""Environment variable: the folder for temporary files of this run. It ends with the run."""

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_POLITE, _PATIENCE = 3.0, 20.0
"""Seconds in which what is left of a run may end by itself, as the JVM of a session does; after a kill."""
_HEARD = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGCHLD}


def supervise() -> None:
    """Return in a grandchild of this process, which goes on with the tests. This process and the child between never
    return: they exit with the code of the tests (128 + N after signal N)."""
    if sys.platform != "linux" or FOLDER in os.environ:
        return
    # Short: a Unix socket's path has at most 107 bytes. Open: PostgreSQL does not run as root.
    folder = tempfile.mkdtemp(prefix="sl-")
    os.chmod(folder, 0o755)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.gettempdir()  # tmp_path is for reading afterwards, it stays
    os.environ[FOLDER] = os.environ["TMPDIR"] = tempfile.tempdir = folder
    _fork(signal.SIGTERM, folder)
    _fork(signal.SIGKILL, folder)


def _fork(when_parent_ends: signal.Signals, folder: str) -> None:
    """Return in a child, which the kernel sends the signal when this process ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)
    _prctl(_CHILD_SUBREAPER, 1)
    parent = os.getpid()
    if child := os.fork():
        os._exit(_watch(child, folder))
    _prctl(_PDEATHSIG, when_parent_ends)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _watch(child: int, folder: str) -> int:
    """Wait for the child's end or for a signal that ends the run, then kill what is left; the exit code."""
    while (code := _reap(child)) is None:
        told = signal.sigwaitinfo(_HEARD)
        if told.si_signo == signal.SIGINT and told.si_pid:  # else the terminal has sent it to the child as well
            os.kill(child, signal.SIGINT)
        elif told.si_signo in (signal.SIGTERM, signal.SIGHUP):
            code = 128 + told.si_signo
            break
    else:
        _wait_for_what_ends_by_itself()
    left = _kill_what_is_left()
    shutil.rmtree(folder, ignore_errors=True)
    if left:
        sys.stderr.write(f"killed what the tests left running: {', '.join(sorted(left))}\n")
        sys.stderr.flush()
    return code


def _reap(child: int) -> int | None:
    """Bury all children that have ended; the exit code if `child` is one of them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
    return code if code is None or code >= 0 else 128 - code


def _wait_for_what_ends_by_itself() -> None:
    end = time.monotonic() + _POLITE
    while len(tree(os.getpid())) > 1 and time.monotonic() < end:
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)
        _reap(0)


def _kill_what_is_left() -> set[str]:
    """Kill every descendant; what there was. To have no child at all is the proof: each orphan becomes a child."""
    found: set[str] = set()
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        victims = [each for each in tree(os.getpid()) if each.pid != os.getpid()]
        found |= {f"{each.name} ({each.pid})" for each in victims}
        for each in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return found
        signal.sigtimedwait({signal.SIGCHLD}, 0.2)
    return found | {"and some that do not end"}


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
