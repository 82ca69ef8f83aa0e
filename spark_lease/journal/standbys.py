"""The standbys of a lease: each waiting contender notes itself beside it, rarely, and never waits for the note."""

import json
import logging
import math
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass

from ..clock import Clock, wall_time
from ..config.settings import Config
from ..config.urls import redacted
from ..election.ports import Notes
from ..errors import SparkLeaseError
from ..stores.registry import note_beside, open_notes
from ..system.call_timeout import GIVES_WAY, CallTimeout

log = logging.getLogger(__name__)

KIND = "standby"
AGAIN = 300.0
LATELY = 2 * AGAIN
"""Seconds after its last note for which a standby still counts."""


@dataclass(frozen=True, slots=True)
class Standby:
    """`at`: time of its note; `since`: time when its `state` began; in seconds since 1970 by its own machine's clock.

    `state`: cold, warming up or warm.
    """

    holder: str
    site: str
    host: str
    at: float
    state: str = "cold"
    since: float = 0.0


_KINDS = {"holder": str, "site": str, "host": str, "at": float, "state": str, "since": float}


class Presence:
    """A contender's note beside the lease, as long as it waits. Implements `StandbyNote`."""

    period = AGAIN

    def __init__(self, config: Config, clock: Clock, *, holder: str) -> None:
        self._config, self._clock, self._holder = config, clock, holder
        self._bounded = CallTimeout(redacted(config.url), timeout=config.attempt_timeout)
        self._due, self._is_noted = -math.inf, False
        self._state, self._since = "cold", wall_time()

    def become(self, state: str) -> None:
        """Change the kind of standby that the next `say` shows."""
        if state != self._state:
            self._state, self._since, self._due = state, wall_time(), -math.inf

    def say(self) -> None:
        """Show that it still waits."""
        if self._config.enabled and self._clock.now() >= self._due:
            self._due, self._is_noted = self._clock.now() + AGAIN, True
            self._bounded.begin(lambda: self._try(self._note))

    def forget(self) -> None:
        """Show that it no longer waits."""
        if self._is_noted:
            self._is_noted = False
            self._bounded.begin(lambda: self._try(self._remove), after=GIVES_WAY)

    def close(self) -> None:
        self.forget()
        self._bounded.close()

    def _note(self) -> None:
        with closing(open_notes(self._config)) as notes:
            notes.remove(self._config.shared_name, KIND, self._holder)
            notes.prune(self._config.shared_name, (KIND,), LATELY)
        me = Standby(self._holder, self._config.site, socket.gethostname(), wall_time(), self._state, self._since)
        note_beside(self._config, KIND, self._holder, lambda _: json.dumps(asdict(me)))

    def _remove(self) -> None:
        with closing(open_notes(self._config)) as notes:
            notes.remove(self._config.shared_name, KIND, self._holder)

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (SparkLeaseError, OSError) as error:  # the only effect: `status` does not show this standby
            log.debug("%s: this standby is not noted: %s", self._config.name, error)


def standbys_of(notes: Notes, name: str, now: float) -> list[Standby]:
    """The standbys of lease `name` that were noted recently. Raises StoreError."""
    found = []
    for text in notes.all(name, KIND).values():
        try:
            fields = json.loads(text)
            standby = Standby(**{key: kind(fields[key]) for key, kind in _KINDS.items() if key in fields})
        except (ValueError, TypeError, KeyError):  # not written by us: the others are shown all the same
            continue
        if abs(now - standby.at) < LATELY:
            found.append(standby)
    return sorted(found, key=lambda each: each.holder)
