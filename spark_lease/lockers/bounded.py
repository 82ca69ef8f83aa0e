"""Waiting no longer than `attempt_timeout` for a call that nobody can interrupt: into native code, or a file system."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..clock import BootClock, Clock
from ..errors import StoreError

T = TypeVar("T")
_Answers = queue.SimpleQueue[tuple[Any, BaseException | None]]

_LEAVE_WITHIN = 2.0
_is_over = False


class Bounded:
    """One thread that makes the calls, one after the other, and a caller that stops waiting in time.

    What was not waited for goes on, and may still take effect: the next call begins only after it has ended.
    """

    def __init__(self, where: str, *, timeout: float, clock: Clock) -> None:
        self._where, self._timeout, self._clock = where, timeout, clock
        self._late: _Answers | None = None
        self._caller: _Caller | None = None

    def call(self, what: Callable[[], T]) -> T:
        """What `what` returns or raises. Raises StoreError if it has not by then, or an earlier one still has not."""
        end = self._clock.now() + self._timeout
        if self._late is not None:
            self._answer(self._late, end)
        caller = self._started()
        answers: _Answers = queue.SimpleQueue()
        self._late = answers
        caller.calls.put((what, answers))
        value, error = self._answer(answers, end)
        if error is not None:
            raise error
        answer: T = value
        return answer

    def begin(self, what: Callable[[], Any]) -> None:
        """Have `what` called, and wait for nothing; the next `call` waits for it as well. It is left if Python ends."""
        with contextlib.suppress(StoreError):
            self._started().calls.put((what, queue.SimpleQueue()))

    def close(self, last: Callable[[], Any] = lambda: None) -> None:
        """Make no more calls but `last`, after one that is late. Waits for none."""
        if self._caller is not None:
            self._caller.calls.put((last, queue.SimpleQueue()))
            self._caller.calls.put(None)
            self._caller = None

    def _started(self) -> _Caller:
        if self._caller is None:
            if _is_over:
                raise StoreError(self._where, "this process ends")
            self._caller = _Caller(self._where)
            self._caller.start()
        return self._caller

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
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], _Answers] | None] = queue.SimpleQueue()

    def run(self) -> None:
        while call := self.calls.get():
            what, answers = call
            try:
                answers.put((what(), None))
            except OSError as error:  # a file system that fails is a store that does not answer
                answers.put((None, StoreError(self._where, f"{error.filename or self._where}: {error.strerror}")))
            except BaseException as error:  # whatever it is: it belongs to the caller
                answers.put((None, error))


@atexit.register
def _let_calls_end() -> None:
    """Python's end takes daemon threads away as they come out of native code (pthread_exit, before 3.14). That unwinds
    Rust's frames, which is a crash: a job that succeeded would end with exit code 139."""
    global _is_over
    clock = BootClock()
    end = clock.now() + _LEAVE_WITHIN
    while callers := [each for each in threading.enumerate() if isinstance(each, _Caller)]:
        if (left := end - clock.now()) <= 0:
            break
        for caller in callers:
            caller.calls.put(None)
        callers[0].join(left)
    _is_over = True
