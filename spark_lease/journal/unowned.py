"""A note beside a lease by a process that does not hold it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from ..clock import Clock
from ..config.settings import Config
from ..election.record import LeaseRecord
from ..errors import ConfigError, StoreError
from ..stores.registry import open_notes, open_store

_TRIES = 5


def note_beside(
    config: Config, clock: Clock, kind: str, key: str, text: Callable[[LeaseRecord], str], *, advice: str = ""
) -> bool:
    """Note what `text` makes of the record as it is; False if there is a note with that key.

    Raises StoreError; ConfigError, with `advice`, if the lease was never held, so that there is nothing to note it
    beside.
    """
    name = config.shared_name
    with closing(open_store(config)) as store, closing(open_notes(config, clock)) as notes:
        for _ in range(_TRIES):
            if notes.get(name, kind, key) is not None:
                return False
            record = store.read(config.name).record
            if record is None:
                raise ConfigError("name", f"{config.name} was never held{advice and f': {advice}'}")
            holder: Any = record.holder  # None, most often
            if notes.add(name, kind, key, text(record), holder=holder, epoch=record.epoch):
                return True
    raise StoreError(store.where, f"{config.name} keeps changing hands: try again")
