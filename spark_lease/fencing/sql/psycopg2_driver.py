"""Begin and end of a fenced transaction with psycopg2: no more messages than without a fence.

From the first statement of the block on, the driver is in autocommit and begins nothing by itself: BEGIN and the
settings travel with that statement, and check and COMMIT in one message (`commit.py` says why). Left to itself, the
driver would not notice that COMMIT, and would send the next statements in silent autocommit. (Server-side cursors,
`stream_results`, `yield_per`, and large objects need the driver's own BEGIN: use them outside. A cursor of another
class, made by `driver_connection`, is checked only when the block ends.)

The connection (`guarded_connection`) and the driver's `cursors` refuse statements that would end the transaction inside
the block: SQLAlchemy's events would cost every transaction of the engine a fifth of its time.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet, ref

from sqlalchemy import Connection, Engine, Pool, PoolProxiedConnection, event
from sqlalchemy.exc import DBAPIError

from ...database.dialects import code_of
from .cursors import looking, refuse_own, refuse_unlooked, unbegun, unbegun_block
from .guarded_connection import GuardedConnection
from .refusals import IDLE, LOST, NO_BEGIN, OVER, refuse, refuse_autocommit

SIGN = "spark_lease.block"
"""A setting that ends with the transaction: the check does not find it in one that has taken its place."""
# Planned once for a session: without it a small transaction takes 1.33 times a plain one, not 1.0 times.
_PREPARED = "spark_lease_commit_3"
# If this epoch is not the newest, the row's epoch is NULL and is refused: then the COMMIT after it is not reached.
RUN = (
    "INSERT INTO spark_lease_fence_run (name, run, epoch) VALUES "
    "({name}, {run}, (SELECT epoch FROM spark_lease_fence WHERE CAST(name AS text) = {name} AND epoch = {epoch} "
    f"AND pg_catalog.current_setting('{SIGN}', true) = '1' FOR SHARE))"
)
_PREPARE = f"PREPARE {_PREPARED} (text, text, bigint) AS {RUN.format(name='$1', run='$2', epoch='$3')}".encode()
_COMMIT = RUN.format(name="%(name)s", run="%(run)s", epoch="%(epoch)s") + "; COMMIT"
_COMMIT_PREPARED = f"EXECUTE {_PREPARED} (%(name)s, %(run)s, %(epoch)s); COMMIT"
_NO_RUN = "0" * 32
_SET = f"SET LOCAL {{setting}} = %(epoch)s; SET LOCAL application_name = %(application)s; SET LOCAL {SIGN} = 1"
_LEVELS = {1: "READ COMMITTED", 2: "REPEATABLE READ", 3: "SERIALIZABLE", 4: "READ UNCOMMITTED"}
_BEGINS = {level: f"BEGIN ISOLATION LEVEL {name}; ".encode() for level, name in _LEVELS.items()}
_STATEMENTS, _KEPT = "spark_lease_statements", "spark_lease_kept"
_NOT_KEPT = ("26000", "42P05")
"""A prepared statement is unknown, or exists already: this session is not ours alone."""
_shared: WeakSet[Pool] = WeakSet()
"""Pools behind a pooler that hands every transaction to another session."""
_CANCELLED = "57014"


class _Inside(GuardedConnection):
    """Begins the transaction before code gets the driver's own connection."""

    def __init__(self, engine: Engine, block: Psycopg2) -> None:
        self._block = block
        super().__init__(engine)

    def before_it_is_shown(self) -> None:
        self._block.begin()

    def new_cursor(self, pooled: PoolProxiedConnection, *args: Any, **more: Any) -> Any:
        options = dict(zip(("name", "cursor_factory", "scrollable", "withhold"), args, strict=False)) | more
        if isinstance(options.get("cursor_factory"), type):
            options["cursor_factory"] = looking(options["cursor_factory"])
        cursor = super().new_cursor(pooled, **options)
        refuse_unlooked(cursor)
        return cursor

    def roll_back(self, pooled: PoolProxiedConnection) -> None:
        self.is_over = True
        self._block.roll_back()


