"""Makes, completes and checks the table of the leases: ActiveMQ's three columns, then ours.

ActiveMQ's statements name their columns, so columns that are nullable or have a default do not disturb a broker.
Our columns are added to a table that a broker made, never the other way round, and no row is ever deleted.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Inspector,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.types import UserDefinedType

from ...config.settings import MAX_NAME, Config
from ...database.dialects import BACKENDS, ENGINE_OF, is_mysql
from ...election.directive import LONGEST
from ...errors import ConfigError
from .words import Words

ACTIVEMQ_COLUMNS = ("id", "time", "broker_name")
OUR_COLUMNS = ("name", "epoch", "duration", "protection", "directive")
UNIQUE = "name (unique)"
_EARLIER = {"wish": "directive"}
"""Earlier names of our columns. `init` renames them, so that their values are kept."""


# Two names are two leases, whatever the server's collation says. A broker's own column stays as it was made.
def _any_words(length: int) -> Any:
    return Words(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")


NAME = _any_words(MAX_NAME)


class _Spelled(UserDefinedType[Any]):
    """A type that the configuration names."""

    cache_ok = True

    def __init__(self, words: str) -> None:
        self.words = words

    def get_col_spec(self, **_: Any) -> str:
        return self.words


def lease_table(dotted: str, types: Mapping[str, str]) -> Table:
    """`time` and `duration` are in milliseconds: the expiry since 1970 by the database's clock, the holder's duration.

    `types` are the types in the configuration, by column. Raises ConfigError for a text that is no type.
    """
    for column, words in types.items():
        if column not in (*ACTIVEMQ_COLUMNS, *OUR_COLUMNS):
            known = ", ".join((*ACTIVEMQ_COLUMNS, *OUR_COLUMNS))
            raise ConfigError("column_types", f"there is no column {column}: {known}")
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_ ]*(\([0-9, ]+\))?[A-Za-z0-9_ ]*", words):
            raise ConfigError("column_types", f"{words!r} is no type for {column}, like NUMERIC(20)")

    def of(column: str, ours: Any) -> Any:
        return _Spelled(types[column]) if column in types else ours

    schema, _, name = dotted.rpartition(".")
    return Table(
        name,
        MetaData(),
        Column("id", of("id", BigInteger), primary_key=True, autoincrement=False),
        Column("time", of("time", BigInteger)),
        Column("broker_name", of("broker_name", NAME)),
        Column("name", of("name", NAME)),
        Column("epoch", of("epoch", BigInteger), nullable=False, server_default=text("0")),
        Column("duration", of("duration", BigInteger)),
        Column("protection", of("protection", Words(16))),
        Column("directive", of("directive", _any_words(LONGEST))),
        UniqueConstraint("name", name=f"{name}_name"),
        schema=schema or None,
    )


def record_table(engine: Engine, config: Config) -> Table:
    """The table of the records."""
    name = spelled(engine, config.record_table, broker_row=config.has_broker_record)
    return lease_table(name, config.column_types)


def locked_table(engine: Engine, config: Config) -> Table:
    """The table in which a session locks a row for life, or which is shared with a broker."""
    return lease_table(spelled(engine, config.table, broker_row=config.has_broker_row), config.column_types)


def spelled(engine: Engine | Connection, dotted: str, *, broker_row: bool) -> str:
    """The name as the database spells it for a broker, which does not quote it."""
    if engine.dialect.name == "postgresql":
        return dotted.lower()
    return dotted.upper() if broker_row and is_mysql(engine) else dotted


def as_there(connection: Connection, table: Table) -> Table:
    """The table, or the existing one whose name differs from it in upper and lower case alone."""
    with _looking(connection, table) as (seen, schema):
        names = seen.get_table_names(schema=schema)
    twins = [each for each in names if each.lower() == table.name.lower()]
    if len(twins) != 1 or twins[0] == table.name:
        return table
    return table.to_metadata(MetaData(), name=twins[0])


def qualified(connection: Connection, table: Table) -> str:
    """The name of the table with the schema, or database, in which it is found, or would be made."""
    with _looking(connection, table) as (_, schema):
        if schema is None and is_mysql(connection):
            schema = connection.exec_driver_sql("SELECT database()").scalar()
    return f"{schema}.{table.name}" if schema else table.name


def creation(dialect: Dialect, table: Table) -> str:
    """The statement that makes the table if it is missing."""
    made = str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
    return " ".join(made.split()) + BACKENDS[dialect.name].table_options


def addition(engine: Engine | Connection, table: Table, missing: Sequence[str]) -> Sequence[str]:
    """The statements that add our `missing` columns and key to a table that ActiveMQ made."""
    quote = engine.dialect.identifier_preparer.format_table(table)
    columns = [CreateColumn(table.c[key]) for key in missing if key != UNIQUE]
    added = [f"ALTER TABLE {quote} ADD COLUMN {each.compile(dialect=engine.dialect)}" for each in columns]
    if UNIQUE in missing:
        index = CreateIndex(Index(f"{table.name}_name", table.c.name, unique=True))
        added.append(str(index.compile(dialect=engine.dialect)))
    return [" ".join(each.split()) for each in added]


def missing_columns(connection: Connection, table: Table) -> Sequence[str] | None:
    """The columns that the table in the database lacks, and `UNIQUE`; None if there is no such table."""
    with _looking(connection, table) as (seen, schema):
        where: dict[str, Any] = {"table_name": table.name, "schema": schema}
        try:
            there = {column["name"].lower() for column in seen.get_columns(**where)}
            unique: list[Any] = [each["column_names"] for each in seen.get_unique_constraints(**where)]
            unique += [each["column_names"] for each in _unique_indexes(connection, seen, **where)]
        except NoSuchTableError:
            return None
        if table.name in seen.get_view_names(schema=schema):
            raise a_view(table)
        _refuse_unlogged(connection, table, schema)
    if not there:  # SQLite: it was made between two queries of the inspection
        return None
    # Without the unique key two contenders insert a row each, and both are master.
    there |= {UNIQUE} if ["name"] in [[str(column).lower() for column in key] for key in unique] else set()
    return [each for each in (*ACTIVEMQ_COLUMNS, *OUR_COLUMNS, UNIQUE) if each not in there]


def _unique_indexes(connection: Connection, seen: Inspector, **where: Any) -> list[Any]:
    """Unique indexes, except partial ones and those whose creation failed: they allow a second row of a name."""
    partial, invalid = f"{connection.dialect.name}_where", set[Any]()
    if connection.dialect.name == "postgresql":
        invalid = set(connection.exec_driver_sql(_INVALID, {"schema": where["schema"]}).scalars())
    found = [each for each in seen.get_indexes(**where) if each["unique"] and each["name"] not in invalid]
    return [each for each in found if partial not in each.get("dialect_options", ())]


def _refuse_unlogged(connection: Connection, table: Table, schema: str | None) -> None:
    if connection.dialect.name != "postgresql":
        return
    if connection.exec_driver_sql(_UNLOGGED, {"schema": schema, "name": table.name}).first():
        how = f"ALTER TABLE {connection.dialect.identifier_preparer.format_table(table)} SET LOGGED"
        raise ConfigError("table", f"{table.fullname} is unlogged, and empty after a crash: run {how}")


_INVALID = """\
SELECT c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid WHERE n.nspname = %(schema)s AND NOT i.indisvalid"""
_UNLOGGED = """\
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND c.relpersistence = 'u'"""


def refuse_foreign(table: Table, missing: Sequence[str]) -> None:
    """Raise ConfigError if the table is neither ours nor ActiveMQ's."""
    foreign = [column for column in missing if column in ACTIVEMQ_COLUMNS]
    if foreign:
        raise ConfigError(
            "table",
            f"{table.fullname} is another program's table: it has no column {', '.join(foreign)}. Name another",
        )


