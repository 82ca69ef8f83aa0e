"""Handles signals for a while: SIGTERM, and SIGHUP if it is not ignored."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import builtins
import contextlib
import functools
import os
import signal
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
        for number in _SIGNALS:
            old = _without_ended(number, signal.getsignal(number))
            if number == signal.SIGTERM or old is signal.SIG_DFL:  # nohup ignores SIGHUP, and so do we
                self._old[number] = old
                signal.signal(number, self._on_signal)

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


class SigintCount:
    """Counts the SIGINTs that end a program, also where the program catches each KeyboardInterrupt.

    Python writes the number of each signal to one descriptor (`signal.set_wakeup_fd`), whichever handler it has:
    PySpark sets its own. If another library uses that descriptor, nothing is counted.
    """

    def __init__(self) -> None:
        self._count, self._pipe = 0, (-1, -1)

    def begin(self) -> int:
        """The count so far. The first call in the main thread begins to count."""
        if self._pipe[0] < 0 and threading.current_thread() is threading.main_thread():
            with contextlib.suppress(OSError, ValueError):  # no descriptor is free; not the main interpreter
                self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                if (others := signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)) >= 0:
                    signal.set_wakeup_fd(others)
        return self.count()

    def count(self) -> int:
        """How many have come. Not counted: in IPython, where a SIGINT ends a cell and not the block; and if the program
        has its own handler, for which a SIGINT may mean anything."""
        with contextlib.suppress(OSError):
            numbers = os.read(self._pipe[0], 1 << 16)
            handler = signal.getsignal(signal.SIGINT)
            if handler is signal.default_int_handler or str(getattr(handler, "__module__", "")).startswith("pyspark."):
                self._count += numbers.count(signal.SIGINT) * (not hasattr(builtins, "get_ipython"))
        return self._count

    def forget(self) -> None:
        """In a forked child: its parent must not count its signals."""
        if self._pipe[1] >= 0 and (others := signal.set_wakeup_fd(-1)) not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(others)
        for each in self._pipe:
            with contextlib.suppress(OSError):
                os.close(each)
        self._pipe = (-1, -1)


sigints = SigintCount()


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
os.register_at_fork(after_in_child=sigints.forget)