class _Statements:
    """The SQL for one epoch of a lease; the driver binds its values once for a connection."""

    def __init__(self, cursor: Any, values: dict[str, Any]) -> None:
        self.cursor, self._values, self._encoding = cursor, values, cursor.connection.encoding
        self.settings: bytes = cursor.mogrify(_SET.format(setting=values["setting"]), values)
        commit: bytes = cursor.mogrify(_COMMIT_PREPARED, values | {"run": _NO_RUN})
        self._before, _, self._after = commit.rpartition(_NO_RUN.encode())

    def are_for(self, driver: Any, values: dict[str, Any]) -> bool:
        return values is self._values and driver.encoding == self._encoding

    def commit(self, run: str) -> bytes:
        """`run` is made of hexadecimal digits."""
        return self._before + run.encode() + self._after

    def commit_unprepared(self, run: str) -> bytes:
        return bytes(self.cursor.mogrify(_COMMIT, self._values | {"run": run}))


def _restore(driver: Any, kept: Any) -> None:
    """Restore `driver`, and end its transaction: the pool's own rollback() does nothing in autocommit."""
    _, cursor, level, factory = kept
    if driver.get_transaction_status() != IDLE:
        cursor.execute("ROLLBACK")
    driver.cursor_factory = factory
    driver.autocommit = False
    if level is not None:
        driver.isolation_level = level


def _catch(driver: Any, record: Any) -> None:
    """Restore a connection that returns to the pool from a block whose own restoring was interrupted."""
    kept = record.info.get(_KEPT)
    if kept is None or ((block := kept[0]()) and block.is_inside):  # StaticPool: another thread's block uses it
        return
    del record.info[_KEPT]
    unbegun.pop(kept[1].connection, None)
    try:
        _restore(driver, kept)
    except BaseException as error:  # lost; or an interrupt: it must not be reused as it is now
        record.invalidate()
        if not isinstance(error, Exception):
            raise


