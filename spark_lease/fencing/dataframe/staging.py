"""Makes, sweeps and drops staging tables for executors, and collects the parameters for their connections.

`spark_lease_<16 digits of the lease>_<epoch>_<run>`, one for each write, beside the table that is written. A staging
table of an older epoch is a dead run's, because this epoch has claimed the database: the lease's next write sweeps it.
"""

import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from ...database.connections import database_message
from ...database.dialects import code_of
from ...election.ports import HeldLease
from ..sql.session import application_of, digest
from ..sql.tables import parts_of
from .columns import Column
from .load import NUMBER, TASK, Place
from .target import DENIED, quote, refusal, run, wait_briefly

log = logging.getLogger(__name__)

_NAMES = {
    "postgresql": "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE n.nspname = '{schema}' AND c.relkind = 'r' AND CAST(c.relname AS text) LIKE 'spark_lease_%'",
}
_OTHER_NAMES = (
    "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'spark_lease_%' "
    "AND table_schema = '{schema}' AND table_type = 'BASE TABLE'"
)
_SCHEMA = {"postgresql": "SELECT pg_catalog.current_schema()"}
_DROPPED_WITHIN = 2
# Parameters that an executor's libpq certainly knows; the others have the same default there.
_LIBPQ = frozenset(
    (
        *("host", "hostaddr", "port", "dbname", "user", "passfile", "options", "application_name", "connect_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "gssencmode", "krbsrvname"),
        *("target_session_attrs", "channel_binding"),
    )
)
_BOUNDED = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 10, "keepalives_count": 3}
_BOUNDED_TCP = 30_000
_PYMYSQL = {"connect_timeout": 10, "read_timeout": 300, "write_timeout": 300}
NUMBERED = "spark_lease_row bigint AUTO_INCREMENT PRIMARY KEY"
"""A column of staging tables on MariaDB and MySQL, for servers that demand a primary key of each table."""
_live: set[str] = set()
"""Staging tables of the writes that are under way in this process."""


@contextmanager
def staging(lease: HeldLease, engine: Engine, table: str, columns: Sequence[Column]) -> Iterator[Place]:
    """A staging table for `columns`, until the end of the block. Raises ConfigError, DBAPIError."""
    with engine.begin() as connection:
        schema, parameters = _schema(connection, table), _parameters(connection, lease)
    name = f"spark_lease_{digest(lease.name)}_{lease.epoch}_{uuid.uuid4().hex[:8]}"
    full = f"{quote(engine, schema)}.{name}"
    _live.add(name)
    try:
        with engine.begin() as connection:
            _make(connection, schema, _create(engine, full, columns))
            mark = _mark(connection, full)
        yield Place(engine.dialect.name, engine.driver, full, mark, parameters)
    finally:
        _live.discard(name)
        _drop(lease, engine, full)


def _schema(connection: Connection, table: str) -> str:
    given = parts_of(table, connection.dialect.name, "write_sql")[:-1]
    found = given or run(connection, _SCHEMA.get(connection.dialect.name, "SELECT database()")).scalars().all()
    return str(found[0])


def _create(engine: Engine, full: str, columns: Sequence[Column]) -> str:
    if engine.dialect.name == "postgresql":
        return f"CREATE UNLOGGED TABLE {full} ({staged(columns)})"
    return f"CREATE TABLE {full} ({staged(columns)}, {TASK} bigint NOT NULL, {NUMBERED}) ENGINE = InnoDB"


def _mark(connection: Connection, full: str) -> int:
    """Insert a row that exists as long as no rows are lost. A transaction that writes only to unlogged tables is not in
    PostgreSQL's log: after a crash another one may get its number, but never the number of this transaction."""
    if connection.dialect.name != "postgresql":
        return 0
    run(connection, f"INSERT INTO {full} DEFAULT VALUES")
    return int(run(connection, NUMBER).scalar() or 0)


def _make(connection: Connection, schema: str, statement: str) -> None:
    try:
        run(connection, statement)
    except DBAPIError as error:
        if code_of(error) not in DENIED:
            raise
        problem = f'this role may not make tables there: GRANT CREATE ON SCHEMA {schema} to it, or through="driver"'
        raise refusal(f"{database_message(connection.engine, error)}; {problem}") from error


def staged(columns: Sequence[Column]) -> str:
    """The columns of a staging table."""
    return ", ".join(f"c{number} {each.staged}" for number, each in enumerate(columns))


def sweep(lease: HeldLease, engine: Engine, table: str) -> None:
    """Drop staging tables of dead runs of this lease beside `table`: of older epochs, or of this one and not in use."""
    mine = re.compile(rf"spark_lease_{digest(lease.name)}_(\d+)_[0-9a-f]{{8}}")
    with engine.begin() as connection:
        schema = _schema(connection, table)
        statement = _NAMES.get(engine.dialect.name, _OTHER_NAMES)
        names = run(connection, statement.format(schema=schema.replace("'", "''"))).scalars().all()
    for name in names:
        if (found := mine.fullmatch(name)) and 0 < lease.epoch >= int(found[1]) and name not in _live:
            _drop(lease, engine, f"{quote(engine, schema)}.{name}")


def _drop(lease: HeldLease, engine: Engine, full: str) -> None:
    """Drop a staging table; a failure is only logged. If an abandoned task uses it, it stays until the next write."""
    try:
        with engine.connect() as connection:
            wait_briefly(connection, _DROPPED_WITHIN)
            run(connection, f"DROP TABLE IF EXISTS {full}")
            connection.commit()
    except Exception as error:  # any error of a pool or a driver: the write may be committed
        problem = database_message(engine, error) if isinstance(error, DBAPIError) else type(error).__name__
        log.warning("%s: %s could not be dropped, the next write will try again: %s", lease.name, full, problem)


def _parameters(connection: Connection, lease: HeldLease) -> dict[str, Any]:
    if connection.dialect.name == "postgresql":
        return _of_libpq(connection, lease)
    found: dict[str, Any] = {}

    def note(dialect: Any, record: Any, parameters: Any, keywords: dict[str, Any]) -> None:
        found.update(keywords)

    engine = connection.engine
    event.listen(engine, "do_connect", note)
    try:
        engine.pool.recreate().connect().close()
    finally:
        event.remove(engine, "do_connect", note)
    if not found:
        raise refusal('this engine connects by a function of its own, which executors do not have: through="driver"')
    return (_PYMYSQL if engine.driver == "pymysql" else {}) | found


def _of_libpq(connection: Connection, lease: HeldLease) -> dict[str, Any]:
    """The parameters of this very connection, from any source, and the name by which a claim can end it."""
    info = getattr(connection.connection.driver_connection, "info", None)
    if info is None:
        raise refusal(f"the driver {connection.engine.driver} cannot say how it connected: use psycopg2 or psycopg")
    given = info.get_parameters() if hasattr(info, "get_parameters") else info.dsn_parameters
    parameters = _BOUNDED | {key: given[key] for key in _LIBPQ if key in given}
    if not str(parameters.get("host", "/")).startswith("/"):
        parameters.setdefault("tcp_user_timeout", _BOUNDED_TCP)
    if lease.epoch:  # no option with the epoch: a pooler may take no options, and a staging table has no fence
        parameters["application_name"] = application_of(lease.name, lease.epoch, given.get("application_name", ""))
    return parameters | ({"password": info.password} if info.password else {})
