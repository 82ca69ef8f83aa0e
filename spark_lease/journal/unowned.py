"""A note beside a lease by a process that does not hold it."""

from collections.abc import Callable
from contextlib import closing

from ..config.settings import Config
from ..election.record import LeaseRecord
from ..errors import ConfigError
from ..stores.registry import open_notes, open_store


def note_beside(config: Config, kind: str, key: str, text: Callable[[LeaseRecord], str], *, advice: str = "") -> bool:
    """Note what `text` makes of the record as it is; False if there is a note with that key.

    Raises StoreError; ConfigError, with `advice`, if the lease was never held, so that there is nothing to note it
    beside.
    """
    with closing(open_store(config)) as store, closing(open_notes(config)) as notes:
        record = store.read(config.name).record
        if record is None:
            raise ConfigError("name", f"{config.name} was never held{advice and f': {advice}'}")
        return notes.append(config.shared_name, kind, key, text(record))
