"""Notes beside leases in a SQL database: one table, `<table>_notes`, a row for each."""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    bindparam,
    delete,
    insert,
    literal,
    literal_column,
    or_,
    select,
)
from sqlalchemy.exc import SQLAlchemyError

from ...config.settings import Config
from ...config.urls import redacted
from ...database.connections import SHARED, SocketWatchdog, make_engine, notes_error
from ...database.dialects import backend_of, matches, shared_bounds
from ...errors import ConfigError
from . import schema
from .statements import BROKER_ID
from .words import Words


class SqlNotes:
    """Implements `Notes`. Holds no connection between its calls. Raises ConfigError for a URL that cannot be used."""

    def __init__(
        self,
        config: Config,
        engine: Engine | None = None,
        session: Callable[[], AbstractContextManager[Connection]] | None = None,
    ) -> None:
        """`session`: used instead of a connection for each request. It is a session of `engine`."""
        self._config, self.where = config, redacted(config.url)
        self._cut_off = SocketWatchdog(config.attempt_timeout)
        self._engine = engine or make_engine(config, self._cut_off)
        self._session = session or self._engine.connect
        self._backend = backend_of(self._engine)
        self._leases = schema.record_table(self._engine, config)
        self._table = notes_table(self._engine, config)

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        mine = {"holder": holder, "epoch": epoch}
        added = self._run(lambda: self._insertion(name, kind, key, text), mine, adds=True)
        if added is None:
            return self.get(name, kind, key)
        return text if added.rowcount else None

    def _insertion(self, name: str, kind: str, key: str, text: str) -> Any:
        lease = self._leases.c
        row = lease.id == BROKER_ID if self._config.has_broker_record else lease.name == self._config.row_of(name)
        mine = row & self._backend.equal(lease.broker_name, bindparam("holder")) & (lease.epoch == bindparam("epoch"))
        values = self._values(name, kind, key, text)
        # The row is locked: a contender that takes the lease now waits and finds the note, or we find its epoch.
        seen = select(*values.values()).select_from(self._leases).where(mine).with_for_update(read=True)
        return insert(self._table).from_select(list(values), seen)

    def _values(self, name: str, kind: str, key: str, text: str) -> dict[str, Any]:
        return {
            "lease": literal(name, String),
            "kind": literal(kind, String),
            "digest": literal(_digest(key), String),
            "item": literal(key, String),
            "content": literal(text, String),
            "noted": literal_column(self._backend.now_ms),
        }

    def append(self, name: str, kind: str, key: str, text: str) -> bool:
        row = self._values(name, kind, key, text)
        return self._run(lambda: insert(self._table).values(row), adds=True) is not None

    def get(self, name: str, kind: str, key: str) -> str | None:
        there = self._run(lambda: select(self._table.c.content).where(self._is(name, [kind], key))).first()
        return str(there[0]) if there else None

    def all(self, name: str, kind: str) -> dict[str, str]:
        return self.every(name, [kind])[kind]

    def every(self, name: str, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        def wanted() -> Any:
            note = self._table.c
            return select(note.kind, note.item, note.content).where(self._is(name, kinds)).order_by(note.noted)

        found = {kind: dict[str, str]() for kind in kinds}
        for kind, key, text in self._run(wanted):
            found[kind][str(key)] = str(text)
        return found

    def remove(self, name: str, kind: str, key: str) -> bool:
        return int(self._run(lambda: delete(self._table).where(self._is(name, [kind], key))).rowcount) > 0

    def prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        before = literal_column(self._backend.now_ms, BigInteger) - bindparam("age", round(age * 1000), BigInteger)
        self._run(lambda: delete(self._table).where(self._is(name, kinds), self._table.c.noted < before))

    def close(self) -> None:
        self._cut_off.close()

    def _is(self, name: str, kinds: Sequence[str], key: str | None = None) -> Any:
        note = self._table.c
        those = (note.lease == name) & or_(*(note.kind == kind for kind in kinds))
        return those if key is None else those & (note.digest == _digest(key))

    def _run(self, statement: Callable[[], Any], values: dict[str, object] | None = None, *, adds: bool = False) -> Any:
        """The result of a statement; None if it `adds` a key that exists already. Raises StoreError and ConfigError."""
        try:
            return self._run_twice(statement, values)
        except SQLAlchemyError as error:
            if adds and matches(error, self._backend.duplicate):
                return None
            if matches(error, self._backend.shape):
                raise ConfigError("table", f"{self._table.fullname} does not exist: run spark-lease init") from error
            raise notes_error(self._engine, self._config, error) from error

    def _run_twice(self, statement: Callable[[], Any], values: dict[str, object] | None) -> Any:
        """Run a statement. If the table is missing, look for it in other letters, or make it, and run again."""
        try:
            return self._run_once(statement(), values)
        except SQLAlchemyError as error:
            if not matches(error, self._backend.shape):
                raise
            if not self._respell():
                if not schema.may_make(self._engine, self._config):
                    raise
                with self._session() as connection:
                    schema.make(connection, self._table)
        return self._run_once(statement(), values)

    def _respell(self) -> bool:
        """True if the database spells a table in other letters than we did, as `schema.as_there` finds out."""
        before = (self._leases.name, self._table.name)
        try:
            with self._session() as connection:
                self._leases = schema.as_there(connection, self._leases)
                self._table = schema.as_there(connection, self._table)
        finally:
            self._cut_off.disarm()
        return before != (self._leases.name, self._table.name)

    def _run_once(self, statement: Any, values: dict[str, object] | None) -> Any:
        try:
            with self._session() as connection:
                is_shared = connection.info.get(SHARED, False)
                for each in ("BEGIN", shared_bounds(self._config)) if is_shared else ():
                    connection.exec_driver_sql(each).close()
                result = connection.execute(statement, values or {})
                found = result.freeze()() if result.returns_rows else result
                if is_shared:
                    connection.exec_driver_sql("COMMIT")
                return found
        finally:
            self._cut_off.disarm()


def notes_table(engine: Engine, config: Config) -> Table:
    """`digest` replaces `item` in the key: a path may be longer than a key may be. `noted`: ms since 1970."""
    folder, _, name = schema.spelled(engine, config.notes_table, broker_row=False).rpartition(".")
    text = schema.NAME
    return Table(
        name,
        MetaData(),
        Column("lease", text, nullable=False),
        Column("kind", Words(16), nullable=False),
        Column("digest", Words(64), nullable=False),
        Column("item", Text, nullable=False),
        Column("content", Text, nullable=False),
        Column("noted", BigInteger, nullable=False),
        PrimaryKeyConstraint("lease", "kind", "digest", name=f"{name}_key"),
        schema=folder or None,
    )


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
