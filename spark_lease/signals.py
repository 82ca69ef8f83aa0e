"""Signals that are handled for a while: SIGTERM, and SIGHUP where nobody ignores it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, ClassVar

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_handled: list[HandledSignals] = []
_held_back: set[int] = set()
"""While a fork is made. One that reaches a child before Python is ready in it is forgotten if it has a handler, and
`Pool.terminate` sends one to children that are just born."""


class HandledSignals:
    """Those of this process between `begin` and `end`; a forked child has what was there before, from its birth on."""

    called: ClassVar[int] = 0

    def __init__(self, handler: Callable[[int, object], None]) -> None:
        self._handler = handler
        self._pid = 0
        self._old: dict[int, Any] = {}
        self._net: _Net | None = None

    def __bool__(self) -> bool:
        return bool(self._old)

    def begin(self) -> None:
        """Does nothing on any thread but the main one, which alone is told of signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        _held_back.update(set(_SIGNALS) - signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        _handled.append(self)
        if len(_handled) == 1:
            with contextlib.suppress(OSError):  # no more files: then it goes without
                self._net = _Net()
        for number in _SIGNALS:
            old = signal.getsignal(number)
            if number == signal.SIGTERM or old is signal.SIG_DFL:  # nohup ignores SIGHUP, and so do we
                self._old[number] = old
                signal.signal(number, self._on_signal)

    def look(self) -> None:
        """Have a signal heard that came just before a call that blocks. For another thread, now and then."""
        if net := self._net:
            net.look()

    def end(self) -> None:
        """Raises KeyboardInterrupt if that comes meanwhile, after the same was done."""
        try:
            for number, old in self._old.items():
                signal.signal(number, old)
        except KeyboardInterrupt:
            self.end()
            raise
        self._old.clear()
        if self._net:
            self._net.stop()
            self._net = None
        if self in _handled:
            _handled.remove(self)

    def _on_signal(self, number: int, frame: object) -> None:
        HandledSignals.called += 1
        if os.getpid() == self._pid:
            self._handler(number, frame)
        else:  # a child whose birth was disturbed
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Net:
    """Sends a signal again whose handler was not called.

    Python calls handlers between two of its own instructions, and a system call returns for a signal only once it has
    begun. One that comes in between is heard when the call is over, `time.sleep(3600)`. The byte that
    signal.set_wakeup_fd asks for is written at once, and here it is found by another thread.
    """

    def __init__(self) -> None:
        self._may_be_written = True
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._called, self._owed = HandledSignals.called, 0
        self._old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if self._old != -1:  # an event loop's, which looks for itself
            signal.set_wakeup_fd(self._old)

    def look(self) -> None:
        called = HandledSignals.called  # first: a handler that is called from here on is seen by the next look
        try:
            came = os.read(self._read, 4096)
        except BlockingIOError:
            came = b""
        if called != self._called:
            self._called, self._owed = called, 0
            return
        if self._owed and getattr(signal.getsignal(self._owed), "__func__", None) is HandledSignals._on_signal:
            signal.pthread_kill(threading.main_thread().ident or 0, self._owed)
        for number in set(came).intersection(_SIGNALS):
            self._owed = number

    def stop(self) -> None:
        now = signal.set_wakeup_fd(self._old)
        if now != self._write:
            signal.set_wakeup_fd(now)
        self._may_be_written = False

    def __del__(self) -> None:  # not before, because the other thread may be about to read
        if not self._may_be_written:
            os.close(self._read)
            os.close(self._write)


def _give_back() -> None:
    while _handled:
        _handled[-1].end()


# The functions of `_signal` have no frame of Python's, in which the handler of another signal could raise.
_hold_back = functools.partial(_signal.pthread_sigmask, signal.SIG_BLOCK, _held_back)
_let_through = functools.partial(_signal.pthread_sigmask, signal.SIG_UNBLOCK, _held_back)
os.register_at_fork(after_in_child=_give_back)  # first, because they run in this order
os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_let_through)
