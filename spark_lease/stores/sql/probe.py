"""Tests what a SQL store lets this user do, and leaves nothing behind.

It writes in a transaction that is rolled back, under a name that no lease has. In a broker's table it makes no row at
all: a statement that can match no row is refused like any other if a right is missing.
"""

import contextlib
import functools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, delete, false, insert, literal, literal_column, select
from sqlalchemy.exc import SQLAlchemyError

from ...clock import wall_time
from ...config.settings import Config
from ...config.urls import redacted
from ...database.connections import (
    IS_READ_ONLY,
    SHARED,
    WITHOUT_OPTIONS,
    SocketWatchdog,
    database_message,
    make_engine,
)
from ...database.dialects import backend_of, is_mariadb, matches, usable_url
from ...errors import ConfigError, StoreError
from . import schema
from .notes import notes_table
from .statements import overridden, statements

_SAMPLES = 5
# A grantee that is no role is PUBLIC. If nothing was ever granted, the rights of a schema's owner are no grant.
_MAKERS = """
SELECT quote_ident(n.nspname) AS schema, coalesce(quote_ident(r.rolname), 'PUBLIC') AS maker
FROM pg_namespace n CROSS JOIN aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a
LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname::text = ANY (%(path)s::text[]) AND a.privilege_type = 'CREATE' AND (r.oid IS NULL OR NOT (
    r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner') OR r.oid = n.nspowner
    OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())))
ORDER BY 1, 2
"""
_NAMESAKES = """
SELECT n.nspname::text || '.' || c.relname::text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = %(table)s AND n.nspname <> %(schema)s AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
ORDER BY 1
"""