def a_view(table: Table) -> ConfigError:
    """The error for a view: what it selects runs with the rights of the role that reads it."""
    return ConfigError("table", f"{table.fullname} is a view, and a lease needs a table")


def refuse_engine(connection: Connection, table: Table) -> None:
    """Raise ConfigError if MySQL or MariaDB keeps the table in an engine that locks no rows, and loses some in a crash,
    or if it is a view.

    Does nothing for a missing table. Raises SQLAlchemyError.
    """
    if not is_mysql(connection):
        return
    found = connection.exec_driver_sql(ENGINE_OF, (table.schema, table.name)).first()
    engine, kind = found or ("", "")
    if "VIEW" in kind.upper():
        raise a_view(table)
    if engine and engine.lower() != "innodb":
        how = f"run ALTER TABLE {table.fullname} ENGINE=InnoDB"
        raise ConfigError("table", f"{table.fullname} is kept by {engine}: {how}")


def complete(connection: Connection, table: Table) -> Sequence[str]:
    """Create the table, or add our columns to ActiveMQ's; return the statements that were run.

    Several processes may run it at once. Raises ConfigError for a foreign table, SQLAlchemyError if the database
    refuses.
    """
    refuse_engine(connection, table)
    missing, statements = missing_columns(connection, table), list[str]()
    if missing is None:
        statements = [creation(connection.dialect, table)]
    elif missing:
        refuse_foreign(table, missing)
        if UNIQUE in missing:
            _refuse_namesake(connection, table)
        renamed = _renamed(connection, table, missing)
        added = addition(connection, table, [each for each in missing if each not in renamed])
        statements = [*renamed.values(), *added]
    _run(connection, statements, lambda: missing_columns(connection, table) == [])
    return statements


