"""Patience with a store that does not answer for a moment, for the notes and claims that work depends on."""

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
    """Call `ask` every so many seconds until it answers; what it returns.

    Raises its StoreError after `timeout` seconds, or at once if that is final; and whatever else it raises.
    """
    end = clock.now() + timeout
    while True:
        try:
            return ask()
        except StoreError as error:
            if is_final(error) or clock.now() >= end:
                raise
        clock.wait(threading.Event(), every)
