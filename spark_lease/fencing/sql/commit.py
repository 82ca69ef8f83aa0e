"""Begin and end of a fenced transaction, in each database's own way; check and COMMIT are one step.

The check locks the fence's row in share mode: a claim waits for the transaction to end, and a transaction with an older
snapshot is refused instead of reading the old epoch. If the driver can send several statements as one message, check
and COMMIT travel together: the client cannot be frozen between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Engine

from ...database.dialects import is_mariadb
from .guarded_connection import GuardedConnection
from .psycopg2_driver import RUN, SIGN, Psycopg2
from .refusals import refuse, refuse_autocommit, refuse_ended, watch
from .session import application_of, setting_of


class NotNewest(Exception):
    """The fence has another epoch than this hold, or none: nothing was committed."""


def ends_of(engine: Engine) -> CommitProtocol | Psycopg2:
    """The commit protocol of a database and its driver, for one transaction. Call it after a first connection."""
    if engine.dialect.name == "postgresql":
        return Psycopg2() if engine.driver == "psycopg2" else _Postgres()
    if engine.dialect.name == "sqlite":
        return _Sqlite()
    return _MariaDb() if is_mariadb(engine) else _MySql()


@lru_cache(maxsize=64)
def values_of(name: str, epoch: int) -> dict[str, Any]:
    return {"name": name, "epoch": epoch, "setting": setting_of(name), "application": application_of(name, epoch)}


_RUN = "INSERT INTO spark_lease_fence_run (name, run, epoch) VALUES (%(name)s, %(run)s, %(epoch)s)"
_MINE = "FROM spark_lease_fence WHERE name = %(name)s AND epoch = %(epoch)s"


class CommitProtocol(ABC):
    """Begins and ends one transaction, with any driver. SQLAlchemy's events show it the statements in between."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._values: dict[str, Any] = {}

    def enter(self, engine: Engine, values: dict[str, Any]) -> Connection:
        """A connection that is in a transaction from its first statement on at the latest, and refuses to end it."""
        connection = self._connection = GuardedConnection(engine)
        self._values = values
        self._begin(connection, values)
        if not connection.in_transaction():
            connection.begin()  # so that an ORM session inside joins it, and neither begins nor commits one
        watch(connection)
        connection.is_shut = True
        return connection

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost inside the block."""
        return self._connection is not None and bool(self._connection.closed)

    def leave(self) -> None:
        """Leave the block. Raises ConfigError if the transaction has ended inside it."""
        refuse_ended(self._connection)
        self._connection.is_shut = False

    def commit(self, run: str) -> None:
        """Write the row of the run and commit, if this epoch is still the newest. Raises DBAPIError, NotNewest."""
        self._commit(self._connection, self._values | {"run": run})

    def close(self) -> None:
        """Roll back what was not committed, and give the connection back to the pool."""
        if self._connection is None:
            return
        self._connection.is_shut = False
        try:
            self._close(self._connection)
        finally:
            self._connection.close()

    @abstractmethod
    def _begin(self, connection: Connection, values: dict[str, Any]) -> None: ...

    @abstractmethod
    def _commit(self, connection: Connection, values: dict[str, Any]) -> None: ...

    def _close(self, connection: Connection) -> None:
        _roll_back(connection)


class _Postgres(CommitProtocol):
    """Check, then COMMIT, with any driver. If this epoch is not the newest, the run's epoch is NULL and is refused."""

    _BEGIN = (
        "SELECT pg_catalog.set_config(%(setting)s, CAST(%(epoch)s AS text), true), "
        f"pg_catalog.set_config('application_name', %(application)s, true), pg_catalog.set_config('{SIGN}', '1', true)"
    )
    # Casts, because a driver that binds on the server sends no types.
    _RUN = RUN.format(name="CAST(%(name)s AS text)", run="CAST(%(run)s AS text)", epoch="CAST(%(epoch)s AS bigint)")

    def _begin(self, connection: Connection, values: dict[str, Any]) -> None:
        refuse_autocommit(getattr(connection.connection.driver_connection, "autocommit", False))
        connection.exec_driver_sql(self._BEGIN, dict(values))

    def _commit(self, connection: Connection, values: dict[str, Any]) -> None:
        connection.exec_driver_sql(self._RUN, values)
        connection.commit()


_BLOCK = "spark_lease_block"
_LEAVE_SAVEPOINT = f"RELEASE SAVEPOINT {_BLOCK}"
"""Fails in any transaction but the block's own. A deadlock, or a COMMIT hidden in a procedure, ends that one; later
statements would be committed without the earlier ones."""
NO_SAVEPOINT = "1305"


