"""The two ends of a fenced transaction with psycopg2: no more messages than without a fence.

From the first statement of the block on the driver is in autocommit and begins nothing by itself: BEGIN and the
settings travel with that statement, and check and COMMIT in one message, so that a client cannot be frozen between
them. Left to itself the driver would not notice that COMMIT, and send what comes next in silent autocommit. (Cursors
that the server keeps, `stream_results`, `yield_per`, need its own BEGIN: read with them outside. A cursor of another
class, which is asked for, is looked at only when the block ends.)

What would end the transaction inside the block is refused by the connection and by the driver's cursors themselves:
SQLAlchemy's events would cost every transaction of the engine a fifth of its time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, PoolProxiedConnection, RootTransaction, TwoPhaseTransaction
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigError
from ..lockers.sql_backends import code_of
from .sql_refusals import IDLE, LOST, NO_BEGIN, NO_CLOSE, NO_COMMIT, NO_ROLLBACK, OVER, refuse, refuse_end

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
_ONE = re.compile(rb"\s*(?:INSERT|UPDATE|DELETE|SELECT|WITH|MERGE)\b[^;]*+;?\s*\Z", re.I)
"""Surely one statement, and none that ends a transaction: where none is open behind BEGIN and this, nothing was run."""
_unbegun: dict[Any, Psycopg2] = {}
"""The driver's connections of blocks that have sent nothing yet, and are not in autocommit. What goes past the cursors
of the block by then, from a connection that was kept from before it, is refused if it has not ended its transaction."""
_shared: WeakSet[Engine] = WeakSet()
"""Engines behind a pooler that hands every transaction to another session."""
_CANCELLED = "57014"
_READY = 1
"""Of psycopg2, which is imported by those who have it: has begun no transaction."""


class _Inside(Connection):
    """The connection of a block: it neither ends its transaction, nor begins another, nor goes to another session."""

    def __init__(self, engine: Engine) -> None:
        self._begin_now: Callable[[], None] | None = None
        """Set inside the block."""
        super().__init__(engine, _allow_revalidate=False)

    def enter(self, begin_now: Callable[[], None]) -> RootTransaction:
        # An ORM session inside joins it, and begins and commits none.
        transaction = super().begin()
        self._begin_now = begin_now
        return transaction

    @property
    def connection(self) -> PoolProxiedConnection:
        """What is asked for by those who want the driver's own connection: they find it in its transaction."""
        if self._begin_now:
            self._begin_now()
        return super().connection

    def begin(self) -> RootTransaction:
        self._refuse_begin()
        return super().begin()

    def begin_twophase(self, xid: Any = None) -> TwoPhaseTransaction:
        self._refuse_begin()
        return super().begin_twophase(xid)

    def _refuse_begin(self) -> None:
        if self._begin_now:
            refuse(NO_BEGIN if self.in_transaction() else OVER)

    def commit(self) -> None:
        refuse(NO_COMMIT) if self._begin_now else super().commit()

    def rollback(self) -> None:
        refuse(NO_ROLLBACK) if self._begin_now else super().rollback()

    def close(self) -> None:
        refuse(NO_CLOSE) if self._begin_now else super().close()

    def leave(self) -> None:
        self._begin_now = None
        self.close()


@lru_cache(maxsize=16)
def _looking(base: Any) -> Any:
    """`base`, a class of psycopg2's cursors, that refuses what would end the transaction or comes after its end."""
    methods = ("execute", "executemany", "callproc", "copy_expert", "copy_from", "copy_to")
    guarded = {each: _guarded(getattr(base, each), each == "execute" and _is_plain(base)) for each in methods}
    return type(base.__name__, (base,), {"__slots__": (), **guarded})


def _is_plain(base: Any) -> bool:
    """Its execute and mogrify are psycopg2's own: another's execute may run more than what it is given."""
    owners = (next(c for c in base.__mro__ if each in vars(c)) for each in ("execute", "mogrify"))
    return all(owner.__module__.startswith("psycopg2.") for owner in owners)


