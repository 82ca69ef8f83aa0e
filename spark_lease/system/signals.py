"""Handles signals for a while: SIGTERM, SIGHUP if it is not ignored, and SIGINT if it interrupts the program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_handled: list[HandledSignals] = []
_held_back: set[int] = set()
"""Signals that are blocked during a fork. If a signal with a handler reaches a child before Python is ready there, it
is forgotten, and `Pool.terminate` signals children that were just forked."""


class Interrupted(BaseException):
    """A signal told us to end; args[0] is its number."""


@contextlib.contextmanager
def handled(handler: Callable[[int, Any], object], numbers: Sequence[int] = _ENDS) -> Iterator[None]:
    """Call `handler` for those of `numbers` that are not ignored, as by nohup, until the block is left."""
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    old = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


class HandledSignals:
    """Handles signals of this process from `begin` to `end`; a forked child has the earlier handlers from its start.

    Python calls handlers between two of its own instructions. A signal that comes in the microseconds before a blocking
    call, `time.sleep(3600)` for example, is handled when the call ends, or when another signal comes.
    """

    def __init__(self, handler: Callable[[int, object], None]) -> None:
        self._handler = handler
        self._pid = 0
        self._old: dict[int, Any] = {}
        self._before: dict[int, Any] = {}
        """The earlier handlers, kept after `end` for a handler of the program that goes on calling ours."""

    @property
    def are_heard(self) -> bool:
        """True while SIGTERM calls a handler of this module: the program may have replaced it by its own."""
        handler = signal.getsignal(signal.SIGTERM)
        return bool(self._old) and getattr(handler, "__func__", None) is HandledSignals._on_signal

    def begin(self) -> None:
        """Install the handlers. Does nothing on any thread but the main one, which alone gets signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._pid = os.getpid()
        _held_back.update(set(_SIGNALS) - signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        _handled.append(self)
        for number in (*_SIGNALS, signal.SIGINT):
            old = _without_ended(number, signal.getsignal(number))
            if (
                number == signal.SIGTERM
                or (number == signal.SIGHUP and old is signal.SIG_DFL)  # nohup ignores SIGHUP, and so do we
                or (number == signal.SIGINT and _interrupts(old) and not hasattr(sys, "ps1"))  # there it ends a line
            ):
                self._old[number] = old
                signal.signal(number, self._on_signal)

    def pass_on(self, number: int, frame: object) -> None:
        """Call the handler that was there before, or that `keep_sigint` has found."""
        if callable(old := self._old.get(number)):
            old(number, frame)

    def end(self) -> None:
        """Put the earlier handlers back. Raises KeyboardInterrupt if that comes meanwhile, after the same work. On
        another thread than the main one the handlers stay, and pass signals on."""
        try:
            for number, old in self._old.items():
                self._put_back(number, old)
            self._before |= self._old
            self._old.clear()
            if self in _handled:
                _handled.remove(self)
            if not _handled and os.getpid() == self._pid:
                _held_back.clear()
        except KeyboardInterrupt:
            self.end()
            raise

    def _put_back(self, number: int, old: Any) -> None:
        if signal.getsignal(number) == self._on_signal:
            if threading.current_thread() is threading.main_thread():
                signal.signal(number, old)
            return
        for each in _handled:  # one that began later and has not ended yet, as in tasks of an event loop
            if each._old.get(number) == self._on_signal:
                each._old[number] = old
        # Else the program has put its own handler there, and that stays.

    def _on_signal(self, number: int, frame: object) -> None:
        # A child that was interrupted right after its fork has none.
        before = self._before.get(number, self._handler if os.getpid() == self._pid else signal.SIG_DFL)
        if callable(before):
            before(number, frame)
        elif before != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _interrupts(handler: Any) -> bool:
    """True if this handler of SIGINT ends a program by KeyboardInterrupt: Python's, PySpark's, or one of this module. A
    program's own may do anything."""
    is_ours = isinstance(getattr(handler, "__self__", None), HandledSignals)
    return handler is signal.default_int_handler or is_ours or _is_pysparks(handler)


def _is_pysparks(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("pyspark.")


def keep_sigint() -> None:
    """Put our handlers of SIGINT before PySpark's. Call it after a SparkContext has begun: it replaces them."""
    hearing = [each for each in _handled if signal.SIGINT in each._old]
    if hearing and _is_pysparks(handler := signal.getsignal(signal.SIGINT)):
        with contextlib.suppress(ValueError):  # on another thread than the main one, where PySpark sets no handler
            signal.signal(signal.SIGINT, hearing[-1]._on_signal)
            hearing[0]._old[signal.SIGINT] = handler


def _without_ended(number: int, handler: Any) -> Any:
    """The handler behind those of blocks that ended on another thread, where they could not be removed."""
    while isinstance(ended := getattr(handler, "__self__", None), HandledSignals) and ended not in _handled:
        handler = ended._before.get(number, signal.SIG_DFL)
    return handler


def _give_back() -> None:
    while _handled:
        _handled[-1].end()


# The functions of `_signal` have no Python frame, in which the handler of another signal could raise.
_hold_back = functools.partial(_signal.pthread_sigmask, signal.SIG_BLOCK, _held_back)
_let_through = functools.partial(_signal.pthread_sigmask, signal.SIG_UNBLOCK, _held_back)
os.register_at_fork(after_in_child=_give_back)  # first, because they run in this order
os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_let_through)
os.register_at_fork(after_in_child=_held_back.clear)
