"""Patience with a lease store that does not answer for a moment, for the notes that work depends on."""

import threading
from collections.abc import Callable
from typing import TypeVar

from ..clock import Clock
from ..errors import NotesDenied, RecordUnreadable, StoreError

T = TypeVar("T")


def patiently(ask: Callable[[], T], clock: Clock, *, timeout: float, every: float) -> T:
    """What `ask` returns, which is called every so many seconds until it answers.

    Raises its StoreError after `timeout` seconds, or at once if waiting does not heal it; and whatever else it raises.
    """
    end = clock.now() + timeout
    while True:
        try:
            return ask()
        except (NotesDenied, RecordUnreadable):
            raise
        except StoreError:
            if clock.now() >= end:
                raise
        clock.wait(threading.Event(), every)
