"""What a row of a lease table says."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from ...config.settings import MAX_NAME
from ...election.record import LeaseRecord, Snapshot
from ...errors import ConfigError, RecordUnreadable

_COLUMNS = 7


def observed(row: Sequence[Any], where: str, place: str) -> Snapshot:
    """The row at `place` of the store `where` as a record: holder, time, epoch, duration, now, protection, directive.

    Raises RecordUnreadable for anything that we or ActiveMQ would not have written, ConfigError for other columns.
    """
    if len(row) != _COLUMNS:
        raise ConfigError("statements", f"read gives {len(row)} columns and not the {_COLUMNS} of ours")

    def refuse(column: str, value: object) -> RecordUnreadable:
        return RecordUnreadable(where, f"{place} has {column}={value!r}, which no lease has: correct it by hand")

    # A NUMERIC column, where an administrator wants one, comes as a Decimal.
    holder, time, epoch, duration, now, protection, directive = (
        int(each) if isinstance(each, Decimal) else each for each in row
    )
    if not (holder is None or (isinstance(holder, str) and 0 < len(holder) <= MAX_NAME)):
        raise refuse("BROKER_NAME", holder)
    if not (isinstance(time, int) and time >= 0) and not (time is None and holder is None):
        raise refuse("TIME", time)
    if not (isinstance(epoch, int) and epoch >= 0):
        raise refuse("EPOCH", epoch)
    if not (duration is None or (isinstance(duration, int) and duration >= 0)):
        raise refuse("DURATION", duration)
    expires_in = (time - now) / 1000 if time is not None else 0.0
    protected = protection if isinstance(protection, str) else ""
    wanted = directive if isinstance(directive, str) else ""
    record = LeaseRecord(holder, epoch, (duration or 0) / 1000, time, protected, wanted)
    return Snapshot(record, expires_in, now / 1000)
