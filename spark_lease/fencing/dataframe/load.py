"""Loads Arrow rows into a staging table: executors in sessions of their own, or the driver in its transaction.

An executor does not check the lease: it stages rows in no table of the user's, and the driver's fenced transaction
decides whether they ever get there. Each attempt of a task has a number of its own, and commits its rows before it
reports them. So a failed attempt leaves no rows, or rows that are never read; so does a duplicate that came second.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow
import pyarrow.compute
import pyarrow.csv
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

TASK = "task"
"""The column of a staging table that names the attempt of a task that wrote the row. In PostgreSQL each row knows its
transaction, and needs no column more than the user's table: then it moves there unchanged, in half the time."""
RESULT = "number bigint, rows bigint"
NUMBER = "SELECT pg_catalog.txid_current() & 4294967295"
"""The number of a transaction, as in `xmin` (PostgreSQL documentation, "System Columns")."""
# Of PostgreSQL 17 and later.
_NO_TRANSACTION_TIMEOUT = (
    ", (SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings WHERE name = 'transaction_timeout')"
)
BEGIN_STAGING = f"{NUMBER}{_NO_TRANSACTION_TIMEOUT}" + "".join(
    f", pg_catalog.set_config('{key}', '{value}', true)"
    for key, value in {
        "idle_in_transaction_session_timeout": 0,  # keepalives instead: they notice a machine that is gone
        "tcp_keepalives_idle": 10,
        "tcp_keepalives_interval": 10,
        "tcp_keepalives_count": 3,
        "array_nulls": "on",
    }.items()
)
"""`NUMBER`, for a transaction that may wait for Spark and takes each value unchanged."""
_PATIENT = (
    "SET SESSION sql_mode = concat(@@sql_mode, ',STRICT_TRANS_TABLES'), "
    "wait_timeout = CAST(greatest(@@wait_timeout, 28800) AS UNSIGNED)"
    "/*M!100300 , idle_transaction_timeout = 0, idle_write_transaction_timeout = 0 */"
)
"""MariaDB, MySQL: take each value unchanged, and wait for Spark 8 hours at least. MariaDB runs the comment too."""
_AHEAD, _ENOUGH = 4, 4 << 20
"""Batches that may wait for the server; bytes in a COPY beyond which no further batch is added."""


@dataclass(frozen=True, slots=True)
class Place:
    """A staging table, and how to connect to it. Only the tasks may get it: it contains the password."""

    dialect: str
    driver: str
    name: str
    """Schema and table, quoted for SQL."""
    mark: int
    """The number of the first row, which exists as long as no rows are lost; 0: the table is logged."""
    words: Mapping[str, Any] = field(repr=False)
    """The driver's arguments for a connection."""


def loader(place: Place) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Make a function for mapInArrow that stages the batches of one task, and yields its number and row count."""

    def load(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext  # only a task needs it, not the driver

        first = next(batches, None)
        if first is None:
            return
        rows = 0

        def counted() -> Iterator[Any]:
            nonlocal rows
            for batch in chain([first], batches):
                rows += batch.num_rows
                yield batch

        try:
            number = _load(place, counted(), TaskContext.get().taskAttemptId())
        except Exception as error:  # of any driver; Spark would log the password in it
            raise RuntimeError(_without(place.words.get("password"), f"{type(error).__name__}: {error}")) from None
        yield pyarrow.RecordBatch.from_pydict({"number": [number], "rows": [rows]})

    return load


def rows_of(place: Place, numbers: Sequence[int]) -> str:
    """SQL, to follow FROM, for the rows that the attempts with these numbers have staged."""
    column, cast = ("xmin", "::xid") if place.dialect == "postgresql" else (TASK, "")
    wanted = ", ".join(f"'{each}'{cast}" for each in numbers)
    return f"{place.name} WHERE {column} IN ({wanted or 'NULL'})"


def _numbered(batches: Iterator[Any], number: int) -> Iterator[Any]:
    for batch in batches:
        numbers = pyarrow.repeat(pyarrow.scalar(number, pyarrow.int64()), batch.num_rows)
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, numbers], [*batch.schema.names, TASK])


def _load(place: Place, batches: Iterator[Any], attempt: int) -> int:
    """Commit the rows of one attempt; returns their number."""
    engine = create_engine(f"{place.dialect}+{place.driver}://", connect_args=dict(place.words), poolclass=NullPool)
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        if place.dialect == "postgresql":
            cursor.execute(BEGIN_STAGING)
            ((attempt, *_),) = cursor.fetchall()
            copy(cursor, place.name, batches)
        else:
            cursor.execute(_PATIENT)
            for batch in _numbered(batches, attempt):
                cursor.executemany(inserting(place.name, batch, "%s"), values(batch))
        connection.commit()
    return attempt


def copy(cursor: Any, table: str, batches: Iterator[Any], names: Sequence[str] = ()) -> int:
    """COPY with psycopg2 or psycopg (which has a context for it); returns how many rows the server accepted.

    `names`: the columns, quoted for SQL, if they have other names than in the batches.
    """
    if (first := next(batches, None)) is None:
        return 0
    rows, columns = 0, ", ".join(names or first.schema.names)
    words = f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
    for text in _texts(chain([first], batches)):
        if hasattr(cursor, "copy_expert"):
            cursor.copy_expert(words, io.BytesIO(text))
        else:
            with cursor.copy(words) as sink:
                sink.write(text)
        rows += cursor.rowcount
    return rows


def _texts(batches: Iterator[Any]) -> Iterator[bytes]:
    """Wait for the next batches, and turn them into CSV, while the server is busy.

    All batches that are ready go into one COPY: the server begins few of them, and reports soon what it refuses.
    """
    pool, texts = ThreadPoolExecutor(1), map(_csv, batches)
    try:
        coming = deque(pool.submit(next, texts, None) for _ in range(_AHEAD))
        while (text := coming.popleft().result()) is not None:
            while coming and coming[0].done() and len(text) < _ENOUGH and (more := coming[0].result()) is not None:
                text += more
                coming.popleft()
            coming.extend(pool.submit(next, texts, None) for _ in range(_AHEAD - len(coming)))
            yield text
    finally:  # after a failure, wait for no batch that is still being computed
        pool.shutdown(wait=False, cancel_futures=True)


def _csv(batch: Any) -> bytes:
    """A batch as CSV: an empty text is quoted, NULL is empty. Instants are in UTC: an offset may have seconds."""
    columns = [_in_utc(each) for each in batch.columns]
    written = io.BytesIO()
    plain = pyarrow.RecordBatch.from_arrays(columns, batch.schema.names)
    pyarrow.csv.write_csv(plain, written, pyarrow.csv.WriteOptions(include_header=False))
    return written.getvalue()


def _in_utc(column: Any) -> Any:
    if not (pyarrow.types.is_timestamp(column.type) and column.type.tz):
        return column
    # Without a zone, then with a Z: Arrow looks up a zone for each value, which takes most of a frame's time.
    naive = column.cast(pyarrow.timestamp(column.type.unit)).cast(pyarrow.string())
    return pyarrow.compute.binary_join_element_wise(naive, "Z", "")


def inserting(table: str, batch: Any, mark: str) -> str:
    names = batch.schema.names
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"


def values(batch: Any) -> Sequence[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _without(secret: object, text: str) -> str:
    return text.replace(str(secret), "***") if secret else text
