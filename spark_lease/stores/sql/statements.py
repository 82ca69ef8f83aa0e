"""Every statement of the SQL store, compiled once for the dialect, with named parameters; reads a row as a record."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    Engine,
    Table,
    Text,
    bindparam,
    cast,
    func,
    insert,
    literal_column,
    null,
    select,
    text,
    true,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from ...config.settings import BROKER, MAX_NAME
from ...database.dialects import Backend, backend_of
from ...election.record import LeaseRecord, Snapshot
from ...errors import ConfigError, RecordUnreadable

BROKER_ID = 1
"""The only row that an ActiveMQ broker knows."""
_OWN: ColumnElement[int] = literal_column(str(BROKER_ID))
_COLUMNS = 7


def statements(engine: Engine, table: Table, *, broker_row: bool, notifies: bool) -> dict[str, str]:
    """The statements, by what they do. `broker_row`: the lease is row ID 1, else the row with its NAME."""
    backend, column = backend_of(engine), table.c
    row = column.id == _OWN if broker_row else column.name == bindparam("name")
    now: ColumnElement[int] = literal_column(backend.now_ms)
    names = select(column.name).where(column.name.is_not(None)).order_by(column.name)
    if broker_row:
        names = select(literal_column(f"'{BROKER}'")).select_from(table).where(row)
    read = select(
        column.broker_name, column.time, column.epoch, column.duration, now, column.protection, column.directive
    ).where(row)
    writes = _writes(backend, table, row, broker_row=broker_row)
    if backend.returning:
        writes = {what: each.returning(column.time, column.epoch) for what, each in writes.items()}
    if notifies:
        writes |= _notifying(writes)
    found = {"read": read, "names": names, "now": select(now)} | writes
    return {what: str(each.compile(dialect=engine.dialect)) for what, each in found.items()}


def _writes(backend: Backend, table: Table, row: ColumnElement[bool], *, broker_row: bool) -> dict[str, Any]:
    column = table.c
    stands = (
        row
        & (column.epoch == bindparam("old_epoch"))
        & backend.equal(column.broker_name, bindparam("old_holder"))
        & column.time.is_not_distinct_from(bindparam("old_time"))
        & column.directive.is_not_distinct_from(bindparam("old_directive"))
    )
    # Not just one more than the last: a row that was deleted, or restored from a backup, must go on with larger epochs
    # than it ever had. One more if the clock went back.
    bigger = getattr(func, backend.greatest)(bindparam("epoch"), literal_column(backend.now_ms))
    kept: dict[str, Any] = {"epoch": bindparam("epoch"), "duration": bindparam("duration")}
    held = kept | {
        "broker_name": bindparam("holder"),
        "time": literal_column(backend.stamp_ms) + bindparam("duration"),
        "protection": bindparam("protection"),
    }
    freed = kept | {"broker_name": null(), "time": literal_column("0")}
    # Two leases inserted at once may compute one ID: the second gets "no" and asks again.
    key: dict[str, Any] = {"id": literal_column(f"coalesce(max(id), {BROKER_ID}) + 1"), "name": bindparam("name")}
    if broker_row:
        key = {"id": _OWN, "name": null()}
    first: dict[str, Any] = key | held | {"epoch": bigger}
    values = select(*first.values())
    if not broker_row:
        values = values.select_from(table).where(true())
    return {
        "insert": insert(table).from_select(list(first), values),
        "take": update(table).where(stands).values(held | {"epoch": bigger, "directive": null()}),
        "renew": update(table).where(stands).values(held),
        "release": update(table).where(stands).values(freed),
        "directive": update(table).where(stands).values(directive=bindparam("directive")),
    }


def _notifying(writes: Mapping[str, Any]) -> dict[str, Any]:
    """The writes that notify the standbys, in the same transaction: a standby that is woken finds the write."""
    release, directive = writes["release"].cte("freed"), writes["directive"].cte("directed")
    notified = func.pg_catalog.pg_notify(bindparam("channel"), cast(release.c.epoch, Text))
    # If a crash of the server undoes a release, the lease runs out: no need to wait for the disk.
    at_once: ColumnElement[str] = literal_column("pg_catalog.set_config('synchronous_commit', 'off', true)")
    look_again = func.pg_catalog.pg_notify(bindparam("channel"), literal_column("'look again'"))
    return {
        "release": select(release.c.time, release.c.epoch, notified, at_once),
        "directive": select(directive.c.time, directive.c.epoch, look_again),
    }


def overridden(ours: Mapping[str, str], theirs: Mapping[str, str], engine: Engine) -> dict[str, str]:
    """`ours`, replaced by `theirs` where given. Raises ConfigError for one that cannot do the work of ours.

    `theirs` write their values as `:name`. They compare with the current row, so they must use all values of ours.
    """
    found = dict(ours)
    for what, statement in theirs.items():
        if what not in ours:
            raise ConfigError("statements", f"there is none called {what!r}: {', '.join(sorted(ours))}")
        clause = text(statement)
        wanted, given = set(_PLACE.findall(ours[what])), set(clause.compile().params)
        if wanted != given:
            lacks, knows_not = sorted(wanted - given), sorted(given - wanted)
            problem = [f"lacks :{', :'.join(lacks)}"] if lacks else []
            problem += [f"has :{', :'.join(knows_not)}, which there is not"] if knows_not else []
            example = re.sub(r"%\((\w+)\)s", r":\1", ours[what])
            raise ConfigError(f"statements: {what}", f"{' and '.join(problem)}. Ours: {example}")
        if "RETURNING" in ours[what] and "RETURNING" not in statement.upper():
            raise ConfigError(f"statements: {what}", "has to return time and epoch (RETURNING time, epoch)")
        found[what] = str(clause.compile(dialect=engine.dialect))
    return found


_PLACE = re.compile(r"(?:%\(|(?<!:):)(\w+)")
"""A value in a compiled statement: %(name)s or :name."""


@dataclass(frozen=True, slots=True)
class Prepared:
    prepare: str
    execute: str


def prepared(sql: Mapping[str, str]) -> dict[str, Prepared]:
    """The frequent statements, to be planned once for each connection: planning is a fifth of a renewal.

    Each is named after its text, so that a session which a pooler had given to another client cannot run another's.
    """
    found = {}
    for what in ("read", "renew", "take", "release"):
        names, text = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", sql[what]))), sql[what]
        for number, each in enumerate(names, start=1):
            text = text.replace(f"%({each})s", f"${number}")
        name = f"spark_lease_{zlib.crc32(text.encode()):08x}"
        values = f" ({', '.join(f'%({each})s' for each in names)})" if names else ""
        found[what] = Prepared(f"PREPARE {name} AS {text}", f"EXECUTE {name}{values}")
    return found


def observed(row: Sequence[Any], where: str, place: str) -> Snapshot:
    """The row at `place` of the store `where` as a record: holder, time, epoch, duration, now, protection, directive.

    Raises RecordUnreadable for anything that we or ActiveMQ would not have written, ConfigError for other columns.
    """
    if len(row) != _COLUMNS:
        raise ConfigError("statements", f"read gives {len(row)} columns and not the {_COLUMNS} of ours")

    def refuse(column: str, value: object) -> RecordUnreadable:
        return RecordUnreadable(where, f"{place} has {column}={value!r}, which no lease has: correct it by hand")

    # If an administrator chose a NUMERIC column, its value is a Decimal.
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
