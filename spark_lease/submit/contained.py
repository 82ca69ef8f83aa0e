"""spark-submit in a PID namespace of its own, with the keeper of its lease outside.

```
front door: keeper ── stage ──│── init ── spark-submit (JVM) ── driver
   └─────── order, grant, outcome (a socket of this machine) ──────┘
```
This process is the front door. spark-submit starts at once, and its driver asks this process for the lease. If this
process ends, the kernel ends everything inside. The lease is released after everything inside has ended.
"""

import contextlib
import logging
import os
import secrets
import signal
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..clock import BootClock
from ..config.settings import FRONT_DOOR, Config
from ..errors import SparkLeaseError
from ..keeper.channel import Channel, Closed
from ..keeper.death import Watched
from ..keeper.keeper import Keeper
from ..keeper.messages import refusal
from ..keeper.supervisor import Supervisor
from ..outcome import NOT_ANNOUNCED, Outcome, announce, announced_epoch, crashed, ended, outcome_of, refused, times_of
from ..stores.registry import open_store
from ..system.container_init import came_from_a_terminal
from ..system.descriptors import readable
from ..system.kernel import why_not
from ..system.processes import shell_code

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AFTER_IT = 0.5
"""Seconds that descendants of spark-submit get to end after it, before they are ended."""
_LOOK_AGAIN = 1.0


class Submission:
    """One spark-submit, from its start to its exit code."""

    def __init__(self, config: Config, supervisor: Supervisor) -> None:
        assert supervisor.init, "spark-submit has a namespace of its own"
        self._config, self._supervisor, self._init = config, supervisor, supervisor.init
        why_not()  # found out by forking, which needs a process with one thread; the keeper asks again
        self._clock = BootClock()
        self._driver: Watched | None = None
        self._keeper: Keeper | None = None
        self._outcome: dict[str, Any] = {}
        self._has_ended, self._waker = os.pipe2(os.O_CLOEXEC)
        self._status: int | None = None
        self._interrupted_by = 0

    def run(self, environ: Mapping[str, str]) -> int:
        """Start it with `environ` added to ours; returns its exit code after everything has ended. Raises OSError."""
        # A thread waits for these signals. One that was ignored when we were started (nohup) stays ignored.
        self._heard = {number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._heard)
        address = f"spark-lease-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{address}")
            listener.listen(8)
            self._work = self._supervisor.work(self._supervisor.start({**environ, FRONT_DOOR: address}), self._clock)
            for each in (self._await_end, self._hear_signals, self._get_ready):
                threading.Thread(target=each, name=each.__name__.strip("_"), daemon=True).start()
            channel = self._await_driver(listener)
        if channel:
            self._serve(channel)
        readable([self._init])
        return self._conclude()

    def _get_ready(self) -> None:
        """Import the store's client while the JVM starts, which takes longer."""
        with contextlib.suppress(Exception), contextlib.closing(open_store(self._config)):
            pass

    def _await_driver(self, listener: socket.socket) -> Channel | None:
        """The first process of this user that connects; None if spark-submit has ended before."""
        while listener.fileno() in readable([listener.fileno(), self._has_ended]):
            connection, _ = listener.accept()
            # unix(7): the ids as they are outside of the namespace.
            pid, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            with contextlib.suppress(ProcessLookupError):
                if user == os.geteuid():
                    self._driver = Watched(pid)
                    return Channel(connection)
            connection.close()
        return None

    def _serve(self, channel: Channel) -> None:
        """Keep the lease that the driver asks for, and receive its outcome."""
        assert self._driver
        with contextlib.suppress(Closed):
            while not self._init.ended:
                if not (received := channel.receive(_LOOK_AGAIN)):
                    continue
                match received[0]:
                    case {"config": _} as order:
                        try:
                            self._keeper = Keeper(
                                channel,
                                order,
                                pid=self._driver.pid,
                                init=self._init,
                                interrupted_by=lambda: self._interrupted_by,
                            )
                            self._keeper.run()
                            self._outcome = dict(self._keeper.outcome)
                        except SparkLeaseError as error:
                            channel.send(refusal(error))
                    case {"outcome": outcome}:
                        self._outcome = outcome

    def _await_end(self) -> None:
        """End the processes that spark-submit has left behind, once it has ended."""
        self._status = self._supervisor.await_end()
        os.write(self._waker, b"x")
        if self._work.wait_until_over(self._clock.now() + _AFTER_IT):
            return
        if not self._interrupted_by:
            log.warning("%s: spark-submit has ended and left processes behind: ending them", self._config.name)
        self._work.signal(signal.SIGTERM)
        self._end_within(self._config.stop_budget)

    def _hear_signals(self) -> None:
        while self._heard:
            heard = signal.sigwaitinfo(self._heard)
            if not self._interrupted_by:
                threading.Thread(target=self._end_within, args=(self._config.stop_budget,), daemon=True).start()
            self._interrupted_by = heard.si_signo
            if came_from_a_terminal(heard):  # then spark-submit and its driver got it as well
                continue
            if self._driver and not self._driver.ended:
                self._driver.signal(heard.si_signo)
            else:
                self._work.signal(heard.si_signo)

    def _end_within(self, budget: float) -> None:
        if not self._work.wait_until_over(self._clock.now() + budget):
            self._work.kill()

    def _conclude(self) -> int:
        """Announce the outcome; returns the exit code."""
        lease = self._keeper.lease if self._keeper else None
        code = self._code()
        if self._outcome:
            outcome = Outcome(**self._outcome | times_of(lease))
            outcome = outcome if code is None else replace(outcome, exit_code=code)
        elif lease and lease.epoch and (lost := lease.loss()):
            outcome = refused(self._config, lost, lease)
        else:  # it was ended before it could report its outcome, or never asked for a lease
            code = 128 + (self._interrupted_by or signal.SIGKILL) if code is None else code
            if lease and lease.epoch:
                if self._interrupted_by:
                    outcome = ended(lease, code, interrupted=True)
                else:
                    outcome = crashed(lease, code, lease.ending.partition(": ")[2])
                    log.error("%s: the work has crashed: %s", self._config.name, outcome.reason or "killed")
            elif (
                announced_epoch(self._config.outcome_file) != NOT_ANNOUNCED
            ):  # the driver took the lease without us, and announced its outcome
                return code
            else:
                word = "interrupted" if self._interrupted_by else "failed" if code else "unknown"
                how = "while its script waited" if lease else "before its script asked this process"
                outcome = outcome_of(self._config, word, code, f"spark-submit ended, {how} for the lease")
        announce(outcome, self._config.outcome_file)
        return outcome.exit_code

    def _code(self) -> int | None:
        """spark-submit's exit code, as a shell reports it; None if it was killed, usually by this process."""
        if self._status is None or (code := os.waitstatus_to_exitcode(self._status)) == -signal.SIGKILL:
            return None
        return shell_code(code)
