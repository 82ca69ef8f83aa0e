"""`spark-lease run`: a command that lives only while the lease does.

The command gets a process group of its own and is killed with all that it started: on loss by `stop_by`, on a signal
within `stop_budget`. The lease is released after the last of them is gone. On Linux orphans come back to this process
(PR_SET_CHILD_SUBREAPER), so nobody escapes by calling setsid, and the command dies with it (PR_SET_PDEATHSIG).

What it does not do: if this process is frozen past the lease, the command goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from .clock import BootClock, Clock
from .config import Config, announcement
from .errors import LeaseLost, SparkLeaseError
from .hold import abandon, begin_hold, end_hold
from .keepalive import Keepalive
from .lease import Lease, open_contender
from .outcome import Outcome, ended, refused
from .processes import Process, kill, processes, tree

log = logging.getLogger(__name__)

NOT_FOUND, NOT_RUN = 127, 126
"""The shell's exit codes for a command that does not exist, and for one that cannot be run."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN = 0.05
# Runs in the child before the command: dies with its parent from here on, unless that is gone already (prctl(2)).
_LAUNCH = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"spark-lease: {sys.argv[2]}: cannot be run: {error.strerror}\\n")
        os._exit(126)
"""


class _Interrupted(BaseException):
    """A signal came while we waited for the lease."""


def run(config: Config, command: Sequence[str]) -> Outcome:
    """Wait for the lease, run `command` under it, and say how it ended. Call it in the main thread.

    The command finds SPARK_LEASE_NAME, SPARK_LEASE_HOLDER and SPARK_LEASE_EPOCH in its environment.
    """
    if shutil.which(command[0]) is None:
        return Outcome(config.name, "failed", NOT_FOUND, reason=f"{command[0]}: command not found")
    return _Run(config, command).run()


class _Run:
    def __init__(self, config: Config, command: Sequence[str]) -> None:
        self._config, self._command = config, command
        self._clock: Clock = BootClock()
        self._lease: Lease = open_contender(config, self._clock)
        # What there is to react to: a signal's number, a loss, or None for the end of the command.
        self._news: queue.SimpleQueue[int | LeaseLost | None] = queue.SimpleQueue()
        self._keepalive = Keepalive(self._lease, config, clock=self._clock, on_lost=self._news.put)
        self._waiting = True

    def run(self) -> Outcome:
        old = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            if old[number] is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        # Ctrl-Z would stop this process, and not the command, which has a group of its own: it would outlive the lease.
        old[signal.SIGTSTP] = signal.signal(
            signal.SIGTSTP, lambda *_: log.warning("a guarded command is not suspended")
        )
        try:
            return self._run()
        except _Interrupted as interrupted:
            return ended(self._lease, 128 + interrupted.args[0], interrupted=True)
        except SparkLeaseError as error:
            return refused(self._config, error, self._lease)
        finally:
            self._lease.close()
            for number, handler in old.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._waiting:
            raise _Interrupted(number)
        self._news.put(number)

    def _run(self) -> Outcome:
        try:
            begin_hold(self._lease, self._keepalive)
            self._waiting = False
        except BaseException:
            self._waiting = False
            abandon(self._lease, self._keepalive)
            raise
        log.info("%s: acquired, epoch %d, as %s", self._lease.name, self._lease.epoch, self._lease.holder)
        try:
            child = self._start()
        except OSError as error:
            abandon(self._lease, self._keepalive)
            return Outcome(self._lease.name, "failed", NOT_RUN, self._lease.epoch, self._lease.holder, str(error))
        news = self._news.get()
        work = _Command(child, self._clock)
        work.signal(news if isinstance(news, int) else signal.SIGTERM)
        lost = end_hold(
            self._lease,
            self._keepalive,
            work,
            clock=self._clock,
            stop_budget=self._config.stop_budget,
            dying=math.inf,  # whoever waits for us believes that the command has ended with us
        )
        if lost is not None:
            return refused(self._config, lost, self._lease)
        if isinstance(news, int):
            return ended(self._lease, 128 + news, interrupted=True)
        code = child.wait()
        return ended(self._lease, code if code >= 0 else 128 - code)

    def _start(self) -> subprocess.Popen[bytes]:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        told = announcement(name=self._lease.name, holder=self._lease.holder, epoch=self._lease.epoch)
        launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid())] if sys.platform == "linux" else []
        child = subprocess.Popen(
            [*launch, *self._command],
            env=os.environ | told,
            process_group=0,
            # A group in the background that reads a terminal is stopped by it, and would hold the lease for ever.
            stdin=subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None,
        )
        threading.Thread(target=self._await, args=(child,), name="await command", daemon=True).start()
        return child

    def _await(self, child: subprocess.Popen[bytes]) -> None:
        """Say when the command has ended; bury on the way the orphans that came back to us."""
        if sys.platform == "linux":
            with contextlib.suppress(ChildProcessError):  # the main thread was quicker
                while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)) and ended.si_pid != child.pid:
                    os.waitpid(ended.si_pid, 0)
        else:
            child.wait()
        self._news.put(None)


class _Command:
    """The command and all that it started. Implements `Work`."""

    def __init__(self, child: subprocess.Popen[bytes], clock: Clock) -> None:
        self._child, self._clock = child, clock

    def wait_until_over(self, until: float) -> bool:
        while not (gone := self._all_are_gone()) and (left := until - self._clock.now()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(min(left, _LOOK_AGAIN))
        return gone

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        kill(self._descendants(), number)

    def _descendants(self) -> list[Process]:
        group = [each for each in processes().values() if each.group == self._child.pid and each.alive]
        return [each for each in [*tree(os.getpid()), *group] if each.pid != os.getpid()]

    def _all_are_gone(self) -> bool:
        """Certain on Linux: whoever loses its parent becomes our child, and we have none (waitpid(2), ECHILD)."""
        if self._child.poll() is None:
            return False
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return not self._descendants()
        return False