def _refuse_namesake(connection: Connection, table: Table) -> None:
    """Raise ConfigError if another index has the name of the one to be made."""
    with _looking(connection, table) as (seen, schema):
        there = [each["name"] for each in seen.get_indexes(table.name, schema=schema)]
    if f"{table.name}_name" in there:
        problem = f"the index {table.name}_name of {table.fullname} lets a name stand twice"
        raise ConfigError("table", f"{problem}: DROP INDEX {table.name}_name, then run spark-lease init")


def _run(connection: Connection, statements: Sequence[str], is_done: Callable[[], bool]) -> None:
    try:
        for statement in statements:
            connection.exec_driver_sql(statement)
    except SQLAlchemyError:
        # IF NOT EXISTS does not exclude another process: the slower one fails on the catalogue's own keys.
        connection.rollback()
        if not is_done():
            raise


def _renamed(connection: Connection, table: Table, missing: Sequence[str]) -> dict[str, str]:
    """For each column of `missing` that exists under its earlier name: the statement that renames it."""
    quote = connection.dialect.identifier_preparer.format_table(table)
    with _looking(connection, table) as (seen, schema):
        there = {column["name"].lower(): column["name"] for column in seen.get_columns(table.name, schema=schema)}
    return {
        ours: f"ALTER TABLE {quote} RENAME COLUMN {there[earlier]} TO {ours}"
        for earlier, ours in _EARLIER.items()
        if ours in missing and earlier in there
    }


def may_make(engine: Engine | Connection, config: Config) -> bool:
    """True if a missing table is made on first use."""
    return config.create_table == "true" or (config.create_table == "auto" and engine.dialect.name == "sqlite")


def make(connection: Connection, table: Table) -> Sequence[str]:
    """Create a table of our own if it is missing; return what was run. Raises SQLAlchemyError if the database refuses,
    ConfigError for a table that a crash empties."""
    if _is_there(connection, table):
        return []
    statements = [creation(connection.dialect, table)]
    _run(connection, statements, lambda: _is_there(connection, table))
    return statements


def _is_there(connection: Connection, table: Table) -> bool:
    with _looking(connection, table) as (seen, schema):
        _refuse_unlogged(connection, table, schema)
        return seen.has_table(table.name, schema=schema)


@contextmanager
def _looking(connection: Connection, table: Table) -> Iterator[tuple[Inspector, str | None]]:
    """SQLAlchemy's inspector, and the schema in which it must look. The connection is in autocommit.

    On PostgreSQL its queries can find no functions and operators but the database's own.
    """
    if connection.dialect.name != "postgresql":
        yield inspect(connection), table.schema
        return
    name = connection.dialect.identifier_preparer.format_table(table)
    schema = table.schema or connection.exec_driver_sql(_SCHEMA, {"name": name}).scalar()
    connection.exec_driver_sql("BEGIN")
    try:
        connection.exec_driver_sql("SET LOCAL search_path = pg_catalog, pg_temp")
        yield inspect(connection), schema
    finally:
        if not connection.invalidated:  # else raise the error that broke it
            connection.exec_driver_sql("ROLLBACK")


_SCHEMA = """\
SELECT coalesce(
    (SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = CAST(pg_catalog.to_regclass(%(name)s) AS oid)),
    pg_catalog.current_schema())"""
"""The schema of the table that this name finds, or else the one in which it would be made."""


def make_or_refuse(connection: Connection, config: Config, table: Table) -> Table:
    """The table as it exists, made if it is missing and `create_table` says so.

    Raises ConfigError for a table that is missing, foreign or lacks our columns, SQLAlchemyError.
    """
    table = as_there(connection, table)
    refuse_engine(connection, table)
    missing = missing_columns(connection, table)
    if missing is None and may_make(connection, config):
        complete(connection, table)
    elif missing is None:
        how = "spark-lease init" + " --locker database" * (config.locker == "database")
        raise ConfigError(
            "table", f"{table.fullname} does not exist: if that is its name, run {how}, or set create_table = true"
        )
    elif missing:
        refuse_foreign(table, missing)
        raise ConfigError("table", f"{table.fullname} lacks {', '.join(missing)}: run spark-lease init")
    return table
