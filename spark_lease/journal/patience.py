"""Retries the notes and claims that work depends on, while a store does not answer."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ..clock import Clock
from ..errors import NotesDenied, RecordUnreadable, StoreError

T = TypeVar("T")


def _is_final(error: StoreError) -> bool:
    return isinstance(error, NotesDenied | RecordUnreadable)


def patiently(
    ask: Callable[[], T],
    clock: Clock,
    *,
    timeout: float,
    every: float,
    is_final: Callable[[StoreError], bool] = _is_final,
) -> T:
    """Call `ask` until it answers, with pauses of `every` seconds; returns its answer.

    Raises its StoreError after `timeout` seconds, or at once if it is final, and any other exception of `ask`.
    """
    end = clock.now() + timeout
    while True:
        try:
            return ask()
        except StoreError as error:
            if is_final(error) or clock.now() >= end:
                raise
        clock.wait(threading.Event(), every)
