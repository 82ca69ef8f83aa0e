"""Writes a DataFrame into a SQL table: all rows or none, and only while its lease's epoch is the newest.

```
executors   each attempt of a task: its rows into one staging table, COMMIT; then "task 7 wrote 1000 rows"
driver      fenced transaction: do the rows of the successful attempts add up? INSERT … SELECT; check and COMMIT at once
```
Small frames, and all frames for SQLite, need no executors: the driver collects the rows, and stages or writes them in
the transaction itself. `write_sql` makes no table. `columns` and `target` know what differs between databases.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ...database.dialects import is_mysql
from ...election.ports import HeldLease
from ...errors import SparkLeaseError, StagingLost
from ..refusal import fenced
from ..sql.claim import FenceTable
from ..sql.refusals import AUTOCOMMIT
from ..sql.tables import refuse_unknown, where_is
from ..sql.transaction import Completion, claim_once, refuse_done, transaction
from .columns import columns_of, selected
from .load import RESULT, Place, copy, inserting, loader, rows_of, values
from .move import Move, drop_here, empty, here, make_here, move_all, refuse_less, rehearse
from .staging import staging, sweep
from .target import (
    demand_strict,
    quote,
    refusal,
    refuse_cascades,
    refuse_other_keys,
    refuse_safe_updates,
    run,
    target_of,
    wait_briefly,
)

MODES, WAYS = ("append", "overwrite", "upsert"), ("auto", "driver", "executors")
FEW_ROWS = 10_000
FEW_BYTES = 64 << 20
"""Spark's estimate of a frame's size beyond which `write_sql` does not try whether it has few rows."""
_ROWS, _BYTES = (f"spark.sql.execution.arrow.max{each}PerBatch" for each in ("Records", "Bytes"))
_BY_ROWS = {_ROWS: "5000", _BYTES: str(2**31 - 1)}
_OF_PYTHON = re.compile("Python|Pandas|Arrow|RDD")
"""Occurs in the names of Spark's operators that run Python."""
_LOCKS_WITHIN = 10
_OF_ANY_LENGTH = ("array", "binary", "map", "struct", "variant")


Begin = Callable[[], AbstractContextManager[Connection]]
"""Begins the fenced transaction."""


def write_sql(
    lease: HeldLease,
    frame: Any,
    engine: Engine,
    table: str,
    *,
    mode: str,
    keys: Sequence[str],
    through: str,
    completes: Completion | None = None,
) -> int:
    """Implements `Lease.write_sql`."""
    if not hasattr(frame, "selectExpr"):
        raise refusal(f"a {type(frame).__name__} is not a Spark DataFrame: spark.createDataFrame(…) makes one")
    _refuse_arguments(engine, mode, keys, through)
    if epoch := lease.wait_certain():  # 0: enabled = false
        claim_once(lease, engine, epoch)
        if completes:
            refuse_done(lease, engine, completes)
    begin = partial(transaction, lease, engine, completes)
    _refresh(engine)
    move = _plan(frame, engine, table, mode, keys)
    rows = selected(frame, move.columns)
    if engine.dialect.name == "sqlite":  # it has one writer: nothing is computed while others are locked out
        return _from_the_driver(begin, _collected(rows), engine, move)
    sweep(lease, engine, table)
    if through == "auto":
        few = _collected(rows.limit(FEW_ROWS + 1)) if _guess(rows) <= FEW_BYTES else None
        if few is not None and sum(each.num_rows for each in few) <= FEW_ROWS:
            return _from_the_driver(begin, few, engine, move)
    if through == "driver":
        return _from_the_driver(begin, _collected(rows), engine, move)
    _refresh(engine)
    with staging(lease, engine, table, move.columns) as place:
        return _through_executors(lease, begin, rows, engine, move, place)


def _refuse_arguments(engine: Engine, mode: str, keys: Sequence[str], through: str) -> None:
    refuse_unknown(engine)
    if mode not in MODES or through not in WAYS:
        raise refusal(f"mode is one of {', '.join(MODES)}, and through one of {', '.join(WAYS)}")
    if isinstance(keys, str) or (mode == "upsert") != bool(keys):
        raise refusal('keys are for mode="upsert", and it needs them: keys=["day", "carrier"]')
    if engine.dialect.name == "sqlite" and through == "executors":
        raise refusal("SQLite has one writer, which is the driver: leave out `through`")


def _plan(frame: Any, engine: Engine, table: str, mode: str, keys: Sequence[str]) -> Move:
    with engine.connect() as connection:
        if getattr(connection.connection.driver_connection, "autocommit", False) is True:
            raise refusal(AUTOCOMMIT)
        wait_briefly(connection, _LOCKS_WITHIN)
        target = target_of(connection, table)
        columns = columns_of(frame.schema, target, engine.dialect.name)
        written = [each.field.name for each in columns]
        wanted = [target.field_of(each).name for each in keys]
        if absent := [each for each in wanted if each not in written]:
            raise refusal(f"the DataFrame has no column {', '.join(absent)}, which is a key")
        if wanted and is_mysql(engine):
            refuse_other_keys(connection, table, wanted, written)
        if mode == "overwrite":
            refuse_cascades(connection, table, target.name)
            refuse_safe_updates(connection)
        move = Move(target, columns, mode, wanted)
        rehearse(connection, move, table)
        connection.rollback()
    return move