class Psycopg2:
    """Does the same as `commit.CommitProtocol`, for psycopg2."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._pooled: Any = None
        self._cursor: Any = None
        self._driver: Any = None
        self._is_heard = self._prepared = False
        self._level: int | None = None
        self._kept: Any = None
        self._statements: Any = None
        self._begin_sql = b""
        self._transaction: Any = None

    def enter(self, engine: Engine, values: dict[str, Any]) -> Connection:
        connection = self._connection = _Inside(engine, self)
        pooled = self._pooled = connection.connection
        driver: Any = pooled.driver_connection
        self._driver = driver
        refuse_autocommit(driver.autocommit)
        if driver.readonly:
            refuse("this engine's transactions are READ ONLY, and a fenced one writes")
        refuse_own(driver)
        info, plain = pooled.info, engine.dialect.loaded_dbapi.extensions
        statements = self._statements = info.get(_STATEMENTS)
        if statements is None or not statements.are_for(driver, values):
            statements = self._statements = info[_STATEMENTS] = _Statements(
                driver.cursor(cursor_factory=plain.cursor), values
            )
            if _catch not in tuple(engine.pool.dispatch.checkin):  # event.contains may answer for a pool that is gone
                event.listen(engine.pool, "checkin", _catch)
        cursor = self._cursor = statements.cursor
        if unbegun_block(cursor.connection):
            refuse(NO_BEGIN)  # the pool has one connection for all blocks
        self._level = driver.isolation_level
        self._begin_sql = _BEGINS.get(self._level, b"BEGIN; ") + statements.settings
        self._prepared = engine.pool not in _shared
        if self._prepared and _PREPARED not in info:
            self._prepare()
        me = unbegun[cursor.connection] = ref(self)
        self._kept = info[_KEPT] = me, cursor, self._level, driver.cursor_factory
        if type(driver) is plain.connection and driver.cursor_factory is None:
            driver.cursor_factory = looking(plain.cursor)
        else:  # a user's own class may make other cursors; a tracing library wraps them
            driver.cursor_factory = looking(driver.cursor().__class__)
            refuse_unlooked(driver.cursor())
        self._is_heard = getattr(engine, "_has_events", True)
        if self._is_heard:  # a listener has the driver's own connection, and may write
            self.begin()
        self._transaction = connection.begin()  # an ORM session inside joins it, and neither begins nor commits one
        connection.is_shut = True
        return connection

    def _prepare(self) -> None:
        """Prepare once in a session, and not in the block's transaction, whose snapshot that would take."""
        try:
            self._send(b"SELECT pg_catalog.pg_backend_pid()")
            self._prepared = self._cursor.fetchone()[0] == self._driver.info.backend_pid
            if self._prepared:
                self._send(_PREPARE)
                self._pooled.info[_PREPARED] = True
            else:  # a pooler has sent a pid of its own: the next transaction may get another session
                _shared.add(self._connection.engine.pool)
        except DBAPIError as error:
            if code_of(error) != "42P05":
                raise
            self._prepared = False
        try:
            self._driver.rollback()
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(b"ROLLBACK", error) from error

    def begin(self) -> None:
        """Begin in a message of its own, unless the first statement has begun."""
        if unbegun_block(self._cursor.connection) is self:
            self._to_autocommit()
            self._send(self._begin_sql)
            del unbegun[self._cursor.connection]

    def begin_with(self, cursor: Any, execute: Any, statement: bytes) -> Any:
        """Begin, and `execute` one `statement` on `cursor`, in one message. Raises the statement's error."""
        self._to_autocommit()
        try:
            return execute(cursor, self._begin_sql + b";\n" + statement)
        except self._connection.dialect.loaded_dbapi.Error as error:
            if self._driver.get_transaction_status() != IDLE or error.pgcode == _CANCELLED:
                raise
        finally:
            if self._driver.get_transaction_status() != IDLE:
                unbegun.pop(cursor.connection, None)
        # A syntax error fails before anything runs. A plain transaction would exist and have failed: do the same.
        self.begin()
        return execute(cursor, statement)

    def _to_autocommit(self) -> None:
        refuse_own(self._driver)
        if self._level is not None:
            self._driver.isolation_level = None  # else leaving autocommit takes a message
        self._driver.autocommit = True

    @property
    def is_inside(self) -> bool:
        return bool(self._connection.is_shut)

    @property
    def is_lost(self) -> bool:
        return self._driver is not None and bool(self._driver.closed)

    def leave(self) -> None:
        if self._driver.closed or not self._is_mine():
            refuse(LOST)
        self.begin()
        if self._driver.get_transaction_status() == IDLE or not self._transaction.is_active:
            refuse(OVER)
        self._connection.is_shut = False

    def commit(self, run: str) -> None:
        if self._is_heard:
            self._connection.commit()  # notifies listeners; the driver's own commit() does nothing in autocommit
        self._send(self._statements.commit(run) if self._prepared else self._statements.commit_unprepared(run))

    def roll_back(self) -> None:
        if self._driver.get_transaction_status() != IDLE:
            self._send(b"ROLLBACK")

    def _is_mine(self) -> bool:
        """False if the connection went back to the pool without SQLAlchemy's knowledge: other code may have it."""
        return self._pooled.dbapi_connection is self._driver

    def close(self) -> None:
        if self._connection is None:
            return
        if self._cursor is not None and unbegun_block(self._cursor.connection) is self:
            del unbegun[self._cursor.connection]
        self._connection.is_shut = False
        try:
            self._give_back()
        except BaseException as error:  # lost; or an interrupt: the pool would hand on an open transaction
            if not self._connection.closed:
                self._connection.invalidate()
            if not isinstance(error, self._connection.dialect.loaded_dbapi.Error):
                raise
        finally:
            self._connection.close()

    def _give_back(self) -> None:
        """Restore the connection before SQLAlchemy gives it back: the pool's listeners find it unchanged."""
        if self.is_lost and not self._connection.closed:
            self._connection.invalidate()
        elif self._kept is not None and self._is_mine():
            _restore(self._driver, self._kept)
            self._pooled.info.pop(_KEPT, None)

    def _send(self, statement: bytes) -> None:
        """Send without SQLAlchemy, which would cost half as much as the message; raises SQLAlchemy's errors."""
        try:
            self._cursor.execute(statement)
        except self._connection.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(statement, error) from error

    def _wrapped(self, statement: bytes, error: Any) -> Exception:
        connection = self._connection
        lost = connection.dialect.is_disconnect(error, self._driver, self._cursor)
        base = connection.dialect.loaded_dbapi.Error
        text = statement.decode(errors="replace")
        if lost:
            connection.invalidate(error)
        if code_of(error) in _NOT_KEPT:
            _shared.add(connection.engine.pool)
        wrapped: Exception = DBAPIError.instance(text, None, error, base, connection_invalidated=lost)
        return wrapped
