"""Fenced tables of PostgreSQL: a session without the newest epoch of the table's lease cannot write to them.

A trigger before each statement reads the fence's row in share mode and compares it with the epoch that came with the
session (`session.py`). So it is the database that refuses, whatever program writes: psql, COPY, JDBC, an ORM. A
transaction that is open under an older epoch makes a claim wait, and a claim ends its session (`claim.py`).

A table that is dropped takes its trigger with it. So the fence keeps a list of its tables, and each claim fences again
what has lost it.

What it does not hold back is in docs/reference/fenced.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...database.connections import database_message
from ...database.dialects import backend_of, code_of, matches
from ...errors import ConfigError, FenceUnreachable, SparkLeaseError
from .tables import FENCE, FENCED, tables_of, tables_sql, where_is
from .trigger_owners import function_if_needed
from .trigger_sql import (
    NO_PATH,
    TRIGGER,
    literal,
    note_sql,
    parts,
    quoted,
    readable,
    spelled,
    trigger_sql,
)

log = logging.getLogger(__name__)

_LOOK = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, coalesce(t.tgargs, ''), pg_has_role(c.relowner, 'USAGE')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = '{TRIGGER}' AND NOT t.tgisinternal
WHERE """
# Partitions, and tables that inherit: both are in pg_inherits, and what is below them as well.
_BELOW = """c.oid IN (WITH RECURSIVE below (oid) AS (
    SELECT %(oid)s::int8::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below ON i.inhparent = below.oid
) SELECT oid FROM below)"""
_ABOVE = """c.oid IN (WITH RECURSIVE above (oid) AS (
    SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = %(oid)s::int8::oid
    UNION SELECT i.inhparent FROM pg_inherits i JOIN above ON i.inhrelid = above.oid
) SELECT oid FROM above)"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True)
class FencedTable:
    """A table, and the lease under which it is written. `allow_unleased`: also by who carries no epoch at all.

    `is_lost`: it, or a partition, has no trigger any more, and any session may write to it.
    """

    name: str
    lease: str
    allow_unleased: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    oid: int
    schema: str
    table: str
    kind: str
    arguments: tuple[str, ...]
    owned: bool


def add(engine: Engine, table: str, lease: str, *, allow_unleased: bool = False) -> Sequence[str]:
    """Fence `table`, `schema.table` if need be, with its partitions and the tables that inherit from it; the statements
    that it took, all or none.

    Doing it again is no harm. Raises ConfigError for what cannot be fenced, FenceUnreachable.
    """
    with _transaction(engine) as connection:
        return _add(connection, engine, table, lease, allow_unleased)


def _add(
    connection: Connection, engine: Engine, table: str, lease: str, allow_unleased: bool, *, only_lost: bool = False
) -> Sequence[str]:
    found = _find(connection, engine, table)
    _refuse_below_others(connection, found, table, lease)
    schema = f"{_schema(connection)}."
    wanted = (schema, found.oid, readable(found.schema, found.table))
    statements = [*_missing_tables(connection, schema), *function_if_needed(connection, *wanted)]
    for each in _with_those_below(connection, found):
        which = table if each.oid == found.oid else readable(each.schema, each.table)
        if each.kind == "f":
            raise ConfigError("table", f"{which}, below {table}, is a foreign table: detach it")
        if each.arguments and each.arguments[0] != lease:
            raise ConfigError("table", f"{which} is written under the lease {each.arguments[0]}: drop it there first")
        drop_it, *make_it = trigger_sql(spelled([each.schema, each.table]), schema, lease, allow_unleased)
        if not each.arguments:
            statements += make_it
        elif not only_lost:  # to drop one takes a lock that readers wait for
            statements += [drop_it, *make_it]
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))
    if fenced := _list_of_fenced(connection, "SELECT", "INSERT", "UPDATE"):
        note = note_sql(fenced, (found.schema, found.table), lease, allow_unleased)
        connection.exec_driver_sql(note.replace("%", "%%"))
    function_if_needed(connection, *wanted)  # once more: another may have been quicker to make one
    return statements


def restore(connection: Connection, engine: Engine, lease: str) -> None:
    """Fence again what was dropped and made again since `add`, and partitions that are new. A warning says what was
    done, or what has to be.

    Commits. Raises DBAPIError; done again, it goes on with what is left.
    """
    _forget_path(connection)
    lost = _lost(connection, lease)
    connection.rollback()
    for each in lost:
        _forget_path(connection)
        try:
            _add(connection, engine, each.name, lease, each.allow_unleased, only_lost=True)
            connection.commit()
        except (ConfigError, DBAPIError) as error:
            connection.rollback()
            if isinstance(error, DBAPIError) and not matches(error, backend_of(engine).denied):
                raise
            log.warning("%s: %s has lost its fence: %s", lease, each.name, _as_a_sentence(engine, error))
        else:
            log.warning(
                "%s: %s, or a partition of it, was made without its fence, and older masters could write to it; it is "
                "fenced again",
                *(lease, each.name),
            )


def drop(engine: Engine, table: str) -> Sequence[str]:
    """Let any session write to `table` again, and to what is below it; the statements that it took. Raises ConfigError,
    FenceUnreachable."""
    with _transaction(engine) as connection:
        try:
            one = _find(connection, engine, table)
        except ConfigError:
            *schema, name = parts(table)
            gone = [(each, name) for each in schema or connection.info[_KEPT]]
            if statements := _forget(connection, gone):
                return statements
            raise
        for above in _look(connection, _ABOVE, {"oid": one.oid}):
            if above.arguments and above.arguments[:1] == one.arguments[:1]:
                raise ConfigError("table", f"{table} is fenced with {above.schema}.{above.table}: drop that")
        found = _with_those_below(connection, one)
        names = [spelled([each.schema, each.table]) for each in found if each.arguments]
        statements = [f"DROP TRIGGER {TRIGGER} ON {name}" for name in names]
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
        return [*statements, *_forget(connection, [(each.schema, each.table) for each in found])]


def fenced_tables(engine: Engine, lease: str = "") -> Sequence[FencedTable]:
    """All fenced tables of the database, or those of one lease. Raises FenceUnreachable."""
    with _transaction(engine) as connection:
        found = _look(connection, "t.tgname IS NOT NULL", {})
        lost = _lost(connection, lease)
    tables = {each.name: each for each in lost}
    for each in found:
        name = readable(each.schema, each.table)
        one = FencedTable(name, each.arguments[0], each.arguments[2:3] == ("allow unleased",))
        if lease in ("", one.lease):
            tables.setdefault(name, one)
    return [tables[name] for name in sorted(tables)]


_LOST = """
SELECT n.nspname, c.relname, f.name, f.allow_unleased FROM {fenced} f
JOIN pg_namespace n ON n.nspname = f.schema_name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = f.table_name
WHERE %(lease)s IN ('', f.name) AND EXISTS (
    WITH RECURSIVE below (oid) AS (
        SELECT c.oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below ON i.inhparent = below.oid
    ) SELECT FROM below WHERE NOT EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = below.oid AND t.tgname = 'spark_lease' AND NOT t.tgisinternal))
