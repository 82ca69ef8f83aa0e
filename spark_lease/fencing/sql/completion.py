"""A run key that is completed by a fenced transaction: its row is committed with the data, or neither is.

It is looked for before the transaction, so that nothing is done in vain, and written as its last statement: two masters
cannot both commit it. Beside the lease, where `is_done` looks, it is noted afterwards; if that did not come about, by a
crash, say, the next contender that finds the row here notes it.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, Engine, insert, literal_column
from sqlalchemy.exc import IntegrityError

from ...config.settings import refuse_run_key
from ...database.dialects import backend_of
from ...election.ports import HeldLease
from ...errors import AlreadyDone, SparkLeaseError
from .claim import FenceTable
from .tables import DONE
from .transaction import fenced_sql

log = logging.getLogger(__name__)

Note = Callable[[str, int], None]
"""Notes beside the lease that a key is done, and under which epoch."""


@contextmanager
def completing_sql(lease: HeldLease, engine: Engine, key: str, *, note: Note, retention: float) -> Iterator[Connection]:
    """`fenced_sql`, which completes the run key `key` of the lease as well.

    Raises AlreadyDone if that is done, under whichever epoch: then nothing was written; and what `fenced_sql` raises.
    Keys are remembered for `retention` seconds.
    """
    refuse_run_key("completes", key)
    if lease.wait_certain() == 0:  # enabled = false: nothing is guarded, and nothing noted
        with fenced_sql(lease, engine) as connection:
            yield connection
        return
    fence_table = FenceTable(engine)
    _refuse_done(fence_table, lease, key, note)
    completing = False
    try:
        with fenced_sql(lease, engine) as connection:
            yield connection
            completing = True
            now: Any = literal_column(backend_of(engine).now_ms)
            row = insert(DONE).values(name=lease.name, run_key=key, epoch=lease.epoch, finished=now)
            connection.execute(row, execution_options={"schema_translate_map": None})
    except IntegrityError:
        if completing:
            _refuse_done(fence_table, lease, key, note)
        raise
    _note(lease, key, lease.epoch, note)
    with suppress(Exception):  # whatever it is: what was asked for is committed
        fence_table.forget_done(lease.name, retention)


def _refuse_done(fence_table: FenceTable, lease: HeldLease, key: str, note: Note) -> None:
    epoch = fence_table.done_under(lease.name, key)
    if epoch is not None:
        _note(lease, key, epoch, note)
        raise AlreadyDone(lease.name, key, epoch)


def _note(lease: HeldLease, key: str, epoch: int, note: Note) -> None:
    """The row is what counts: whatever keeps the note from being made, the next one who comes makes it."""
    try:
        note(key, epoch)
    except SparkLeaseError as error:
        log.warning("%s: run key %r is done, and not noted beside the lease: %s", lease.name, key, error)
