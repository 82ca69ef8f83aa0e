"""Signals that are handled for a while: SIGTERM, and SIGHUP where it is not ignored."""

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
_WAKE = signal.SIGURG
"""Ignored by programs that do not ask for it."""
_handled: list[HandledSignals] = []
_held_back: set[int] = set()
"""While a fork is made. One that reaches a child before Python is ready in it is forgotten if it has a handler, and
`Pool.terminate` sends one to children that are just born."""


class HandledSignals:
    """Those of this process between `begin` and `end`; a forked child has what was there before, from its birth on."""

    called: ClassVar[int] = 0
    """How often a handler of ours was, in this process."""

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
                self._net.begin()
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
            self._old.clear()
            if self._net:
                self._net.end()
                self._net = None
            if self in _handled:
                _handled.remove(self)
        except KeyboardInterrupt:
            self.end()
            raise

    def _on_signal(self, number: int, frame: object) -> None:
        HandledSignals.called += 1
        if os.getpid() == self._pid:
            self._handler(number, frame)
        else:  # a child whose birth was disturbed
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class _Net:
    """Wakes the main thread if a signal came whose handler is not called.

    Python calls handlers between two of its own instructions, and a system call returns for a signal only once it has
    begun. One that comes in between is heard when the call is over, `time.sleep(3600)`. The byte that
    signal.set_wakeup_fd asks for is written at once, and here another thread finds it. It sends a signal that means
    nothing, because the same one again might count as a second one.
    """

    _may_be_closed = False

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._called, self._is_owed = HandledSignals.called, False

    def begin(self) -> None:
        if signal.getsignal(_WAKE) is not signal.SIG_DFL:
            return
        signal.signal(_WAKE, _wake)
        old = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if old != -1:  # an event loop's, and it stays
            with contextlib.suppress(OSError, ValueError):  # but if it was closed, it is nothing
                signal.set_wakeup_fd(old)

    def look(self) -> None:
        called = HandledSignals.called  # first: what is called from here on is seen by the next look
        came = set[int]()
        with contextlib.suppress(BlockingIOError):
            came.update(os.read(self._read, 4096))
        if not came and not self._is_owed:  # again and again
            self._called = called
            return
        ours = {number for number in _SIGNALS if _is_ours(signal.getsignal(number))}
        if called != self._called or not ours:
            self._called, self._is_owed = called, False
            return
        if self._is_owed and signal.getsignal(_WAKE) is _wake:
            signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)
        self._is_owed |= bool(came & ours)

    def end(self) -> None:
        """May be called again."""
        if signal.getsignal(_WAKE) is _wake:
            signal.signal(_WAKE, signal.SIG_DFL)
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, self._write):
            with contextlib.suppress(OSError, ValueError):  # the same
                signal.set_wakeup_fd(now)
        self._may_be_closed = True

    def __del__(self) -> None:  # not before, because the other thread may be about to read
        if self._may_be_closed:
            os.close(self._read)
            os.close(self._write)


def _wake(number: int, frame: object) -> None:
    """The main thread has looked for signals."""


def _is_ours(handler: Any) -> bool:
    return getattr(handler, "__func__", None) is HandledSignals._on_signal


def _give_back() -> None:
    while _handled:
        _handled[-1].end()


# The functions of `_signal` have no frame of Python's, in which the handler of another signal could raise.
_hold_back = functools.partial(_signal.pthread_sigmask, signal.SIG_BLOCK, _held_back)
_let_through = functools.partial(_signal.pthread_sigmask, signal.SIG_UNBLOCK, _held_back)
os.register_at_fork(after_in_child=_give_back)  # first, because they run in this order
os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_let_through)
