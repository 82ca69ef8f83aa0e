"""Fenced tables of PostgreSQL: a session without the newest epoch of the table's lease cannot write to them.

A trigger before each statement reads the fence's row in share mode and compares it with the epoch that came with the
session (`session.py`). So the database itself refuses, whatever program writes: psql, COPY, JDBC, an ORM. An open
transaction of an older epoch makes a claim wait, and the claim ends its session (`claim.py`).

A table that is dropped takes its trigger with it. Each claim fences it again, by the list of `fenced_list.py`.

docs/reference/fenced.md says which writes a trigger does not stop.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...database.connections import database_message
from ...database.dialects import backend_of, code_of, matches
from ...errors import ConfigError, FenceUnreachable, SparkLeaseError
from . import catalog, fenced_list
from .tables import FENCE_TABLES, FENCED, tables_sql, where_is
from .trigger_sql import TRIGGER, parts, readable, trigger_sql

log = logging.getLogger(__name__)
_MUST_NOT = "42501"
_BRIEFLY, _GIVES_WAY = 50, 250
"""Milliseconds to wait for a lock: at first; and beyond `deadlock_timeout`, when a blocking autovacuum has ended."""


@dataclass(frozen=True, slots=True)
class TableFence:
    """A table and the lease of its fence. `allow_unleased`: sessions without any epoch may write to it as well.

    `state`: "fenced"; "lost" if the table, or a partition, has lost its trigger; "disabled" if the trigger is switched
    off; "dropped" if the table does not exist, and will be fenced when it is made again.
    """

    name: str
    lease: str
    allow_unleased: bool = False
    state: str = "fenced"


def add(engine: Engine, table: str, lease: str, *, allow_unleased: bool = False) -> Sequence[str]:
    """Fence `table` (or `schema.table`), its partitions and the tables that inherit from it: all or none. Returns the
    executed statements.

    May be repeated. Raises ConfigError for a table that cannot be fenced, FenceUnreachable.
    """
    with _transaction(engine) as connection:
        found = catalog.find(connection, table)
        catalog.refuse_below_others(connection, found, table, lease)
        schema = catalog.schema_of_fence(connection)
        statements = [*_missing_tables(connection, schema), *catalog.function_if_needed(connection, schema, found)]
        below = catalog.with_those_below(connection, found)
        for each in below:
            which = table if each.oid == found.oid else each.readable
            if each.kind == "f":
                raise ConfigError("table", f"{which}, below {table}, is a foreign table: detach it")
            if each.arguments and each.arguments[0] != lease:
                raise ConfigError(
                    "table", f"{which} is written under the lease {each.arguments[0]}: drop it there first"
                )
            drop_it, *make_it = trigger_sql(each.name, f"{schema}.", lease, allow_unleased)
            statements += [drop_it, *make_it] if each.arguments else make_it
        _run(connection, statements)
        statements += _grant_to_owners(connection, schema, below)
        catalog.function_if_needed(connection, schema, found)  # again: another session may have made one first
        try:
            fenced_list.enlist(connection, schema, (found.schema, found.table), lease, allow_unleased)
        except ConfigError as error:
            log.warning("%s will not be fenced again if it is dropped and made again: %s", table, error)
    return statements


def restore(connection: Connection, lease: str, left: Callable[[], float]) -> None:
    """Fence tables that were dropped and made again since `add`, and new partitions, within `left()` seconds.

    If one table fails, the others are tried all the same. Logs what was done, and what is left to do. Raises DBAPIError
    if the connection is gone.
    """
    catalog.leave_path(connection)
    schema = catalog.schema_of_fence(connection)
    try:
        found = fenced_list.listed(connection, schema, lease, fenced_list.LOST)
    except ConfigError as error:
        log.info("%s: cannot see whether a fenced table was made again: %s", lease, error)
        return
    connection.rollback()
    if not found:
        return
    errors: dict[tuple[str, str], Exception | str] = {}
    done: dict[tuple[str, str], bool] = {}
    # First the tables that no lock blocks, then each of the others for as long as an autovacuum takes to give way.
    for patience in (_BRIEFLY, _deadlock_timeout(connection) + _GIVES_WAY):
        for table, (allow_unleased, _) in found.items():
            if table in done or isinstance(errors.get(table), ConfigError):
                continue
            if (bound := min(patience, int(left() * 1000))) <= 0:
                errors.setdefault(table, "there was no time left")
                continue
            try:
                done[table] = _restore_one(connection, table, lease, allow_unleased, bound)
            except (ConfigError, DBAPIError) as error:
                if isinstance(error, DBAPIError) and error.connection_invalidated:
                    raise
                errors[table] = error
                connection.rollback()
    catalog.leave_path(connection)
    still_lost = fenced_list.listed(connection, schema, lease, fenced_list.LOST)
    for table in found:
        name = readable(*table)
        if table in still_lost:
            problem = errors.get(table, "a partition is a foreign table, or of another owner")
            if isinstance(problem, SQLAlchemyError):
                problem = _as_a_sentence(connection.engine, problem)
            log.warning("%s: %s, or a partition of it, is without its fence: %s", lease, name, problem)
        elif done.get(table):
            log.warning(
                "%s: %s, or a partition of it, was made without its fence, and older masters could write to it; it is "
                "fenced again",
                *(lease, name),
            )


def _restore_one(
    connection: Connection, table: tuple[str, str], lease: str, allow_unleased: bool, patience: int
) -> bool:
    """Fence `table` as far as possible, without blocking readers. False if it is no longer to be fenced.

    Waits `patience` milliseconds for a lock."""
    catalog.leave_path(connection)
    schema = catalog.schema_of_fence(connection)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = {patience}")
    found = catalog.find(connection, readable(*table))
    catalog.refuse_below_others(connection, found, found.readable, lease)
    statements = catalog.function_if_needed(connection, schema, found, may_be_older=True)
    below = catalog.with_those_below(connection, found)
    for each in below:
        if each.kind != "f" and each.owned and (not each.arguments or each.enabled == "O"):
            statements += trigger_sql(each.name, f"{schema}.", lease, allow_unleased)
    _run(connection, statements)
    _grant_to_owners(connection, schema, below)
    catalog.function_if_needed(connection, schema, found, may_be_older=True)
    if not fenced_list.is_listed(connection, schema, table, lease):  # `drop` came first
        connection.rollback()
        return False
    connection.commit()
    return True


def drop(engine: Engine, table: str, lease: str = "") -> Sequence[str]:
    """Let any session write to `table` again, and to the tables below it; returns the executed statements.

    `lease`: the lease under which the caller believes it to be fenced, if any. Raises ConfigError, FenceUnreachable.
    """
    with _transaction(engine) as connection:
        schema = catalog.schema_of_fence(connection)
        named = catalog.look_for(connection, table)
        if not named or named.kind not in "rp":  # the table itself was dropped
            *schemas, name = parts(table)
            gone = [named.schema] if named else schemas or catalog.path_of(connection)
            if forgotten := fenced_list.delist(connection, schema, [(each, name) for each in gone], lease):
                return forgotten
        one = catalog.find(connection, table)
        if one.arguments:
            fenced_list.refuse_another(table, one.arguments[0], lease)
        # `restore` may fence it again at this moment. The statement also locks the tables below.
        connection.exec_driver_sql(f"LOCK TABLE {one.name.replace('%', '%%')} IN SHARE ROW EXCLUSIVE MODE")
        for above in catalog.those_above(connection, one):
            if above.arguments and above.arguments[:1] == one.arguments[:1]:
                raise ConfigError("table", f"{table} is fenced with {above.readable}: drop that")
        found = catalog.with_those_below(connection, one)
        statements: list[str] = []
        for fence in {each.fence or schema for each in found}:  # one may be that of another search path
            listed = [(each.schema, each.table) for each in found]
            statements += fenced_list.delist(connection, fence, listed, lease)
        dropped = [f"DROP TRIGGER {TRIGGER} ON {each.name}" for each in found if each.arguments]
        _run(connection, dropped)
        others = [each for each in catalog.schemas_of_lists(connection) if each != schema]
        if others and not dropped and not statements:
            log.warning(
                "%s is not fenced by the fence in schema %s. There are others, in %s: if one of them fences it, set "
                "search_path to its schema",
                *(table, schema, ", ".join(others)),
            )
    return [*dropped, *statements]


def fenced_tables(engine: Engine, lease: str = "") -> Sequence[TableFence]:
    """All fenced tables of the database, or those of one lease. Raises FenceUnreachable."""
    with _transaction(engine) as connection:
        tables = {
            each.readable: TableFence(
                each.readable,
                each.arguments[0],
                each.arguments[2:3] == ("allow unleased",),
                "fenced" if each.enabled == "A" else "disabled",
            )
            for each in catalog.all_fenced(connection)
            if lease in ("", each.arguments[0])
        }
        schema = catalog.schema_of_fence(connection)
        try:
            for state, query in {"lost": fenced_list.LOST, "dropped": fenced_list.DROPPED}.items():
                for table, (allow_unleased, of) in fenced_list.listed(connection, schema, lease, query).items():
                    tables[readable(*table)] = TableFence(readable(*table), of, allow_unleased, state)
        except ConfigError as error:
            log.warning("tables that have lost their fence are not listed: %s", error)
    return [tables[name] for name in sorted(tables)]


def _grant_to_owners(connection: Connection, schema: str, tables: Sequence[catalog.Found]) -> list[str]:
    """Let the owners of `tables` read the fence, as far as this role may grant that. Returns what was granted."""
    needed = catalog.grants_to_owners(connection, schema, tables)
    for each in needed:
        try:
            with connection.begin_nested():
                _run(connection, [each])
        except DBAPIError as error:
            if code_of(error) != _MUST_NOT:
                raise
    lacking = catalog.grants_to_owners(connection, schema, tables)  # the server skips some, with only a warning
    if lacking:
        log.warning(
            "the table's owner may not read the fence: foreign keys that cascade, and SECURITY DEFINER functions, fail "
            "under every lease. Run: %s",
            "; ".join(lacking),
        )
    return [each for each in needed if each not in lacking]


def _deadlock_timeout(connection: Connection) -> int:
    query = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'deadlock_timeout'"
    found = int(connection.exec_driver_sql(query).scalar() or 0)
    connection.rollback()
    return found


def _missing_tables(connection: Connection, schema: str) -> list[str]:
    """The statements that make missing tables: even for an existing one PostgreSQL would demand the CREATE right."""
    tables = (*FENCE_TABLES, FENCED)
    made = dict(zip(tables, tables_sql(connection.dialect, tables), strict=True))
    there = "SELECT to_regclass(%(name)s)"
    return [
        statement.replace("EXISTS ", f"EXISTS {schema}.", 1)
        for table, statement in made.items()
        if not connection.exec_driver_sql(there, {"name": f"{schema}.{table.name}"}).scalar()
    ]


def _run(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """Run the block in one transaction; an error of the database is raised as one sentence."""
    if engine.dialect.name != "postgresql":
        raise ConfigError("table", "fenced tables are PostgreSQL's: elsewhere write inside lease.fenced_sql")
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(isolation_level="READ COMMITTED")
            with connection.begin():
                catalog.leave_path(connection)
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