ORDER BY 1, 2
"""


# With none of what runs the code of its owner.
_MAY_USE = """
SELECT bool_and(has_table_privilege(c.oid, may)) FROM unnest(%(rights)s) AS may, pg_class c
WHERE c.oid = to_regclass(%(name)s) AND c.relkind = 'r' AND NOT (c.relrowsecurity OR c.relhasrules OR c.relhastriggers)
"""


def _lost(connection: Connection, lease: str) -> list[FencedTable]:
    """Those of one lease, or of all, that are there without their trigger, or have a partition without."""
    if not (fenced := _list_of_fenced(connection, "SELECT")):
        return []
    rows = connection.exec_driver_sql(_LOST.format(fenced=fenced), {"lease": lease}).all()
    return [FencedTable(readable(schema, table), of, allows, is_lost=True) for schema, table, of, allows in rows]


def _forget(connection: Connection, tables: Sequence[tuple[str, str]]) -> list[str]:
    """The statement that took them off the list; none if they were not there."""
    if not tables or not (fenced := _list_of_fenced(connection, "SELECT", "DELETE")):
        return []
    wanted = ", ".join(f"({literal(schema)}, {literal(table)})" for schema, table in tables)
    statement = f"DELETE FROM {fenced} WHERE (schema_name, table_name) IN ({wanted})"
    return [statement] if connection.exec_driver_sql(statement.replace("%", "%%")).rowcount else []


def _list_of_fenced(connection: Connection, *rights: str) -> str:
    """The table with the list, if it is there, and this role may; "" else."""
    name = f"{_schema(connection)}.{FENCED.name}"
    may = connection.exec_driver_sql(_MAY_USE, {"name": name, "rights": list(rights)}).scalar()
    if may is False:
        log.warning(
            "a fenced table that is dropped and made again is not fenced again: GRANT %s ON %s TO this role",
            *(", ".join(rights), name),
        )
    return name if may else ""


def _find(connection: Connection, engine: Engine, table: str) -> _Found:
    # to_regclass takes quotes as SQL does, and gives no name to what is no table's.
    which, names = "c.oid = to_regclass(%(name)s)", parts(table)
    name = spelled(names)
    places = [name] if len(names) > 1 else [f"{schema}.{name}" for schema in _path(connection)]
    found = next(filter(None, (_look(connection, which, {"name": each}) for each in places)), [])
    if not found:
        raise ConfigError("table", f"there is no {table} in {where_is(engine)}")
    if (kind := found[0].kind) not in "rp":
        raise ConfigError("table", f"{table} is {_KINDS.get(kind, 'no table')}: fence the tables behind it")
    if not found[0].owned:
        raise ConfigError(
            "table", f"this role does not own {table}: give its owner what `spark-lease fence add --print-sql` prints"
        )
    return found[0]


def _refuse_below_others(connection: Connection, found: _Found, table: str, lease: str) -> None:
    """What is written through a table above it, rows of its own among them, runs no statement trigger of this one."""
    for above in _look(connection, _ABOVE, {"oid": found.oid}):
        name = f"{above.schema}.{above.table}"
        if above.kind == "p":
            if not _look(connection, _ABOVE, {"oid": above.oid}):
                raise ConfigError("table", f"{table} is a partition: fence its root {name}")
        elif above.arguments[:1] != (lease,):
            raise ConfigError("table", f"{table} inherits from {name}, through which its rows are written: fence that")


def _with_those_below(connection: Connection, found: _Found) -> list[_Found]:
    return _look(connection, _BELOW, {"oid": found.oid})


def _look(connection: Connection, which: str, values: dict[str, object]) -> list[_Found]:
    rows = connection.exec_driver_sql(f"{_LOOK}{which} ORDER BY 2, 3", values).all()
    return [
        _Found(oid, schema, table, kind, _arguments(stored), owned) for oid, schema, table, kind, stored, owned in rows
    ]


def _arguments(stored: bytes | memoryview | str) -> tuple[str, ...]:
    """Those of a trigger (PostgreSQL documentation, pg_trigger.tgargs: each ends with a zero byte)."""
    raw = stored.encode() if isinstance(stored, str) else bytes(stored)
    return tuple(each.decode() for each in raw.split(b"\0")[:-1])


_KEPT = "spark_lease_path"


def _path(connection: Connection) -> list[str]:
    """The schemas of the role's own search_path, quoted."""
    return [quoted(each) for each in connection.info[_KEPT]]


