"""Ends the guarded block by an exception in its thread, for a signal or because the lease is lost."""

import logging
import math
import signal
import threading
from collections.abc import Callable

from ..clock import Clock
from ..outcome import is_success
from ..system.processes import signal_name
from ..system.signals import HandledSignals

log = logging.getLogger(__name__)

_AGAIN = 1.0
_AT_ONCE = 0.5
"""Seconds within which two signals count as one: systemd and terminals send SIGTERM and SIGHUP together."""


class Ended(KeyboardInterrupt):
    """Raised in the guarded block to end it.

    It is no Exception, so that a retry around a query does not swallow it. It is a KeyboardInterrupt, because only then
    Py4J closes the waiting connection, instead of taking the late answer for that of the next call.
    """


class BlockInterrupt:
    """From `begin` to `end` a signal raises Ended in the thread that called `begin`, as long as it is in the block."""

    sent_at = -math.inf
    """When a block of this process was last interrupted: the innermost block's handler gets the signal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.has_left = threading.Event()
        self.signal = 0
        """The number of the signal that came from outside, if any."""
        self._sending, self._ended_at = threading.Lock(), -math.inf
        self._signals, self._sent = HandledSignals(self._on_signal), 0
        self.end = self._signals.end

    def begin(self, *, is_lost: Callable[[], bool]) -> None:
        """`is_lost`: the lease is lost by now, so that no signal is the reason of the end."""
        self._thread, self._is_lost = threading.get_ident(), is_lost
        self._signals.begin()

    def leave(self) -> None:
        """Mark the block as left: from now on no exception is raised in it."""
        self.has_left.set()
        with self._sending:  # an interrupt that is being sent now arrives before the handlers are removed
            BlockInterrupt.sent_at = -math.inf

    def insist(self, until: float = math.inf) -> None:
        """Interrupt the block until it is left or the instant `until` is reached, but at least once.

        If another may be master already, there is no time left, and the block has to end all the more.
        """
        while not self.has_left.is_set():
            self._send()
            if (left := until - self._clock.now()) <= 0:
                return
            self._clock.wait(self.has_left, min(_AGAIN, left))

    def exit_for_signal(self, error: BaseException | None, name: str) -> None:
        """Raise SystemExit(128 + n) if a signal from outside ended the block of lease `name`. After a Ctrl-C, its
        KeyboardInterrupt, or another `error` of the block, is left to the caller."""
        if not self.signal or (self.signal == signal.SIGINT and isinstance(error, Exception | KeyboardInterrupt)):
            return
        if is_success(error):
            log.warning("%s: interrupted by %s, though the program has caught it", name, signal_name(self.signal))
        raise SystemExit(128 + self.signal) from None

    def _send(self) -> None:
        """Raise Ended in the block. A signal also ends a blocking call, unless the thread blocks signals."""
        with self._sending:
            if self.has_left.is_set():
                return
            self._sent += 1
            BlockInterrupt.sent_at = self._clock.now()  # at each: a signal may be handled only when the next is sent
            if self._signals.are_heard and self._sent % 2:
                signal.pthread_kill(self._thread, signal.SIGTERM)
            else:
                import ctypes  # heavy, and hardly ever needed

                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Ended))

    def _on_signal(self, number: int, frame: object) -> None:
        """Handle a signal in the main thread: from outside, or from `insist`, maybe for a block around this one. Calls
        neither Py4J nor the store; PySpark's own handler of SIGINT, which it calls, cancels Spark's jobs."""
        if number == signal.SIGINT:  # the program may catch the KeyboardInterrupt, and is interrupted all the same
            self.signal = self.signal or number
            self._signals.pass_on(number, frame)
            return
        is_ours = number == signal.SIGTERM and self._clock.now() < BlockInterrupt.sent_at + _AGAIN
        is_lost = self._is_lost()
        if not (is_ours or is_lost):
            self.signal = number
        if not self.has_left.is_set() and self._clock.now() > self._ended_at + _AT_ONCE:
            self._ended_at = self._clock.now()
            raise Ended("the lease is lost" if is_lost else "the guard ends this block")