def _guess(rows: Any) -> int:
    """Bytes, as estimated by Spark's optimizer: not reliable, but enough not to compute much in vain."""
    plan = getattr(rows, "_jdf", None)  # Spark Connect has none
    return int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes())) if plan is not None else 0


def _collected(rows: Any) -> list[Any]:
    """All rows, as batches of Arrow."""
    if hasattr(rows, "toArrow"):
        return list(rows.toArrow().to_batches(FEW_ROWS))
    return list(rows._collect_as_arrow())  # Spark 3.5


def _from_the_driver(begin: Begin, batches: Sequence[Any], engine: Engine, move: Move) -> int:
    rows: int = sum(each.num_rows for each in batches)
    _refresh(engine)
    with begin() as connection:
        if move.is_copied():
            demand_strict(connection)
            empty(connection, move)
            names = [quote(engine, each.field.name) for each in move.columns]
            refuse_less(connection, _copy(connection, move.target.name, batches, names), rows)
        else:
            make_here(connection, move.columns)
            _stage(connection, batches)
            move_all(connection, move, f"{here(connection)} WHERE 1 = 1", rows)
            drop_here(connection)
    return rows


def _stage(connection: Connection, batches: Sequence[Any]) -> None:
    if connection.dialect.name == "postgresql":
        _copy(connection, here(connection), batches)
        return
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    for batch in batches:
        connection.exec_driver_sql(inserting(here(connection), batch, mark), values(batch))


def _copy(connection: Connection, table: str, batches: Sequence[Any], names: Sequence[str] = ()) -> int:
    base = connection.dialect.loaded_dbapi.Error
    driver: Any = connection.connection.driver_connection
    try:
        with closing(connection.connection.cursor()) as cursor:
            return copy(cursor, table, iter(batches), names)
    except base as error:  # as SQLAlchemy would raise it, whose errors the fence knows
        lost = connection.dialect.is_disconnect(error, driver, None)
        if lost:
            connection.invalidate(error)
        raise DBAPIError.instance("COPY", None, error, base, connection_invalidated=lost) from error


def _through_executors(lease: HeldLease, begin: Begin, rows: Any, engine: Engine, move: Move, place: Place) -> int:
    try:
        with _batches_by_rows(rows):
            won = rows.mapInArrow(loader(place), RESULT).collect()
    except Exception as error:  # any error of Spark; the cause may be a claim that ended the sessions
        _refuse_older(lease, engine, error)
        raise
    lease.check()
    total, source = sum(each["rows"] for each in won), rows_of(place, [each["number"] for each in won])
    _refresh(engine)
    with begin() as connection:
        if place.mark and not run(connection, f"SELECT 1 FROM {rows_of(place, [place.mark])} LIMIT 1").scalar():
            raise StagingLost(where_is(engine), "the server has crashed since, and staged rows are gone")
        move_all(connection, move, source, total)
    return int(total)


def _refresh(engine: Engine) -> None:
    """Let the pool replace connections that were cut while they were idle and Spark computed."""
    with suppress(Exception), engine.connect() as connection:  # any error: it shows when the next step connects
        connection.exec_driver_sql("SELECT 1")


@contextmanager
def _batches_by_rows(rows: Any) -> Iterator[None]:
    """In the block, Spark's jobs of this thread limit a batch for Python by its rows alone.

    To count bytes, Spark (since 4.1) asks each column again after every row, half of what the JVM does here. The byte
    limit is given up only if no row is long; a text counts as short. The user's own settings take precedence. Other
    Python code in these jobs would use the same limits: then nothing is changed.
    """
    # With Spark Connect there is no thread of the JVM to set them for.
    few = hasattr(rows, "_jdf") and 0 < int(rows.sparkSession.conf.get(_ROWS)) <= FEW_ROWS
    if not few or _may_be_long(rows) or _runs_python(rows):
        yield
        return
    context = rows.sparkSession.sparkContext
    before = {key: context.getLocalProperty(key) for key in _BY_ROWS}
    try:
        for key, value in _BY_ROWS.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        with suppress(Exception):  # Spark was stopped, and its properties are gone: the error in the block says so
            for key, value in before.items():
                context.setLocalProperty(key, value)


def _may_be_long(rows: Any) -> bool:
    return any(each.dataType.typeName() in _OF_ANY_LENGTH for each in rows.schema.fields)


def _runs_python(rows: Any) -> bool:
    """True also if that is unknown: an RDD hides the code that makes it."""
    return bool(_OF_PYTHON.search(rows._jdf.queryExecution().optimizedPlan().toString()))


def _refuse_older(lease: HeldLease, engine: Engine, error: Exception) -> None:
    lease.check()
    try:
        newest = FenceTable(engine).newest(lease.name) if lease.epoch else 0
    except SparkLeaseError:  # not known: Spark's error is raised
        return
    if newest > lease.epoch:
        raise fenced(lease, where_is(engine), newest) from error
