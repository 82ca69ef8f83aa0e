"""Patience with a lease store that does not answer for a moment, for the notes that work depends on."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ..clock import Clock
from ..errors import NotesDenied, RecordUnreadable, StoreError

T = TypeVar("T")


FINAL = (NotesDenied, RecordUnreadable)
"""What waiting does not heal, as a rule."""


def patiently(
    ask: Callable[[], T],
    clock: Clock,
    *,
    timeout: float,
    every: float,
    final: tuple[type[StoreError], ...] = FINAL,
) -> T:
    """Call `ask` every so many seconds until it answers; what it returns.

    Raises its StoreError after `timeout` seconds, or at once if that is `final`; and whatever else it raises.
    """
    end = clock.now() + timeout
    while True:
        try:
            return ask()
        except StoreError as error:
            if isinstance(error, final) or clock.now() >= end:
                raise
        clock.wait(threading.Event(), every)
