"""A lease store in one SQL table, through SQLAlchemy: PostgreSQL, MariaDB, MySQL and SQLite.

SQLAlchemy Core writes the statements and knows the dialects. They are compiled once and run on one dedicated
autocommit connection of the driver, because the execution layer of SQLAlchemy would cost another third of a renewal.
Every request is one statement, and "now" is the database's, read inside that statement.
"""

import contextlib
import functools
import hashlib
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import SQLAlchemyError

from ...config.settings import Config
from ...config.urls import redacted
from ...database.connections import SocketWatchdog, make_engine, refusal
from ...database.dialects import backend_of, code_of, is_mysql, matches
from ...election.record import LeaseRecord, Snapshot, is_directive
from ...errors import ConfigError, RecordUnreadable, SparkLeaseError, StoreError
from . import schema
from .notes import SqlNotes, notes_table
from .own_session import OwnSession
from .statements import observed, overridden, prepared, statements

log = logging.getLogger(__name__)

_NO_RECORD = LeaseRecord("", -1, 0.0, stamp=0)
_NOT_KEPT = {"26000", "42P05"}
"""PostgreSQL: a prepared statement is unknown, or exists already: this session is not ours alone."""

_EPOCH = re.compile("[0-9]{1,18}")
_JITTER = 0.02
"""Seconds by which a wait may be longer, at random: very many contenders that wait for one moment must not ask all at
once. The earliest may ask in vain, and none is late by more."""
_BRIEF = 0.5
"""The longest poll period, in seconds, for which a standby keeps its connection."""