def _guarded(method: Any, goes_along: bool) -> Any:
    """BEGIN may go along with what a method is given to execute.

    The driver's own commit and rollback do nothing while it is in autocommit. What it begins by itself, in `with` or
    out of autocommit, they would end: it is refused with what it begins with.
    """

    def guarded(cursor: Any, *args: Any, **more: Any) -> Any:
        connection = cursor.connection
        block = _unbegun.get(connection)
        if block is None and connection.get_transaction_status() == IDLE:
            refuse(OVER)
        if block is not None and goes_along and not (more or cursor.name):
            statement = cursor.mogrify(*args)
            if _ONE.match(statement):
                result = block.begin_with(cursor, method, statement)
                _refuse_own(connection)
                return result
        refuse_end(_text(cursor, args[0] if args else more.get("query", more.get("sql"))))
        if block is not None:
            block.begin()
        result = method(cursor, *args, **more)
        _refuse_own(connection)
        return result

    return guarded


def _refuse_own(driver: Any) -> None:
    if driver.status != _READY:
        refuse("the driver has a transaction of its own: neither `with` nor autocommit inside, and none from before")


def _text(cursor: Any, query: Any) -> str:
    if isinstance(query, str):
        return query
    if isinstance(query, bytes):
        return query.decode(errors="replace")
    return str(query.as_string(cursor)) if hasattr(query, "as_string") else ""  # of psycopg2.sql, or a file


class _Words:
    """What is sent for one epoch of a lease; bound to its values by the driver, once for a connection."""

    def __init__(self, cursor: Any, values: dict[str, Any]) -> None:
        self._values, self._encoding = values, cursor.connection.encoding
        self.settings: bytes = cursor.mogrify(_SET.format(setting=values["setting"]), values)
        commit: bytes = cursor.mogrify(_COMMIT_PREPARED, values | {"run": _NO_RUN})
        self._before, _, self._after = commit.rpartition(_NO_RUN.encode())

    def are_for(self, driver: Any, values: dict[str, Any]) -> bool:
        return values is self._values and driver.encoding == self._encoding

    def commit(self, run: str) -> bytes:
        """`run` is made of hexadecimal digits."""
        return self._before + run.encode() + self._after

    def commit_unprepared(self, cursor: Any, run: str) -> bytes:
        return bytes(cursor.mogrify(_COMMIT, self._values | {"run": run}))


