"""The database lock: a row that a session locks with SELECT … FOR UPDATE, in a transaction as long as the session.

It stands beside the lease record and does not replace it. While the session lives no other contender is granted the
lease, whatever a clock or a restored row says. Once the session has ended, no contender is granted it before the record
has run out or was released, because a session can end while its holder works on (an administrator, a proxy, a network).

The row is that of the lease in `table` (or an ActiveMQ broker's, ID 1, whose database locker locks the same row); the
record is in the table `<table>_epoch`, where it survives the session. SQLite locks no rows: there the lock is a file.
"""

import contextlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, insert, literal_column, null, select
from sqlalchemy.exc import SQLAlchemyError

from ...config.settings import Config
from ...config.urls import redacted
from ...database.connections import SocketWatchdog, make_engine, refusal
from ...database.dialects import backend_of, is_mariadb, is_mysql, matches, usable_url
from ...errors import ConfigError
from ..folders.file import FileLock
from . import schema
from .statements import BROKER_ID

_NO_NOWAIT = 'database needs FOR UPDATE NOWAIT, which MySQL has since 8.0: set locker = "lease" there'


class SessionLock:
    """Implements `Lock`. Raises ConfigError for a URL that cannot be used; connects when first asked."""

    def __init__(self, config: Config) -> None:
        self._where, self._config = redacted(config.url), config
        self._cut_off = SocketWatchdog(config.attempt_timeout)
        self._engine = make_engine(config, self._cut_off)
        self._backend = backend_of(self._engine)
        self._table = schema.locked_table(self._engine, config)
        self._session: Connection | None = None

    def try_lock(self) -> bool:
        if self._session is not None and self.is_held():
            return True
        try:
            return self._try_lock()
        except SQLAlchemyError as error:
            raise refusal(self._engine, self._config, error) from error
        finally:
            self._cut_off.disarm()

    def _try_lock(self) -> bool:
        if is_mysql(self._engine):
            with self._engine.connect() as connection:
                schema.refuse_engine(connection, self._table)
        session = self._engine.connect()
        try:
            locked = self._lock(session)
        except SQLAlchemyError as error:
            _drop(session)
            if matches(error, self._backend.locked):
                return False
            if matches(error, self._backend.syntax):
                raise ConfigError("locker", _NO_NOWAIT) from error
            if not matches(error, self._backend.shape):
                raise
            with self._engine.connect() as connection:
                self._table = schema.make_or_refuse(connection, self._config, self._table)
            return self._try_lock()
        if locked:
            self._session = session
        else:
            _drop(session)
        return locked

    def is_held(self) -> bool:
        """Ask in the transaction that locked the row: another session, or another transaction, cannot answer."""
        if self._session is None:
            return False
        try:
            self._cut_off.watch(self._session.connection.driver_connection)
        except SQLAlchemyError as error:  # nothing was asked yet
            raise refusal(self._engine, self._config, error) from error
        try:
            self._session.execute(select(literal_column("1")).where(self._row)).first()
        except SQLAlchemyError:
            # Ended by the server, or cut off because it hangs: either way the lock is gone, or will be in a moment.
            self.unlock()
            return False
        finally:
            self._cut_off.disarm()
        return True

    def close(self) -> None:
        self._cut_off.close()
        self.unlock()

    def unlock(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            _drop(session)

    @property
    def _row(self) -> Any:
        if self._config.has_broker_row:
            return self._table.c.id == BROKER_ID
        return self._table.c.name == self._config.name

    def _lock(self, session: Connection) -> bool:
        session.execution_options(isolation_level="READ COMMITTED")
        columns: list[Any] = [self._table.c.broker_name, self._table.c.time - literal_column(self._backend.now_ms)]
        look = select(*columns).where(self._row).with_for_update(nowait=True)
        for _ in range(2):
            for statement in self._bounds():
                self._cut_off.watch(session.connection.driver_connection)
                session.exec_driver_sql(statement)
            self._cut_off.watch(session.connection.driver_connection)
            row = session.execute(look).first()
            if row is not None:
                holder, expires_in = row
                # Another holder has this very row: a broker, or a contender with another locker.
                return holder is None or expires_in is None or expires_in <= 0
            self._make_row(session)
        return False

    def _make_row(self, session: Connection) -> None:
        first: Any = select(literal_column(str(BROKER_ID)), null())
        if not self._config.has_broker_row:
            key: Any = literal_column(f"coalesce(max(id), {BROKER_ID}) + 1")
            first = select(key, bindparam("lease", self._config.name)).select_from(self._table)
        try:
            session.execute(insert(self._table).from_select(["id", "name"], first))
            session.commit()
        except SQLAlchemyError as error:
            session.rollback()
            if not matches(error, self._backend.duplicate):
                raise

    def _bounds(self) -> list[str]:
        """Settings by which the server ends a session that it no longer hears from. On PostgreSQL for this transaction:
        no other client of a pooler must get a session with them."""
        seconds = math.ceil(self._config.lease_duration)
        if self._engine.dialect.name == "postgresql":
            third = max(1, seconds // 3)
            return [
                f"SET LOCAL idle_in_transaction_session_timeout = {seconds * 1000}",
                f"SET LOCAL tcp_keepalives_idle = {third}",
                f"SET LOCAL tcp_keepalives_interval = {third}",
                "SET LOCAL tcp_keepalives_count = 2",
                # Since PostgreSQL 17: a role may have set it, and this transaction is as long as the job.
                "SELECT pg_catalog.set_config(name, '0', true) FROM pg_catalog.pg_settings "
                "WHERE name = 'transaction_timeout'",
            ]
        bounds = [f"SET SESSION wait_timeout = {seconds}"]
        if is_mariadb(self._engine):
            # A timeout for one kind overrides the general one.
            kinds = ("idle", "idle_readonly", "idle_write")
            bounds += [f"SET SESSION {each}_transaction_timeout = {seconds}" for each in kinds]
        return bounds


def lock_beside_sqlite(config: Config) -> FileLock:
    """A lock on a file beside the database file."""
    return FileLock(replace(config, create_table="true"), Path(f"{usable_url(config).database}.locks"))


def _drop(session: Connection) -> None:
    with contextlib.suppress(SQLAlchemyError):
        session.invalidate()
    with contextlib.suppress(SQLAlchemyError):
        session.close()
