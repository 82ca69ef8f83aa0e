"""What the masters that are to be frozen have in common: they write again and again, in a process that is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Writing:
    """Calls `write` on a thread until it raises, or until it is told to stop. Made once the first call is over."""

    def __init__(self, write: Callable[[], object]) -> None:
        self._write, self._end = write, ""
        self._began, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        self._began.wait()

    def stop(self) -> None:
        self._stop.set()

    def end(self) -> str:
        """What ended it, by its name."""
        self._thread.join()
        return self._end

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self._write()
                self._began.set()
            self._end = "stopped"
        except Exception as error:  # whatever it is, the one who asked will judge it
            self._end = type(error).__name__
        self._began.set()
