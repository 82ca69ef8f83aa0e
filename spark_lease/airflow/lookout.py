"""Looking at a lease without taking it: who has it, and whether it is worth trying. Guards nothing, asks the store."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..clock import BootClock, Clock, utc_text
from ..config import Config
from ..lockers.registry import open_notes, open_store
from ..record import LeaseRecord, expires_in
from ..runs import done_under

FREE, HELD, EXPIRED = "free", "held", "expired"


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. `expires_in` None: the store has no clock, so that one look cannot tell whether it has run out."""

    lease: str
    state: str
    holder: str = ""
    epoch: int = 0
    since: str = ""
    expires_in: float | None = 0.0

    @property
    def label(self) -> str:
        """The holder without its unique ending: the site."""
        return self.holder.rsplit(":", 3)[0]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Lookout:
    """Looks again and again: what a store without a clock never says is seen from a record that stands still."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._config = replace(config, create_table="false")
        self._clock = clock or BootClock()
        self._standing: tuple[LeaseRecord | None, float] = (None, self._clock.now())

    def look(self) -> Seen:
        """Raises StoreError if nobody can tell, ConfigError."""
        name = self._config.name
        with closing(open_store(self._config)) as store:
            seen = store.read(name)
        record, now = seen.record, self._clock.now()
        if record != self._standing[0]:
            self._standing = (record, now)
        if record is None or record.holder is None:
            return Seen(name, FREE, epoch=record.epoch if record else 0)
        left = expires_in(seen, still_for=now - self._standing[1])
        if left <= 0:
            return Seen(name, EXPIRED, record.holder, record.epoch, utc_text(record.epoch / 1000))
        known = None if seen.expires_in is None else round(left, 1)
        return Seen(name, HELD, record.holder, record.epoch, utc_text(record.epoch / 1000), known)

    def done_under(self) -> int:
        """The epoch under which the run key was done; 0 if it was not. Raises StoreError, ConfigError."""
        if not self._config.run_key:
            return 0
        with closing(open_notes(self._config, self._clock)) as notes:
            return done_under(notes, self._config.name, self._config.run_key)
