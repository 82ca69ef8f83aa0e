"""Waits at most `attempt_timeout` for a call that cannot be interrupted: into native code or a file system."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..clock import BootClock
from ..errors import StoreError

T = TypeVar("T")
_Answers = queue.SimpleQueue[tuple[Any, BaseException | None]]

GIVES_WAY = 0.05
"""Seconds that a note waits, in the background, at a grant: the guarded work begins first."""
_LEAVE_WITHIN = 2.0
_is_over = False


class CallTimeout:
    """Makes calls on one thread, one after the other; the caller stops waiting in time.

    A call that times out goes on and may still take effect: the next call begins only after it has ended.
    """

    def __init__(self, where: str, *, timeout: float) -> None:
        self._where, self._timeout, self._clock = where, timeout, BootClock()
        self._late: _Answers | None = None
        self._caller: _Caller | None = None

    def call(self, what: Callable[[], T]) -> T:
        """Return or raise what `what` does. Raises StoreError if it, or an earlier call, has not ended in time."""
        return self.start(what)()

    def start(self, what: Callable[[], T]) -> Callable[[], T]:
        """Start `what` and go on. The function returned gives the answer once, or raises, as `call` does."""
        if _is_over and threading.current_thread() is not threading.main_thread():
            raise StoreError(self._where, "this process ends")
        end = self._clock.now() + self._timeout
        if self._late is not None:
            self._answer(self._late, end)
        answers: _Answers = queue.SimpleQueue()
        self._ask(what, answers)
        self._late = answers

        def answer() -> T:
            value, error = self._answer(answers, end)
            if error is not None:
                raise error
            found: T = value
            return found

        return answer

    def begin(self, what: Callable[[], Any], *, after: float = 0.0) -> None:
        """Start `what` and do not wait; the next `call` waits for it too. Does nothing once Python ends.

        It starts after `after` seconds, or earlier if another call is asked for by then."""
        if not _is_over:
            self._ask(what, queue.SimpleQueue(), after)

    @property
    def is_busy(self) -> bool:
        return self._caller is not None and self._caller.is_busy

    def close(self, last: Callable[[], Any] = lambda: None) -> None:
        """Make no more calls but `last`, after one that is late. Does not wait."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.ask(last, queue.SimpleQueue())
            caller.dismiss()

    def _ask(self, what: Callable[[], Any], answers: _Answers, after: float = 0.0) -> None:
        caller = self._caller
        if caller is None:
            caller = _Caller(self._where)
            caller.start()
            self._caller = caller
        caller.ask(what, answers, after)

    def _answer(self, answers: _Answers, end: float) -> tuple[Any, BaseException | None]:
        try:
            found = answers.get(timeout=max(end - self._clock.now(), 0.0))
        except queue.Empty:
            raise StoreError(self._where, f"no answer within {self._timeout:g} s") from None
        self._late = None
        return found


class _Caller(threading.Thread):
    def __init__(self, where: str) -> None:
        super().__init__(name=f"ask {where}", daemon=True)
        self._where = where
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Answers, float] | None] = queue.SimpleQueue()
        self._clock, self._hurry = BootClock(), threading.Event()
        self._asked = self._done = 0

    @property
    def is_busy(self) -> bool:
        return self._asked != self._done

    def ask(self, what: Callable[[], Any], answers: _Answers, after: float = 0.0) -> None:
        self._asked += 1
        self._calls.put((what, answers, after))
        if not after:
            self._hurry.set()

    def dismiss(self) -> None:
        self._calls.put(None)

    def run(self) -> None:
        while call := self._calls.get():
            what, answers, after = call
            if after:
                self._hurry.clear()
                if self._calls.empty():
                    self._clock.wait(self._hurry, after)
            answer = self._answer(what)
            self._done += 1
            answers.put(answer)

    def _answer(self, what: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            return what(), None
        except OSError as error:  # a file system that fails is a store that does not answer
            return None, StoreError(self._where, f"{error.filename or self._where}: {error.strerror}")
        except Exception as error:  # for the caller to raise
            return None, error
        except BaseException as error:  # a panic of Rust is no Exception, and must not end the thread
            return None, StoreError(self._where, f"{type(error).__name__}: {error}")


@atexit.register
def _let_calls_end() -> None:
    """Wait for calls under way. As Python ends, it ends daemon threads that return from native code (pthread_exit,
    before 3.14). That unwinds Rust's frames and crashes: a job that succeeded would end with exit code 139."""
    global _is_over
    end = BootClock().now() + _LEAVE_WITHIN
    try:
        _await_callers(end)
    finally:
        _is_over = True
    _await_callers(end)  # one more may just have begun


def _await_callers(end: float) -> None:
    clock, never = BootClock(), threading.Event()
    while any(isinstance(each, _Caller) and each.is_busy for each in threading.enumerate()) and clock.now() < end:
        clock.wait(never, 0.005)