class SqlProbe:
    """Each method connects anew and takes no longer than `attempt_timeout`. Raises StoreError and ConfigError."""

    def __init__(self, config: Config) -> None:
        self.where, self._config = redacted(config.url), config
        self._cut_off = SocketWatchdog(config.attempt_timeout)
        self._engine = make_engine(config, self._cut_off)
        self._broker_row = config.has_broker_record
        self._told = config.notify and self._engine.driver == "psycopg2"

    def close(self) -> None:
        self._cut_off.close()

    def server(self) -> str:
        """The product and its version."""
        with self._connected() as connection:
            dialect: Any = connection.dialect
            product = "mariadb" if is_mariadb(connection) else dialect.name
            version = [each for each in dialect.server_version_info if isinstance(each, int)]
            return f"{product} {'.'.join(map(str, version))}"

    def primary(self) -> str:
        """PostgreSQL: a text that tells this server from every other; empty for a replica."""
        query = "SELECT pg_catalog.pg_postmaster_start_time()::text WHERE NOT pg_catalog.pg_is_in_recovery()"
        with self._connected() as connection:
            return str(connection.exec_driver_sql(query).scalar() or "")

    def forgets(self) -> str:
        """The setting that makes a server forget in a crash what it has confirmed; empty if it keeps that."""
        query = "SELECT name, setting FROM pg_catalog.pg_settings WHERE name = 'fsync'"
        if self._engine.dialect.name != "postgresql":
            names = "'innodb_flush_log_at_trx_commit', 'log_bin', 'sync_binlog'"
            query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
        with self._connected() as connection:
            found = {str(name): str(value) for name, value in connection.exec_driver_sql(query)}
        if found.pop("log_bin", "") != "ON":  # else a crash rolls back what the binary log lacks
            found.pop("sync_binlog", "")
        return next((f"{name} = {value}" for name, value in found.items() if value not in ("on", "1")), "")

    def makers(self) -> list[tuple[str, str]]:
        """PostgreSQL: schemas of the search path, and the roles that may make functions and operators there, quoted.

        This role, superusers and the owner of the database are left out.
        """
        with self._connected(transaction=True) as connection:
            path = connection.exec_driver_sql("SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]").scalar()
            connection.exec_driver_sql("SET LOCAL search_path = pg_catalog, pg_temp")  # else their functions may run
            return [(each.schema, each.maker) for each in connection.exec_driver_sql(_MAKERS, {"path": path})]

    def clock_difference(self) -> tuple[float, float]:
        """Seconds by which this machine's clock is ahead of the store's, and the possible error of that."""
        now: Any = select(literal_column(backend_of(self._engine).now_ms))
        found = []
        with self._connected() as connection:
            for _ in range(_SAMPLES):
                before = wall_time()
                there = connection.execute(now).scalar_one() / 1000
                half = (wall_time() - before) / 2
                found.append((half, before + half - there))
        half, ahead = min(found)
        return ahead, half + 0.001

    def lacking(self) -> dict[str, Sequence[str] | None]:
        """What each table lacks; None if the whole table is missing. Raises ConfigError for a foreign table."""
        found: dict[str, Sequence[str] | None] = {}
        with self._connected() as connection:
            for table in self._lease_tables:
                schema.refuse_engine(connection, table)
                missing = schema.missing_columns(connection, table)
                schema.refuse_foreign(table, missing or ())
                found[schema.qualified(connection, table)] = missing
        return found

    def namesakes(self) -> tuple[str, list[str]]:
        """PostgreSQL: the table of the records, and tables of that name in other schemas; all with their schema."""
        with self._connected() as connection:
            name = schema.qualified(connection, self._lease_tables[0])
            where, _, table = name.rpartition(".")
            found = connection.exec_driver_sql(_NAMESAKES, {"table": table, "schema": where})
            return name, list(found.scalars())

    def notes(self) -> tuple[str, bool]:
        """The table of the notes, and whether it exists."""
        notes = notes_table(self._engine, self._config)
        with self._connected() as connection:
            return notes.fullname, schema.missing_columns(connection, notes) is not None

    def exercise(self) -> None:
        """Take, renew and release a lease, and lock its row. Raises StoreError for a statement that is refused."""
        with self._connected(transaction=True) as connection:
            self._exercise_record(connection)
            self._exercise_row(connection)

    def exercise_notes(self) -> dict[str, str]:
        """Add and remove a note beside a lease; return the message of the database for each right that is missing."""
        row = dict.fromkeys(("lease", "digest", "item", "content"), literal(_name())) | {"kind": literal("doctor")}
        notes = notes_table(self._engine, self._config)
        refused = dict[str, str]()
        for right, statement in {
            "SELECT": select(notes.c.content).where(notes.c.kind == "doctor"),
            "INSERT": insert(notes).values(row | {"noted": 0}),
            "DELETE": delete(notes).where(notes.c.kind == "doctor"),
        }.items():
            try:
                with self._connected(transaction=True) as connection:
                    connection.execute(statement)
            except StoreError as error:
                refused[right] = str(error)
        return refused

    def sharing(self) -> str:
        """Why a session is not ours alone; empty if it is.

        While one connection is in a transaction, another must not get its session, and must keep its own.
        """
        pid = "SELECT pg_backend_pid()"
        with self._connected() as one:
            mine = one.exec_driver_sql(pid).scalar()
            with self._connected(transaction=True) as other:
                if other.exec_driver_sql(pid).scalar() == mine or one.exec_driver_sql(pid).scalar() != mine:
                    return "a pooler gives one session to several connections"
        return ""

    def options(self) -> tuple[bool, bool]:
        """Two booleans: the options of a connection pass (else a pooler may share sessions, and a standby does not
        listen); a connection with PGOPTIONS is accepted, which commands under `run` and `submit` have."""
        with self._connected() as connection:
            return not connection.info.get(SHARED, False), WITHOUT_OPTIONS not in connection.info

    def _exercise_record(self, connection: Connection) -> None:
        table = self._lease_tables[0]
        ours = statements(self._engine, table, broker_row=self._broker_row, notifies=self._told)
        sql = overridden(ours, self._config.statements, self._engine)
        values: dict[str, Any] = {"name": _name(), "holder": "doctor", "epoch": 1, "duration": 1000, "protection": ""}
        values |= {"channel": f"spark_lease_{_name()}", "old_holder": "doctor", "old_epoch": -1, "old_time": 0}
        values |= {"directive": "doctor", "old_directive": None}
        if not self._broker_row:
            connection.exec_driver_sql(sql["insert"], values)
        for what in ("renew", "directive", "release", "take"):
            rows = connection.exec_driver_sql(sql["read"], values).all()
            if not self._broker_row:
                if not rows:
                    raise StoreError(self.where, f"a row of {table.fullname} that was just written cannot be seen")
                row = rows[0]
                values |= {"old_holder": row[0], "old_time": row[1], "old_epoch": row[2], "old_directive": row[-1]}
            done = connection.exec_driver_sql(sql[what], values)
            written = len(done.all()) if done.returns_rows else done.rowcount
            if written != (0 if self._broker_row else 1):
                raise StoreError(self.where, f"{what} wrote {written} rows of {table.fullname} where one stood")

    def _exercise_row(self, connection: Connection) -> None:
        """Exercise the row that a session locks for life, if it does."""
        if self._config.locker == "lease" or self._engine.dialect.name == "sqlite":
            return
        table = self._lease_tables[-1]
        connection.execute(select(table.c.id).where(false()).with_for_update(nowait=True))
        connection.execute(insert(table).from_select(["id"], select(table.c.id).where(false())))

    @functools.cached_property
    def _lease_tables(self) -> list[Table]:
        """The table of the records, then the table in which rows are locked."""
        tables = [schema.record_table(self._engine, self._config)]
        if self._config.locker == "database" and self._engine.dialect.name != "sqlite":
            tables.append(schema.locked_table(self._engine, self._config))
        with self._engine.connect() as connection:
            return [schema.as_there(connection, each) for each in tables]

    @contextlib.contextmanager
    def _connected(self, *, transaction: bool = False) -> Iterator[Connection]:
        """A connection of its own, rolled back at the end."""
        level = "SERIALIZABLE" if self._engine.dialect.name == "sqlite" else "READ COMMITTED"
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(isolation_level=level) if transaction else connection
                connection.rollback()
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            message = database_message(self._engine, error)
            if matches(error, IS_READ_ONLY):
                problem = f"{self.where} is a replica, or read-only: name the primary"
                raise ConfigError("url", f"{problem} ({message})") from error
            raise StoreError(self.where, message) from error
        finally:
            self._cut_off.disarm()


def one_host_each(config: Config) -> dict[str, Config]:
    """A configuration for each host of a PostgreSQL URL, by the name of the host."""
    url = usable_url(config)
    keywords = url.get_dialect()().create_connect_args(url)[1]
    hosts, ports = str(keywords.get("host", "")).split(","), str(keywords.get("port", "")).split(",")
    found = {}
    for host, port in zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=True):
        place = {"host": host, "port": port or "5432"}
        alone = url.difference_update_query(["target_session_attrs"]).update_query_dict(place)
        found[":".join(place.values())] = replace(config, url=alone.render_as_string(hide_password=False))
    return found


def _name() -> str:
    return f"doctor-{secrets.token_hex(8)}"