def _schema(connection: Connection) -> str:
    """Where the fence stands that a claim of this role would find, or where one would be made; quoted."""
    path = _path(connection)
    for schema in path:
        if connection.exec_driver_sql("SELECT to_regclass(%(name)s)", {"name": f"{schema}.{FENCE.name}"}).scalar():
            return schema
    if not path:
        raise ConfigError("table", "this role has no schema in its search_path, and the fence has to be in one")
    return path[0]


def _missing_tables(connection: Connection, schema: str) -> list[str]:
    """The statements that make them. Of those that are there PostgreSQL would ask for the right to CREATE as well."""
    made = dict(zip(tables_of(connection.dialect), tables_sql(connection.dialect), strict=True))
    there = "SELECT to_regclass(%(name)s)"
    return [
        statement.replace("EXISTS ", f"EXISTS {schema}", 1)
        for table, statement in made.items()
        if not connection.exec_driver_sql(there, {"name": f"{schema}{table.name}"}).scalar()
    ]


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """All or nothing, with the database's own words as one sentence."""
    if engine.dialect.name != "postgresql":
        raise ConfigError("table", "fenced tables are PostgreSQL's: elsewhere write inside lease.fenced_sql")
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                _forget_path(connection)
                yield connection
    except SQLAlchemyError as error:
        raise _as_a_sentence(engine, error) from error


def _forget_path(connection: Connection) -> None:
    """For this transaction alone. `connection.info` keeps it."""
    found = connection.exec_driver_sql("SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]")
    connection.info[_KEPT] = found.scalar()
    connection.exec_driver_sql(NO_PATH)


def _as_a_sentence(engine: Engine, error: SQLAlchemyError | ConfigError) -> SparkLeaseError:
    if isinstance(error, ConfigError):
        return error
    message = database_message(engine, error)
    if isinstance(error, DBAPIError) and matches(error, backend_of(engine).denied) and code_of(error):
        return ConfigError(
            "table", f"this role may not: {message}. `spark-lease fence add --print-sql` is for one that may"
        )
    return FenceUnreachable(where_is(engine), message)
