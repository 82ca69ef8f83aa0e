"""The fencing status of a hold, for people: on the lease, and noted beside it for `spark-lease status`.

No code decides by it or waits for it: a thread of its own writes the note.
"""

import json
import logging
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from ..clock import BootClock
from ..config.settings import Config
from ..election.ports import HeldLease, Notes
from ..errors import RecordUnreadable, SparkLeaseError
from ..system.call_timeout import GIVES_WAY

log = logging.getLogger(__name__)

KIND = "fences"
"""The kind of its notes: there is one, under the number of the newest epoch."""


@dataclass(frozen=True, slots=True)
class Fences:
    """`delta`: "hook" (each transaction asks the lease, and tables are claimed), "claims" (tables are claimed, but a
    write that a former master begins later is not refused), "none" (not even claims are possible), "off" (switched
    off). `sql`: "claimed" (the database of `fence_url`, so that fenced tables refuse older epochs), or "none"."""

    delta: str = "none"
    sql: str = "none"

    def __str__(self) -> str:
        return f"delta {self.delta}, sql {self.sql}"


class ShowsFences(HeldLease, Protocol):
    fences: Fences

    def remaining(self) -> float: ...


class FencingStatus:
    """Keeps `lease.fences` and its note up to date. Never raises."""

    def __init__(self, lease: ShowsFences, config: Config) -> None:
        self._lease, self._config = lease, config
        self._writing = threading.Lock()
        self._written: Fences | None = None

    def show(self, **levels: str) -> None:
        self._lease.fences = replace(self._lease.fences, **levels)
        if not self._config.enabled:
            return
        try:
            threading.Thread(target=self._write, name=f"fences of {self._lease.name}", daemon=True).start()
        except RuntimeError as error:  # the machine can start no more threads
            self._warn(error)

    def _write(self) -> None:
        BootClock().wait(threading.Event(), GIVES_WAY)
        with self._writing:
            shown = self._lease.fences
            if shown == self._written:
                return
            try:
                self._lease.note(KIND, str(self._lease.epoch), json.dumps(asdict(shown)), newest=True)
                self._written = shown
            except Exception as error:  # any error: the work goes on
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        reason = error if isinstance(error, SparkLeaseError) else type(error).__name__
        level = logging.WARNING if self._lease.remaining() else logging.DEBUG  # DEBUG: the hold is over
        message = "%s: what is fenced (%s) is not shown by status: %s"
        log.log(level, message, self._lease.name, self._lease.fences, reason)


def fences_of(notes: Notes, name: str, epoch: int) -> Fences | None:
    """The fencing status under `epoch` of lease `name`; None if there is no note. Raises StoreError, ConfigError."""
    text = notes.get(name, KIND, str(epoch))
    if text is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        return Fences(str(fields["delta"]), str(fields["sql"]))
    except (ValueError, TypeError, KeyError):
        raise RecordUnreadable(notes.where, f"cannot read a note of fences: {text[:80]!r}") from None
