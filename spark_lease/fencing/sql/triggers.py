"""Fenced tables of PostgreSQL: a session without the newest epoch of the table's lease cannot write to them.

A trigger before each statement reads the fence's row in share mode and compares it with the epoch that came with the
session (`session.py`). So it is the database that refuses, whatever program writes: psql, COPY, JDBC, an ORM. A
transaction that is open under an older epoch makes a claim wait, and a claim ends its session (`claim.py`).

What it does not hold back is in docs/reference/fenced.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...database.connections import database_message
from ...database.dialects import backend_of, code_of, matches
from ...errors import ConfigError, FenceUnreachable, SparkLeaseError
from .tables import DONE, FENCE, RUN, tables_sql, where_is
from .trigger_sql import NO_PATH, TRIGGER, function_sql, parts, quoted, spelled, trigger_sql

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
    """A table, and the lease under which it is written. `allow_unleased`: also by who carries no epoch at all."""

    name: str
    lease: str
    allow_unleased: bool = False


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
        found = _find(connection, engine, table)
        _refuse_below_others(connection, found, table, lease)
        schema = f"{_schema(connection)}."
        statements = [*_missing_tables(connection, schema), *_function_if_needed(connection, schema, found)]
        for each in _with_those_below(connection, found):
            if each.kind == "f":
                raise ConfigError("table", f"{each.schema}.{each.table}, below {table}, is a foreign table: detach it")
            if each.arguments and each.arguments[0] != lease:
                which = table if each.oid == found.oid else f"{each.schema}.{each.table}"
                raise ConfigError(
                    "table", f"{which} is written under the lease {each.arguments[0]}: drop it there first"
                )
            name = spelled([each.schema, each.table])
            statements += trigger_sql(name, schema, lease, allow_unleased)
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
        _function_if_needed(connection, schema, found)  # once more: another may have been quicker to make one
    return statements


def drop(engine: Engine, table: str) -> Sequence[str]:
    """Let any session write to `table` again, and to what is below it; the statements that it took. Raises ConfigError,
    FenceUnreachable."""
    with _transaction(engine) as connection:
        one = _find(connection, engine, table)
        for above in _look(connection, _ABOVE, {"oid": one.oid}):
            if above.arguments and above.arguments[:1] == one.arguments[:1]:
                raise ConfigError("table", f"{table} is fenced with {above.schema}.{above.table}: drop that")
        found = [each for each in _with_those_below(connection, one) if each.arguments]
        names = [spelled([each.schema, each.table]) for each in found]
        statements = [f"DROP TRIGGER {TRIGGER} ON {name}" for name in names]
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    return statements


def fenced_tables(engine: Engine, lease: str = "") -> Sequence[FencedTable]:
    """All fenced tables of the database, or those of one lease. Raises FenceUnreachable."""
    with _transaction(engine) as connection:
        found = _look(connection, "t.tgname IS NOT NULL", {})
    tables = [
        FencedTable(f"{each.schema}.{each.table}", each.arguments[0], each.arguments[2:3] == ("allow unleased",))
        for each in found
    ]
    return [each for each in tables if lease in ("", each.lease)]


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
    made = dict(zip((FENCE, RUN, DONE), tables_sql(connection.dialect), strict=True))
    there = "SELECT to_regclass(%(name)s)"
    return [
        statement.replace("EXISTS ", f"EXISTS {schema}", 1)
        for table, statement in made.items()
        if not connection.exec_driver_sql(there, {"name": f"{schema}{table.name}"}).scalar()
    ]


# A trigger runs its function, and all that its function calls, with the rights of the role that writes to the table.
_TRUSTED = """
(r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner')
 OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())
 OR r.oid = (SELECT relowner FROM pg_class WHERE oid = %(table)s::int8::oid))"""
_SCHEMA_THERE = f"""
SELECT {_TRUSTED}, r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
WHERE n.oid = to_regnamespace(%(name)s)
"""
_FUNCTION_THERE = f"""
SELECT p.prosrc, l.lanname = 'plpgsql' AND NOT p.prosecdef AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp'],
       {_TRUSTED}, r.rolname
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_roles r ON r.oid = p.proowner
WHERE p.oid = to_regprocedure(%(name)s)
"""
_FENCE_THERE = f"""
SELECT c.relkind = 'r' AND NOT c.relrowsecurity AND NOT c.relhasrules AND {_TRUSTED}, r.rolname
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass(%(name)s)
"""


def _function_if_needed(connection: Connection, schema: str, found: _Found) -> list[str]:
    """None where it is there already. Raises ConfigError where it, or the fence, belongs to a role whose code would run
    with the rights of all who write to the table."""
    wanted = function_sql(schema)
    tables = [(_FENCE_THERE, f"{schema}{each.name}") for each in (FENCE, RUN, DONE)]
    for query, name in (
        (_SCHEMA_THERE, schema.removesuffix(".")),
        *tables,
        (_FUNCTION_THERE, f"{schema}spark_lease_check()"),
    ):
        row = connection.exec_driver_sql(query, {"name": name, "table": found.oid}).first()
        if row is None:
            continue
        *source, is_trusted, owner = row
        if not is_trusted:
            problem = f"{name} belongs to the role {owner}, whose code would run with the rights of all who write to "
            problem += f"{found.schema}.{found.table}: have a superuser own it, or the owner of that table or database"
            raise ConfigError("fence", problem)
        if source and source == [wanted.split("$check$")[1], True]:
            return []
    return [wanted]


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """All or nothing, with the database's own words as one sentence."""
    if engine.dialect.name != "postgresql":
        raise ConfigError("table", "fenced tables are PostgreSQL's: elsewhere write inside lease.fenced_sql")
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                found = connection.exec_driver_sql("SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]")
                connection.info[_KEPT] = found.scalar()
                connection.exec_driver_sql(NO_PATH)
                yield connection
    except SQLAlchemyError as error:
        raise _as_a_sentence(engine, error) from error


def _as_a_sentence(engine: Engine, error: SQLAlchemyError) -> SparkLeaseError:
    message = database_message(engine, error)
    if isinstance(error, DBAPIError) and matches(error, backend_of(engine).denied) and code_of(error):
        return ConfigError(
            "table", f"this role may not: {message}. `spark-lease fence add --print-sql` is for one that may"
        )
    return FenceUnreachable(where_is(engine), message)
