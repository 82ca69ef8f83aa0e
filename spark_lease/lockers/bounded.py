"""Waiting no longer than `attempt_timeout` for a call that nobody can interrupt: into native code, or a file system."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ..clock import Clock
from ..errors import StoreError

T = TypeVar("T")
_Answers = queue.SimpleQueue[tuple[Any, BaseException | None]]


class Bounded:
    """One thread that makes the calls, one after the other, and a caller that stops waiting in time.

    What was not waited for goes on, and may still take effect: the next call begins only after it has ended.
    """

    def __init__(self, where: str, *, timeout: float, clock: Clock) -> None:
        self._where, self._timeout, self._clock = where, timeout, clock
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], _Answers] | None] = queue.SimpleQueue()
        self._late: _Answers | None = None
        self._thread: threading.Thread | None = None

    def call(self, what: Callable[[], T]) -> T:
        """What `what` returns or raises. Raises StoreError if it has not by then, or an earlier one still has not."""
        end = self._clock.now() + self._timeout
        if self._late is not None:
            self._answer(self._late, end)
        self._start()
        answers: _Answers = queue.SimpleQueue()
        self._late = answers
        self._calls.put((what, answers))
        value, error = self._answer(answers, end)
        if error is not None:
            raise error
        answer: T = value
        return answer

    def begin(self, what: Callable[[], Any]) -> None:
        """Have `what` called, and wait for nothing. The next `call` waits for it as well."""
        self._start()
        self._calls.put((what, queue.SimpleQueue()))

    def close(self, last: Callable[[], Any] = lambda: None) -> None:
        """Make no more calls but `last`, after one that is late. Waits for none."""
        if self._thread is not None:
            self._calls.put((last, queue.SimpleQueue()))
            self._calls.put(None)
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"ask {self._where}", daemon=True)
            self._thread.start()

    def _answer(self, answers: _Answers, end: float) -> tuple[Any, BaseException | None]:
        try:
            found = answers.get(timeout=max(end - self._clock.now(), 0.0))
        except queue.Empty:
            raise StoreError(self._where, f"no answer within {self._timeout:g} s") from None
        self._late = None
        return found

    def _work(self) -> None:
        while call := self._calls.get():
            what, answers = call
            try:
                answers.put((what(), None))
            except OSError as error:  # a file system that fails is a store that does not answer
                answers.put((None, StoreError(self._where, f"{error.filename or self._where}: {error.strerror}")))
            except BaseException as error:  # whatever it is: it belongs to the caller
                answers.put((None, error))
