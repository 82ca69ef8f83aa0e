"""The two ends of a fenced transaction with psycopg2: as many messages as without a fence.

The driver is put into autocommit and begins nothing by itself: BEGIN travels with the settings, and check and COMMIT in
one message, so that a client cannot be frozen between them. Left to itself the driver would not notice that COMMIT, and
send what comes next in silent autocommit. (Cursors that the server keeps, `stream_results`, need its own BEGIN: read
with them outside.)
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ..errors import ConfigError
from ..lockers.sql_backends import code_of

AUTOCOMMIT = "this engine is in autocommit: there every statement is a transaction"
_PREPARED = "spark_lease_commit_1"
# The row is refused, because NULL, where my epoch is not the newest: then COMMIT behind it is not reached.
_RUN = (
    "INSERT INTO spark_lease_fence_run (name, run, epoch) VALUES "
    "({name}, {run}, (SELECT epoch FROM spark_lease_fence WHERE name = {name} AND epoch = {epoch} FOR SHARE))"
)
_PREPARE = f"PREPARE {_PREPARED} (text, text, bigint) AS {_RUN.format(name='$1', run='$2', epoch='$3')}"
_COMMIT = _RUN.format(name="%(name)s", run="%(run)s", epoch="%(epoch)s") + "; COMMIT"
_COMMIT_PREPARED = f"EXECUTE {_PREPARED} (%(name)s, %(run)s, %(epoch)s); COMMIT"
_SET = "SET LOCAL {setting} = %(epoch)s; SET LOCAL application_name = %(application)s"
_LEVELS = {1: "READ COMMITTED", 2: "REPEATABLE READ", 3: "SERIALIZABLE", 4: "READ UNCOMMITTED"}
_NOT_KEPT = ("26000", "42P05")
"""A prepared statement is unknown, or there already: this session is not ours alone."""
_shared: WeakSet[Engine] = WeakSet()
"""Engines behind a pooler that hands every transaction to another session."""
_IDLE = 0


class Psycopg2:
    """Implements `sql_commit.Ends`."""

    def __init__(self) -> None:
        self._cursor: Any = None
        self._driver: Any = None
        self._level: int | None = None

    def begin(self, connection: Connection, values: dict[str, Any]) -> None:
        driver: Any = connection.connection.driver_connection
        if driver.autocommit:
            raise ConfigError("fenced_sql", AUTOCOMMIT)
        self._level = driver.isolation_level
        begin = f"BEGIN ISOLATION LEVEL {_LEVELS[self._level]}" if self._level in _LEVELS else "BEGIN"
        self._cursor = driver.cursor()
        driver.isolation_level = None  # else the way out of autocommit is a message
        driver.autocommit, self._driver = True, driver
        words = f"{begin}; {_SET.format(setting=values['setting'])}"
        prepares = _PREPARED not in connection.info and connection.engine not in _shared
        try:
            self._send(connection, f"{words}; {_PREPARE}" if prepares else words, values)
        except DBAPIError as error:
            if code_of(error) != "42P05":
                raise
            self._send(connection, "ROLLBACK", {})
            self._send(connection, words, values)
        else:
            connection.info[_PREPARED] = True

    def commit(self, connection: Connection, values: dict[str, Any]) -> None:
        prepared = _PREPARED in connection.info and connection.engine not in _shared
        self._send(connection, _COMMIT_PREPARED if prepared else _COMMIT, values)

    def close(self, connection: Connection) -> None:
        if self._driver is None or self._driver.closed or connection.invalidated:
            return
        try:
            if self._driver.get_transaction_status() != _IDLE:
                self._cursor.execute("ROLLBACK")
            self._driver.autocommit, self._driver.isolation_level = False, self._level
        except connection.dialect.loaded_dbapi.Error:
            connection.invalidate()
        except BaseException:  # an interrupt: the pool would hand on an open transaction
            connection.invalidate()
            raise

    def _send(self, connection: Connection, statement: str, values: dict[str, Any]) -> None:
        """Past SQLAlchemy, whose way costs half as much as the message; its errors are SQLAlchemy's all the same."""
        base = connection.dialect.loaded_dbapi.Error
        try:
            self._cursor.execute(statement, values)
        except base as error:
            lost = connection.dialect.is_disconnect(error, self._driver, self._cursor)
            wrapped = DBAPIError.instance(statement, None, error, base, connection_invalidated=lost)
            if lost:
                connection.invalidate(error)
            if code_of(error) in _NOT_KEPT:
                _shared.add(connection.engine)
            raise wrapped from error
