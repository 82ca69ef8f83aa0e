"""The two ends of a fenced transaction with psycopg2: as many messages as without a fence.

The driver is put into autocommit and begins nothing by itself: BEGIN travels with the settings, and check and COMMIT in
one message, so that a client cannot be frozen between them. Left to itself the driver would not notice that COMMIT, and
send what comes next in silent autocommit. (Cursors that the server keeps, `stream_results`, `yield_per`, need its own
BEGIN: read with them outside. A cursor of another class, which is asked for, is looked at only when the block ends.)

What would end the transaction inside the block is refused by the connection and by the driver's cursors themselves:
SQLAlchemy's events would cost every transaction of the engine a fifth of its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError, ResourceClosedError

from ..errors import ConfigError
from ..lockers.sql_backends import code_of
from .sql_refusals import IDLE, NO_BEGIN, NO_CLOSE, NO_COMMIT, NO_ROLLBACK, refuse, refuse_end, refuse_lost, refuse_over

AUTOCOMMIT = "this engine is in autocommit: there every statement is a transaction"
_PREPARED = "spark_lease_commit_1"
# The row is refused, because NULL, where my epoch is not the newest: then COMMIT behind it is not reached.
_RUN = (
    "INSERT INTO spark_lease_fence_run (name, run, epoch) VALUES "
    "({name}, {run}, (SELECT epoch FROM spark_lease_fence WHERE name = {name} AND epoch = {epoch} FOR SHARE))"
)
_PREPARE = f"; PREPARE {_PREPARED} (text, text, bigint) AS {_RUN.format(name='$1', run='$2', epoch='$3')}".encode()
_COMMIT = _RUN.format(name="%(name)s", run="%(run)s", epoch="%(epoch)s") + "; COMMIT"
_COMMIT_PREPARED = f"EXECUTE {_PREPARED} (%(name)s, %(run)s, %(epoch)s); COMMIT"
_NO_RUN = "0" * 32
_SET = "SET LOCAL {setting} = %(epoch)s; SET LOCAL application_name = %(application)s"
_LEVELS = {1: "READ COMMITTED", 2: "REPEATABLE READ", 3: "SERIALIZABLE", 4: "READ UNCOMMITTED"}
_BEGINS = {level: f"BEGIN ISOLATION LEVEL {name}; ".encode() for level, name in _LEVELS.items()}
_WORDS = "spark_lease_words"
_NOT_KEPT = ("26000", "42P05")
"""A prepared statement is unknown, or there already: this session is not ours alone."""
_shared: WeakSet[Engine] = WeakSet()
"""Engines behind a pooler that hands every transaction to another session."""
_READY = 1
"""Of psycopg2, which is imported by those who have it: has begun no transaction."""


class _Inside(Connection):
    """The connection of a block: it neither ends its transaction, nor begins another, nor goes to another session."""

    def __init__(self, engine: Engine) -> None:
        self._is_inside = False
        super().__init__(engine, _allow_revalidate=False)

    def enter(self) -> RootTransaction:
        # An ORM session inside joins it, and begins and commits none.
        transaction = self.begin()
        self._is_inside = True
        return transaction

    def begin(self) -> RootTransaction:
        self._refuse_begin()
        return super().begin()

    def begin_twophase(self, xid: Any = None) -> TwoPhaseTransaction:
        self._refuse_begin()
        return super().begin_twophase(xid)

    def _refuse_begin(self) -> None:
        if self._is_inside:
            refuse_over(not self.in_transaction())
            refuse(NO_BEGIN)

    def commit(self) -> None:
        refuse(NO_COMMIT) if self._is_inside else super().commit()

    def rollback(self) -> None:
        refuse(NO_ROLLBACK) if self._is_inside else super().rollback()

    def close(self) -> None:
        refuse(NO_CLOSE) if self._is_inside else super().close()

    def leave(self) -> None:
        self._is_inside = False
        self.close()


@lru_cache(maxsize=16)
def _looking(base: Any) -> Any:
    """`base`, a class of psycopg2's cursors, that refuses what would end the transaction or comes after its end."""
    methods = ("execute", "executemany", "callproc", "copy_expert", "copy_from", "copy_to")
    return type(base.__name__, (base,), {"__slots__": (), **{each: _guarded(getattr(base, each)) for each in methods}})


def _guarded(method: Any) -> Any:
    """The driver's own commit and rollback do nothing while it is in autocommit. What it begins by itself, in `with` or
    out of autocommit, they would end: it is refused with what it begins with."""

    def guarded(cursor: Any, *words: Any, **more: Any) -> Any:
        connection = cursor.connection
        text = _text(cursor, words[0] if words else more.get("query", more.get("sql")))
        refuse_over(connection.get_transaction_status() == IDLE)
        refuse_end(text)
        result = method(cursor, *words, **more)
        if connection.status != _READY:
            refuse("the driver has begun a transaction of its own inside the block: neither `with` nor autocommit")
        return result

    return guarded


