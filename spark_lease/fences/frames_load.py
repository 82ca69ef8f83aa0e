"""Rows of Arrow into a staging table: by executors in sessions of their own, or by the driver in its transaction.

An executor asks nothing about the lease: what it stages is in no table of the user's, and the driver's fenced
transaction decides whether it ever will be. Each try of a task has a number of its own, and commits its rows before it
tells of them: so a try that failed has left none or rows that nobody asks for, and so has a twin that came in second.
"""

from __future__ import annotations

import importlib.util
import io
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow
import pyarrow.compute
import pyarrow.csv
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

TASK = "task"
"""The column of a staging table that says which try of which task wrote the row."""
RESULT = "task bigint, rows bigint"
_AHEAD = 3
"""Batches that may wait for the server."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """A staging table, and the way to it. Travels with the tasks, and nowhere else: it knows the password."""

    dialect: str
    driver: str
    schema: str
    table: str
    name: str
    """Schema and table as SQL has to spell them."""
    words: Mapping[str, Any] = field(repr=False)
    """The driver's arguments for a connection."""
    by_adbc: bool = False
    """Where an executor has it too."""


def loader(place: Place) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """A function for mapInArrow: stages the batches of one task, gives its number and how many rows it were."""

    def load(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext  # what the driver imports of this needs none

        number = TaskContext.get().taskAttemptId()
        first = next(batches, None)
        if first is None:
            return
        counted = Counted(_numbered(_chain(first, batches), number))
        try:
            _load(place, counted)
        except Exception as error:  # any driver's; with the password in it, Spark would write that to its logs
            raise RuntimeError(_without(place.words.get("password"), f"{type(error).__name__}: {error}")) from None
        yield pyarrow.RecordBatch.from_pydict({TASK: [number], "rows": [counted.count]})

    return load


def _chain(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _numbered(batches: Iterator[Any], number: int) -> Iterator[Any]:
    for batch in batches:
        numbers = pyarrow.repeat(pyarrow.scalar(number, pyarrow.int64()), batch.num_rows)
        yield pyarrow.RecordBatch.from_arrays([*batch.columns, numbers], [*batch.schema.names, TASK])


class Counted:
    """Batches that go by, and how many rows they had."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches, self.count = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.count += batch.num_rows
            yield batch


def _load(place: Place, batches: Counted) -> None:
    if place.by_adbc and has_adbc():
        _by_adbc(place, iter(batches))
        return
    engine = create_engine(f"{place.dialect}+{place.driver}://", connect_args=dict(place.words), poolclass=NullPool)
    with closing(engine.raw_connection()) as connection, closing(connection.cursor()) as cursor:
        if place.dialect == "postgresql":
            copy(cursor, place.name, iter(batches))
        else:
            for batch in batches:
                cursor.executemany(inserting(place.name, batch, "%s"), values(batch))
        connection.commit()


def has_adbc() -> bool:
    return importlib.util.find_spec("adbc_driver_postgresql") is not None


def _by_adbc(place: Place, batches: Iterator[Any]) -> None:
    import adbc_driver_postgresql.dbapi as adbc  # an extra

    batches = _ahead(batches, lambda batch: batch)
    first = next(batches)
    reader = pyarrow.RecordBatchReader.from_batches(first.schema, _chain(first, batches))
    with adbc.connect(_conninfo(place.words)) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest(place.table, reader, mode="append", db_schema_name=place.schema)
        connection.commit()


def _conninfo(words: Mapping[str, Any]) -> str:
    """PostgreSQL documentation, "Keyword/Value Connection Strings"."""
    escaped = {key: str(value).replace("\\", "\\\\").replace("'", "\\'") for key, value in words.items()}
    return " ".join(f"{key}='{value}'" for key, value in escaped.items())


def copy(cursor: Any, table: str, batches: Iterator[Any], names: Sequence[str] = ()) -> int:
    """COPY with psycopg2 or psycopg (which has a context for it); how many rows the server took.

    `names` are the columns as SQL has to spell them, if they are not called as in the batches.
    """
    rows, statement = 0, "COPY {} ({}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')"
    for columns, text in _ahead(batches, lambda batch: (batch.schema.names, _csv(batch))):
        words = statement.format(table, ", ".join(names or columns))
        if hasattr(cursor, "copy_expert"):
            cursor.copy_expert(words, io.BytesIO(text))
        else:
            with cursor.copy(words) as sink:
                sink.write(text)
        rows += cursor.rowcount
    return rows


def _ahead(batches: Iterator[Any], made: Callable[[Any], T]) -> Iterator[T]:
    """What is `made` of each: the next batches are waited for, and made something of, while the server is busy."""

    def make() -> T | None:
        batch = next(batches, None)
        return None if batch is None else made(batch)

    pool = ThreadPoolExecutor(1)
    try:
        coming = deque(pool.submit(make) for _ in range(_AHEAD))
        while (found := coming.popleft().result()) is not None:
            coming.append(pool.submit(make))
            yield found
    finally:  # whoever fails waits for no batch that is still being computed
        pool.shutdown(wait=False, cancel_futures=True)


def _csv(batch: Any) -> bytes:
    """An empty text is quoted, NULL is nothing at all. Instants are written in UTC: an offset may have seconds."""
    columns = [_in_utc(each) for each in batch.columns]
    written = io.BytesIO()
    plain = pyarrow.RecordBatch.from_arrays(columns, batch.schema.names)
    pyarrow.csv.write_csv(plain, written, pyarrow.csv.WriteOptions(include_header=False))
    return written.getvalue()


def _in_utc(column: Any) -> Any:
    if not (pyarrow.types.is_timestamp(column.type) and column.type.tz):
        return column
    # Without a zone, then with a Z: Arrow looks a zone up for each value, which is most of a frame's time.
    naive = column.cast(pyarrow.timestamp(column.type.unit)).cast(pyarrow.string())
    return pyarrow.compute.binary_join_element_wise(naive, "Z", "")


def inserting(table: str, batch: Any, mark: str) -> str:
    names = batch.schema.names
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join([mark] * len(names))})"


def values(batch: Any) -> Sequence[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _without(secret: object, text: str) -> str:
    return text.replace(str(secret), "***") if secret else text
