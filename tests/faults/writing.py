"""What the masters that are to be frozen have in common: they write again and again, in a process that is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds within which a write that has to be refused is."""


class Writing:
    """Calls `write` on a thread until it raises, or until it is told to stop. Made once the first call is over."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write, self._end, self._at = write, "", 0.0
        self._began, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        self._began.wait()

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> str:
        """What ended it, by its name, and when its last write had begun (CLOCK_MONOTONIC, the same everywhere)."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self.stop()
            self._thread.join()
            self._end = "was-not-refused"
        return f"{self._end} {self._at}"

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._at = time.monotonic()
                self._write()
                self._began.set()
            self._end = "stopped"
        except Exception as error:  # whatever it is, the one who asked will judge it
            self._end = type(error).__name__
        self._began.set()