def _text(cursor: Any, query: Any) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return str(query.as_string(cursor)) if hasattr(query, "as_string") else ""  # of psycopg2.sql, or a file


class _Words:
    """What is sent for one epoch of a lease; bound to its values by the driver, once for a connection."""

    def __init__(self, cursor: Any, values: dict[str, Any]) -> None:
        self.of = values["name"], values["epoch"], cursor.connection.encoding
        self.settings: bytes = cursor.mogrify(_SET.format(setting=values["setting"]), values)
        commit: bytes = cursor.mogrify(_COMMIT_PREPARED, values | {"run": _NO_RUN})
        self._before, _, self._after = commit.rpartition(_NO_RUN.encode())

    def commit(self, run: str) -> bytes:
        """`run` is made of hexadecimal digits."""
        return self._before + run.encode() + self._after


class Psycopg2:
    """Implements `sql_commit.Ends`."""

    def __init__(self) -> None:
        self._cursor: Any = None
        self._driver: Any = None
        self._level: int | None = None
        self._factory: Any = None
        self._prepared = False
        self._words: Any = None
        self._began: Any = None

    @contextmanager
    def begun(self, engine: Engine, values: dict[str, Any]) -> Iterator[Connection]:
        connection = _Inside(engine)
        try:
            self._begin(connection, values)
            yield connection
        except ResourceClosedError:
            refuse_lost(self._driver is not None and bool(self._driver.closed))
            raise
        finally:
            try:
                self._close(connection)
            except BaseException:  # an interrupt: the pool would hand on an open transaction
                if not connection.closed:
                    connection.invalidate()
                raise
            finally:
                connection.leave()

    def _begin(self, connection: _Inside, values: dict[str, Any]) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.autocommit:
            raise ConfigError("fenced_sql", AUTOCOMMIT)
        self._level, self._factory = driver.isolation_level, driver.cursor_factory
        self._driver, self._cursor, info = driver, driver.cursor(), connection.info
        driver.isolation_level = None  # else the way out of autocommit is a message
        driver.autocommit = True
        self._words = info.get(_WORDS)
        if self._words is None or self._words.of != (values["name"], values["epoch"], driver.encoding):
            self._words = info[_WORDS] = _Words(self._cursor, values)
        self._send_first(connection, _BEGINS.get(self._level, b"BEGIN; ") + self._words.settings)
        self._began = connection.enter()
        # The class that it says it has: what traces a driver wraps its cursors.
        driver.cursor_factory = _looking(self._cursor.__class__)

    def _send_first(self, connection: Connection, words: bytes) -> None:
        self._prepared = connection.engine not in _shared
        if not self._prepared or _PREPARED in connection.info:
            self._send(connection, words)
            return
        try:
            self._send(connection, words + _PREPARE)
            connection.info[_PREPARED] = True
        except DBAPIError as error:
            if code_of(error) != "42P05":
                raise
            self._prepared = False
            self._send(connection, b"ROLLBACK")
            self._send(connection, words)

    def leave(self, connection: Connection) -> None:
        refuse_lost(bool(self._driver.closed) or not self._is_mine(connection))
        refuse_over(self._driver.get_transaction_status() == IDLE or not self._began.is_active)

    def commit(self, connection: Connection, values: dict[str, Any]) -> None:
        if self._prepared:
            self._send(connection, self._words.commit(values["run"]))
        else:
            self._send(connection, self._cursor.mogrify(_COMMIT, values))

    def _is_mine(self, connection: Connection) -> bool:
        """False if the connection was given back to the pool behind SQLAlchemy's back: another may have it."""
        return not connection.closed and connection.connection.dbapi_connection is self._driver

    def _close(self, connection: Connection) -> None:
        if self._driver is None or self._driver.closed:
            return
        if not self._is_mine(connection):
            self._driver.close()
            return
        try:
            if self._driver.get_transaction_status() != IDLE:
                self._cursor.execute("ROLLBACK")
            self._driver.cursor_factory = self._factory
            self._driver.autocommit, self._driver.isolation_level = False, self._level
        except connection.dialect.loaded_dbapi.Error:
            connection.invalidate()

    def _send(self, connection: Connection, statement: bytes) -> None:
        """Past SQLAlchemy, whose way costs half as much as the message; its errors are SQLAlchemy's all the same."""
        base = connection.dialect.loaded_dbapi.Error
        try:
            self._cursor.execute(statement)
        except base as error:
            lost = connection.dialect.is_disconnect(error, self._driver, self._cursor)
            wrapped = DBAPIError.instance(
                statement.decode(errors="replace"), None, error, base, connection_invalidated=lost
            )
            if lost:
                connection.invalidate(error)
            if code_of(error) in _NOT_KEPT:
                _shared.add(connection.engine)
            raise wrapped from error