class Psycopg2:
    """Implements `sql_commit.Ends`."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._pooled: Any = None
        self._cursor: Any = None
        self._driver: Any = None
        self._level: int | None = None
        self._factory: Any = None
        self._prepared = False
        self._words: Any = None
        self._begin_words = b""
        self._transaction: Any = None

    def enter(self, engine: Engine, values: dict[str, Any]) -> Connection:
        connection = self._connection = _Inside(engine)
        pooled = self._pooled = connection.connection
        driver: Any = pooled.driver_connection
        self._driver = driver
        if driver.autocommit:
            raise ConfigError("fenced_sql", AUTOCOMMIT)
        cursor = driver.cursor()
        if cursor.connection in _unbegun:
            refuse(NO_BEGIN)  # the pool has one connection for all
        self._level, self._factory, self._cursor = driver.isolation_level, driver.cursor_factory, cursor
        info = pooled.info
        self._words = info.get(_WORDS)
        if self._words is None or not self._words.are_for(driver, values):
            self._words = info[_WORDS] = _Words(self._cursor, values)
        self._begin_words = _BEGINS.get(self._level, b"BEGIN; ") + self._words.settings
        _unbegun[self._cursor.connection] = self
        self._prepared = engine not in _shared
        if self._prepared and _PREPARED not in info:
            self._prepare()
        # The class that it says it has: what traces a driver wraps its cursors.
        driver.cursor_factory = _looking(self._cursor.__class__)
        if getattr(engine, "_has_events", True):  # what listens has the driver's own connection, and may write
            self.begin()
        self._transaction = connection.enter(self.begin)
        return connection

    def _prepare(self) -> None:
        """Beside the first transaction of a session."""
        try:
            self.begin(_PREPARE)
            self._pooled.info[_PREPARED] = True
        except DBAPIError as error:
            if code_of(error) != "42P05":
                raise
            self._prepared = False
            self._send(b"ROLLBACK")
            self.begin()

    def begin(self, also: bytes = b"") -> None:
        """Alone, unless it has been done with the first statement."""
        if self._cursor.connection in _unbegun:
            self._to_autocommit()
            self._send(self._begin_words + also)
            del _unbegun[self._cursor.connection]

    def begin_with(self, cursor: Any, execute: Any, statement: bytes) -> Any:
        """Begin, and `execute` one `statement` on `cursor`, in one message. Raises what the statement does."""
        self._to_autocommit()
        try:
            return execute(cursor, self._begin_words + b";\n" + statement)
        except self._connection.dialect.loaded_dbapi.Error as error:
            if self._driver.get_transaction_status() != IDLE or error.pgcode == _CANCELLED:
                raise
        finally:
            if self._driver.get_transaction_status() != IDLE:
                _unbegun.pop(cursor.connection, None)
        # What is no SQL fails before anything is run. A plain transaction would be there, and failed: so is this.
        self.begin()
        return execute(cursor, statement)

    def _to_autocommit(self) -> None:
        _refuse_own(self._driver)
        if self._level is not None:
            self._driver.isolation_level = None  # else the way out of autocommit is a message
        self._driver.autocommit = True

    @property
    def is_lost(self) -> bool:
        return self._driver is not None and bool(self._driver.closed)

    def leave(self) -> None:
        if self._driver.closed or not self._is_mine():
            refuse(LOST)
        self.begin()
        if self._driver.get_transaction_status() == IDLE or not self._transaction.is_active:
            refuse(OVER)

    def commit(self, run: str) -> None:
        self._send(self._words.commit(run) if self._prepared else self._words.commit_unprepared(self._cursor, run))

    def _is_mine(self) -> bool:
        """False if the connection was given back to the pool behind SQLAlchemy's back: another may have it."""
        return self._pooled.dbapi_connection is self._driver

    def close(self) -> None:
        if self._connection is None:
            return
        try:
            self._close()
        except BaseException:  # an interrupt: the pool would hand on an open transaction
            if not self._connection.closed:
                self._connection.invalidate()
            raise
        finally:
            self._connection.leave()

    def _close(self) -> None:
        if self._cursor is None:
            return
        _unbegun.pop(self._cursor.connection, None)
        if self._driver.closed:
            return
        if not self._is_mine():
            self._driver.close()
            return
        try:
            if self._driver.get_transaction_status() != IDLE:
                self._cursor.execute("ROLLBACK")
            self._driver.cursor_factory = self._factory
            self._driver.autocommit = False
            if self._level is not None:
                self._driver.isolation_level = self._level
        except self._connection.dialect.loaded_dbapi.Error:
            self._connection.invalidate()

    def _send(self, statement: bytes) -> None:
        """Past SQLAlchemy, whose way costs half as much as the message; its errors are SQLAlchemy's all the same."""
        try:
            self._cursor.execute(statement)
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(statement, error) from error

    def _wrapped(self, statement: bytes, error: Any) -> Exception:
        connection = self._connection
        lost = connection.dialect.is_disconnect(error, self._driver, self._cursor)
        base = connection.dialect.loaded_dbapi.Error
        words = statement.decode(errors="replace")
        if lost:
            connection.invalidate(error)
        if code_of(error) in _NOT_KEPT:
            _shared.add(connection.engine)
        wrapped: Exception = DBAPIError.instance(words, None, error, base, connection_invalidated=lost)
        return wrapped
