"""Signals that are handled for a while: SIGTERM, and SIGHUP where nobody ignores it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_handled: list[HandledSignals] = []
_forking = threading.local()


class HandledSignals:
    """Those of this process between `begin` and `end`; a forked child has what was there before, from its birth on."""

    def __init__(self, handler: Callable[[int, object], None]) -> None:
        self._handler = handler
        self._old: dict[int, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._old)

    def begin(self) -> None:
        """Does nothing on any thread but the main one, which alone is told of signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        _handled.append(self)
        for number in _SIGNALS:
            old = signal.getsignal(number)
            if number == signal.SIGTERM or old is signal.SIG_DFL:  # nohup ignores SIGHUP, and so do we
                self._old[number] = old
                signal.signal(number, self._on_signal)

    def end(self) -> None:
        if self in _handled:
            _handled.remove(self)
        while self._old:
            signal.signal(*self._old.popitem())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if _is_amid_a_fork(frame):  # where nobody hears what is raised
            threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), number)).start()
        else:
            self._handler(number, frame)


def _hold_back() -> None:
    # A signal that reaches a child before Python is ready in it is forgotten, and `Pool.terminate` sends one then.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS if _handled else ())


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, getattr(_forking, "mask", ()))


def _give_back() -> None:
    while _handled:
        _handled[-1].end()
    _let_through()


def _is_amid_a_fork(frame: FrameType | None) -> bool:
    while frame and frame.f_code not in (_hold_back.__code__, _let_through.__code__):
        frame = frame.f_back
    return frame is not None


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_give_back)