_IDLE = 3
"""Seconds after which MySQL ends a session that is frozen between check and COMMIT while it locks the fence's row."""


class _MySql(CommitProtocol):
    """Check and COMMIT are two messages: a master that is frozen in between would keep the next one from claiming."""

    _BOUND = f"SET @spark_lease_wait = @@SESSION.wait_timeout, SESSION wait_timeout = {_IDLE}"
    _UNBOUND = "SET SESSION wait_timeout = @spark_lease_wait"
    _RUN_IF_MINE = (
        f"INSERT INTO spark_lease_fence_run (name, run, epoch) SELECT name, %(run)s, epoch {_MINE} LOCK IN SHARE MODE"
    )
    _committed = _is_bounded = False

    def _begin(self, connection: Connection, values: dict[str, Any]) -> None:
        driver: Any = connection.connection.driver_connection
        is_on = driver.get_autocommit() if hasattr(driver, "get_autocommit") else getattr(driver, "autocommit", False)
        if not callable(is_on) and is_on:  # the driver may be wrong: MySQL reports it where its own default is 0
            refuse_autocommit(bool(connection.exec_driver_sql("SELECT @@autocommit").scalar()))
        connection.exec_driver_sql(f"SAVEPOINT {_BLOCK}")

    def _commit(self, connection: Connection, values: dict[str, Any]) -> None:
        self._is_bounded = True
        connection.exec_driver_sql(self._BOUND)
        connection.exec_driver_sql(_LEAVE_SAVEPOINT)
        if not connection.exec_driver_sql(self._RUN_IF_MINE, values).rowcount:
            raise NotNewest
        connection.commit()
        self._committed = True

    def _close(self, connection: Connection) -> None:
        if not self._committed:
            _roll_back(connection)
        if not self._is_bounded or connection.invalidated or connection.closed:
            return
        try:
            with closing(connection.connection.cursor()) as cursor:
                cursor.execute(self._UNBOUND)
        except connection.dialect.loaded_dbapi.Error:  # the COMMIT stands
            connection.invalidate()


REFUSED_BY_THE_BLOCK = "1644"


class _MariaDb(_MySql):
    _AT_ONCE = (
        f"BEGIN NOT ATOMIC DECLARE mine INT; {_LEAVE_SAVEPOINT}; {_RUN}; "
        f"SELECT count(*) INTO mine {_MINE} LOCK IN SHARE MODE; "
        "IF mine = 0 OR @@autocommit THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'spark_lease: another epoch was claimed'; END IF; "
        "COMMIT; END"
    )

    def _commit(self, connection: Connection, values: dict[str, Any]) -> None:
        connection.exec_driver_sql(self._AT_ONCE, values)
        self._committed = True


_LEGACY = -1
"""`sqlite3.LEGACY_TRANSACTION_CONTROL`, of Python 3.12."""


class _Sqlite(CommitProtocol):
    """The only writer of the file from its first statement on, so that the check stays true until the end."""

    _MINE = "SELECT 1 FROM spark_lease_fence WHERE name = ? AND epoch = ?"
    _driver: Any = None
    _found: Any = None

    def _begin(self, connection: Connection, values: dict[str, Any]) -> None:
        driver: Any = connection.connection.driver_connection
        refuse_autocommit(driver.isolation_level is None)
        if getattr(driver, "autocommit", _LEGACY) != _LEGACY:
            refuse("sqlite3's `autocommit` begins and ends transactions: leave it as it is")
        self._driver, self._found = driver, driver.isolation_level
        driver.isolation_level = None  # Python's own BEGIN comes too late
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._check(connection, values)

    def _commit(self, connection: Connection, values: dict[str, Any]) -> None:
        self._check(connection, values)  # again: a cursor of the driver's may have begun another transaction
        connection.commit()

    def _check(self, connection: Connection, values: dict[str, Any]) -> None:
        if connection.exec_driver_sql(self._MINE, (values["name"], values["epoch"])).first() is None:
            raise NotNewest

    def _close(self, connection: Connection) -> None:
        if self._driver is None:
            return
        try:
            self._driver.rollback()  # the driver's: the block may have given the connection back
        except connection.dialect.loaded_dbapi.Error:
            if not connection.closed:
                connection.invalidate()
        finally:
            self._driver.isolation_level = self._found


def _roll_back(connection: Connection) -> None:
    """Roll back with the driver: SQLAlchemy treats a refused commit() as the end, and leaves the transaction open."""
    if connection.invalidated or connection.closed:
        return
    driver: Any = connection.connection.driver_connection
    if driver is None:
        return  # it was given back to the pool, which has rolled it back
    try:
        driver.rollback()
    except connection.dialect.loaded_dbapi.Error:
        connection.invalidate()