class SqlStore:
    """Implements `LeaseStore`, `Notifies`, `HasSession`. Raises ConfigError at once for a URL that cannot be used."""

    def __init__(self, config: Config) -> None:
        self.where = redacted(config.url)
        self._config = config
        self._cut_off = SocketWatchdog(config.attempt_timeout)
        self._engine = make_engine(config, self._cut_off)
        self._backend = backend_of(self._engine)
        self._is_told = config.notify and self._engine.driver == "psycopg2"
        self._notes_table = notes_table(self._engine, config)
        if config.has_broker_row and not config.holder.isascii():
            raise ConfigError("holder", f"{config.holder!r} does not fit a broker's table: use ASCII")
        self._session = OwnSession(config, self._engine, self._cut_off)
        self._use_table(schema.record_table(self._engine, config))
        self._table_seen = False

    def _use_table(self, table: Table) -> None:
        self._table = table
        ours = statements(self._engine, table, broker_row=self._config.has_broker_record, notifies=self._is_told)
        self._sql = overridden(ours, self._config.statements, self._engine)
        # Prepared for a session that is kept and that is ours alone.
        self._session.use(self._sql, prepared(self._sql) if self._is_told else {})

    def read(self, name: str) -> Snapshot:
        rows = self._rows("read", {"name": self._config.row_of(name)})
        if not rows:
            return Snapshot(None, 0.0)
        if len(rows) > 1:
            twice = f"{self._table.fullname} has {len(rows)} rows NAME={name!r}, and may have had as many masters"
            raise RecordUnreadable(self.where, f"{twice}: end their jobs, delete the rows, run spark-lease init")
        return observed(rows[0], self.where, f"{self._table.fullname} row NAME={name!r}")

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        if old is None:
            self._make_or_refuse_table()  # once in the life of a lease: a table without its unique key has two masters
            if new.holder:  # a role that may insert but not update would be master until its first renewal
                self._rows("take", self._values(name, _NO_RECORD, new))
        if is_directive(old, new):
            what = "directive"
        elif new.holder is None:
            what = "release"
        elif old is None:
            what = "insert"
        else:
            what = "renew" if new.epoch == old.epoch else "take"
        values = self._values(name, old, new)
        if what in ("release", "directive"):
            values["channel"] = self._channel(name)
        rows = self._rows(what, values)
        return new.stamped(rows[0][0], rows[0][1]) if rows else None

    def _values(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> dict[str, Any]:
        values = {
            "name": self._config.row_of(name),
            "holder": new.holder,
            "epoch": new.epoch,
            "duration": round(new.duration * 1000),
            "protection": new.protection,
            "directive": new.directive or None,
        }
        if old is not None:
            values["old_holder"], values["old_epoch"], values["old_time"] = old.holder, old.epoch, old.stamp
            values["old_directive"] = old.directive or None
        return values

    def names(self) -> Sequence[str]:
        """Raises ConfigError as `read` does, even if there is no row to read."""
        found = [name for (name,) in self._rows("names", {})]
        if not found:
            self.read("")
        return found

    @contextlib.contextmanager
    def session(self) -> Iterator[Connection]:
        with self._session.one_request(is_last=not self._config.notify):
            try:
                with self._session.as_connection() as connection:
                    yield connection
            except self._driver_error as error:
                raise self._store_error(error) from error

    @functools.cached_property
    def notes(self) -> SqlNotes:
        return SqlNotes(self._config, self._engine, self.session)

    def await_release(self, name: str, timeout: float, poll: float) -> LeaseRecord | bool:
        timeout += random.random() * min(_JITTER, timeout)
        session = self._session
        if not self._is_told or session.may_be_shared:
            if poll > _BRIEF or not self._config.notify:
                session.drop()
            session.wait(min(timeout, poll))
            return True
        try:
            # A broker does not notify of a release, nor does a holder with another driver, or with notify = false.
            payloads = session.notifications(self._channel(name), min(timeout, poll))
        except (SQLAlchemyError, self._driver_error, OSError, ValueError, AttributeError) as error:
            log.debug("%s: cannot listen: %s", self.where, error)  # closed by another thread, or the server is gone
            session.drop()
            return False
        # Any role that may connect can notify: believe only that it is worth a look.
        return LeaseRecord(None, int(payloads[-1]), 0.0, 0) if payloads and _EPOCH.fullmatch(payloads[-1]) else True

    def _channel(self, name: str) -> str:
        """A channel for each lease, so that no standby is woken for another lease; any name fits."""
        payloads = f"{self._table.fullname}:{self._config.row_of(name)}"
        return f"spark_lease_{hashlib.sha256(payloads.encode()).hexdigest()[:32]}"

    def close(self) -> None:
        self._session.close()

    def init(self) -> Sequence[str]:
        """Make or complete the table; return the statements that were run. Raises ConfigError, StoreError."""
        with self._connected() as connection:
            tables = [schema.as_there(connection, each) for each in self._all_tables()]
            done = [statement for each in tables for statement in schema.complete(connection, each)]
            return [*done, *schema.make(connection, self._notes_table)]

    def init_statements(self) -> Mapping[str, Sequence[str]]:
        """The statements of `init` for a new table; commented out, those for ActiveMQ's. Asks no database."""
        ours = (*schema.OUR_COLUMNS, schema.UNIQUE)
        tables = self._all_tables()
        dialect = self._engine.dialect
        made = [schema.creation(dialect, each) for each in tables]
        added = [*made[:-1], *schema.addition(self._engine, tables[-1], ours)]
        rights = dict.fromkeys(tables, "SELECT, INSERT, UPDATE") | {self._notes_table: "SELECT, INSERT, UPDATE, DELETE"}
        named = dialect.identifier_preparer.format_table
        grants = [f"-- GRANT {each} ON {named(table)} TO …" for table, each in rights.items()]
        return {
            "what is noted beside the leases": [schema.creation(dialect, self._notes_table)],
            "a new table": made,
            "or, on a table that ActiveMQ made": [f"-- {each}" for each in added],
            **({} if self._engine.dialect.name == "sqlite" else {"what the job's role needs": grants}),
        }

    def _all_tables(self) -> list[Table]:
        """The table of the records, and last the table in which rows are locked, or shared with a broker."""
        if self._config.locker == "lease":
            return [self._table]
        return [self._table, schema.locked_table(self._engine, self._config)]

    @property
    def _driver_error(self) -> type[Exception]:
        error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return error

    def _rows(self, what: str, values: Mapping[str, object]) -> list[Any]:
        """Run one statement. A table missing at the first request may be made; one that vanishes later is a loss."""
        try:
            with self._session.one_request(is_last=not (self._config.notify or what in ("read", "names"))):
                if not self._table_seen and is_mysql(self._engine):
                    with self._session.as_connection() as connection:
                        schema.refuse_engine(connection, self._table)
                rows = self._session.ask(what, values)
                self._table_seen |= what != "names"  # `names` needs one column only
                return self._written(what, values) if rows is None else rows
        except (SQLAlchemyError, self._driver_error) as error:
            if what == "insert" and matches(error, self._backend.duplicate):
                return []
            if code_of(error) in _NOT_KEPT:
                self._session.give_up_plans()  # a pooler hands every statement to another session
            if what in self._config.statements and matches(error, self._backend.shape + self._backend.syntax):
                raise ConfigError(f"statements: {what}", str(self._store_error(error))) from error
            if not matches(error, self._backend.shape):
                raise self._store_error(error) from error
            if self._table_seen:
                raise RecordUnreadable(self.where, f"table {self._table.fullname} or its columns are gone") from error
        self._make_or_refuse_table()
        self._table_seen = True
        return self._rows(what, values)

    def _written(self, what: str, values: Mapping[str, Any]) -> list[Any]:
        """The rows that a write returns elsewhere, from the one number that MySQL and MariaDB return."""
        cursor = self._session.cursor
        if cursor.rowcount < 1 or "epoch" not in values:
            return []
        now, epoch = cursor.lastrowid, values["epoch"]
        if what == "release":
            return [(0, epoch)]
        if what == "directive":
            return [(values["old_time"], epoch)]
        return [(now + values["duration"], epoch if what == "renew" else max(epoch, now))]

    def _make_or_refuse_table(self) -> None:
        self._session.drop_if_idle()  # a role may be allowed one connection at a time
        with self._connected() as connection:
            self._use_table(schema.make_or_refuse(connection, self._config, self._table))
            if schema.may_make(self._engine, self._config):
                with contextlib.suppress(SQLAlchemyError):  # reported when a note is written
                    schema.make(connection, self._notes_table)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Connection]:
        """A connection of its own, for rare requests. Raises StoreError, ConfigError."""
        self._cut_off.has_cut = False
        try:
            with self._engine.connect() as connection:
                yield connection
        except (SQLAlchemyError, self._driver_error) as error:
            raise self._store_error(error) from error
        finally:
            self._cut_off.disarm()

    def _store_error(self, error: Exception) -> SparkLeaseError:
        if "file is not a database" in str(error):
            return ConfigError("url", f"{self.where} is a file of another kind: name another")
        if self._cut_off.has_cut:
            waited = f"no answer within {self._config.attempt_timeout:g} s (attempt_timeout): the connection was cut"
            return StoreError(self.where, waited)
        note = "{}"
        if matches(error, self._backend.locked):
            note = f"{self._table.fullname} or a row of it is locked by another transaction: {{}}"
            if self._config.has_broker_row:
                note = (
                    f"a row of {self._table.fullname} is locked by another transaction; an ActiveMQ broker with the "
                    "database locker does that for as long as it is master: {}"
                )
        return refusal(self._engine, self._config, error, note)
