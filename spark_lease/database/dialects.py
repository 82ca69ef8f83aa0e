"""What differs between databases: drivers, clocks, timeouts, how a write is answered, how errors are told apart."""

import importlib.util
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, LargeBinary, cast, literal_column
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.sql.elements import ColumnElement

from ..config.settings import Config
from ..config.urls import local_url, redacted
from ..errors import ConfigError

Column = ColumnElement[Any]


def _is_to_the_byte(column: Any, value: Column) -> Column:
    # Whatever the column's collation is: that of a broker's table takes "PARIS", "paris" and "paris " for equal.
    text: Column = literal_column(f"CONVERT({column.name} USING utf8mb4)")
    return cast(text, LargeBinary()).op("<=>", is_comparison=True)(cast(value, LargeBinary()))


def _libpq(config: Config) -> dict[str, Any]:
    """libpq's connection parameters (PostgreSQL documentation, "Parameter Key Words"); whole seconds but the last."""
    whole = math.ceil(config.attempt_timeout)
    return {
        "connect_timeout": whole,
        "keepalives": 1,
        "keepalives_idle": whole,
        "keepalives_interval": whole,
        "keepalives_count": 1,
        "tcp_user_timeout": math.ceil(config.attempt_timeout * 1000),
        "client_encoding": "utf8",  # of the names of leases, whatever the role has
        "application_name": f"spark_lease {config.name}".encode()[:63].decode(errors="ignore"),
        "options": " ".join([*_own_options(config), *(f"-c {name}={ms}" for name, ms in _bounds(config).items())]),
    }


def _own_options(config: Config) -> list[str]:
    """Those of the user, which are not to be lost for ours."""
    theirs = make_url(config.url).query.get("options") or os.environ.get("PGOPTIONS", "")
    return list(filter(None, [theirs] if isinstance(theirs, str) else theirs))


def _bounds(config: Config) -> dict[str, int]:
    """Milliseconds. A row that stays locked is told apart from a server that hangs."""
    limit = config.attempt_timeout * 1000
    return {"statement_timeout": math.ceil(limit), "lock_timeout": math.ceil(limit * _LOCKED)}


# A role or database may have it off: then a server that crashes forgets who was master, or which epoch was claimed. Of
# the values only "off" contains it. replace() and no CASE … =: that operator could be one planted in the search path.
_KEEP_COMMITS = (
    "pg_catalog.set_config('synchronous_commit', "
    "pg_catalog.replace(pg_catalog.current_setting('synchronous_commit'), 'off', 'on'), {local})"
)
"""Has PostgreSQL confirm no commit that a crash could undo."""


def transaction_bounds(bounds: Mapping[str, int]) -> str:
    """A statement that bounds the waits of a transaction of PostgreSQL, in milliseconds, and has its commit kept."""
    # One: a driver that prepares it takes no more.
    ours = [f"pg_catalog.set_config('{name}', '{ms}', true)" for name, ms in bounds.items()]
    return f"SELECT {', '.join(ours)}, {_KEEP_COMMITS.format(local='true')}"


def shared_bounds(config: Config) -> str:
    """`transaction_bounds` for a session that is not ours alone."""
    return transaction_bounds(_bounds(config))


def begin_session(connection: Any, config: Config) -> bool:
    """False if a pooler passed over the options of this connection to PostgreSQL: its session is not ours alone.

    If it is, its commits are kept from now on."""
    with connection.cursor() as cursor:
        wanted = f"'{_bounds(config)['statement_timeout']} ms'"
        found = f"pg_catalog.current_setting('statement_timeout')::interval = {wanted}::interval"
        cursor.execute(f"SELECT {found}, pg_catalog.current_setting('synchronous_commit')")
        is_ours, commits = cursor.fetchone()
        if is_ours and commits == "off":
            cursor.execute(f"SELECT {_KEEP_COMMITS.format(local='false')}")
        return bool(is_ours)


def _pymysql(config: Config) -> dict[str, Any]:
    """Seconds for the connection and for each look at its socket; the cut-off is for the whole request."""
    limit = config.attempt_timeout
    return {"connect_timeout": limit, "read_timeout": limit, "write_timeout": limit, "charset": "utf8mb4"}


def _sqlite(config: Config) -> dict[str, Any]:
    # The renewing thread opens the connection, the one that releases uses it after that thread has ended.
    return {"timeout": config.attempt_timeout, "check_same_thread": False}


def _mysql_session(config: Config) -> list[str]:
    limit = config.attempt_timeout * _LOCKED
    whole = max(1, math.floor(limit - 2))  # MySQL ends a wait up to two seconds late
    return [
        # MySQL reports autocommit as on where its default is 0, and PyMySQL then leaves it off: nothing would commit a
        # grant, and with the end of our session a second contender would be master.
        "SET SESSION autocommit = 1",
        # Else a long list is cut off without a word; and SQLAlchemy cannot read what a table is made of.
        f"SET SESSION sql_select_limit = {2**64 - 1}, sql_quote_show_create = 1",
        # Else a ROLLBACK, of SQLAlchemy's for one, begins a transaction that no grant leaves: the session's end takes
        # all grants back.
        "SET SESSION completion_type = NO_CHAIN",
        # A connection is kept between two renewals.
        f"SET SESSION wait_timeout = {_KEPT}",
        # MySQL has no max_statement_time, and passes over what is MariaDB's alone.
        f"SET SESSION /*M! max_statement_time = {limit:.3f}, */ innodb_lock_wait_timeout = {whole}, "
        f"lock_wait_timeout = {whole}",
        # Else INSERT … SELECT locks all that it reads, and two of them end in a deadlock.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ]


_KEPT = 86400
"""Seconds for which a server is not to end a session that asks nothing: no lease is longer."""
_LOCKED = 0.8
"""The share of `attempt_timeout` for which a request waits until a row is unlocked."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One database product."""

    drivers: tuple[str, ...]
    """Packages that reach it, the best first."""
    extra: str
    """What to install for that."""
    now_ms: str
    """Its clock in milliseconds since 1970, as SQL."""
    greatest: str
    """The function that gives the larger of two numbers."""
    connect: Callable[[Config], dict[str, Any]]
    """The driver's arguments by which every wait has an end."""
    engine: Mapping[str, Any]
    """What `create_engine` is told of it."""
    session: Callable[[Config], list[str]] = lambda config: []
    """Statements for each new connection."""
    returning: bool = True
    """Whether a write can return what it wrote; if not, LAST_INSERT_ID brings back the time at which it was written."""
    table_options: str = ""
    """What is appended to CREATE TABLE."""
    equal: Callable[[Column, Column], Column] = ColumnElement.is_not_distinct_from
    """Equal in every byte, and NULL to NULL."""
    shape: tuple[str, ...] = ()
    """Codes, or words, of "no such table or column"."""
    denied: tuple[str, ...] = ()
    """Those of "you must not": a wrong password, a missing privilege, no such database."""
    syntax: tuple[str, ...] = ()
    """Those of a statement that is none."""
    locked: tuple[str, ...] = ()
    """Those of "another transaction has locked it"."""
    duplicate: tuple[str, ...] = ()
    """Those of "this key is there already"."""

    @property
    def stamp_ms(self) -> str:
        """`now_ms` where it is written."""
        return self.now_ms if self.returning else f"LAST_INSERT_ID({self.now_ms})"


ENGINE_OF = (
    "SELECT engine, table_type FROM information_schema.tables "
    "WHERE table_schema = coalesce(%s, database()) AND table_name = %s"
)
"""MariaDB, MySQL: the engine that keeps the table of that schema (NULL: this session's) and name; NULL for a view."""
UNKNOWN_LETTER = "22P05"
"""PostgreSQL's code of a text that its database, in another encoding than UTF-8, cannot hold."""
STATEMENTS_LOGGED = "1665"
"""MariaDB's and MySQL's of a binary log of statements, which takes no write under READ COMMITTED."""
CONFLICTS = ("40001", "40P01", "1213", "1020")
"""Codes of deadlocks and serialization failures, of all databases: nothing was done, another try may do it."""


def matches(error: BaseException, kinds: tuple[str, ...]) -> bool:
    """True if the error is one of `kinds`, which are a backend's."""
    return code_of(error) in kinds or any(" " in kind and kind in str(error) for kind in kinds)


def code_of(error: BaseException) -> str | None:
    """The server's own number with MySQL and MariaDB, else SQLSTATE, as psycopg2 and psycopg call it."""
    error = getattr(error, "orig", None) or error
    if error.args and isinstance(error.args[0], int):
        return str(error.args[0])
    return getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)


_MYSQL = Backend(
    drivers=("pymysql",),
    extra="mariadb",
    # Constant within a statement, in no time zone; CURRENT_TIMESTAMP has whole seconds.
    now_ms="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
    greatest="greatest",
    connect=_pymysql,
    engine={"paramstyle": "pyformat"},
    session=_mysql_session,
    returning=False,
    # Another engine may lock no row, and roll nothing back; older rows have no place for an index over a name.
    table_options=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4",
    equal=_is_to_the_byte,
    shape=("1146", "1054"),
    # The second line: an account that may not log in, not from this host, not without TLS, not with this password.
    denied=(
        *("1044", "1045", "1049", "1142", "1143", "1227", STATEMENTS_LOGGED),
        *("1130", "1251", "1524", "1698", "1820", "1862", "3118", "3159", "4151"),
    ),
    syntax=("1064", "1305"),
    locked=("1205", "1969", "3572"),
    duplicate=("1062",),
)
BACKENDS: Mapping[str, Backend] = {
    # clock_timestamp() and not now(): a statement that had to wait for a lock is stamped with the end of the wait.
    "postgresql": Backend(
        drivers=("psycopg2", "psycopg"),
        extra="postgres",
        now_ms="CAST(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * CAST(1000 AS FLOAT8) AS BIGINT)",
        greatest="greatest",
        connect=_libpq,
        # Else each new connection asks first whether that extension is there.
        engine={"paramstyle": "pyformat", "use_native_hstore": False},
        shape=("42P01", "42703", "3F000"),
        # No code comes with a refusal to connect. The last ones are libpq's, of what stands in the URL.
        denied=(
            *("42501", "28P01", "28000", "3D000", UNKNOWN_LETTER, "password authentication failed", "does not exist"),
            *("no password supplied", "permission denied for database", "not permitted to log in"),
            *("invalid dsn", "invalid connection option", "invalid sslmode value"),
            *("unrecognized configuration parameter", "server does not support SSL"),
        ),
        syntax=("42601", "42883", "42P18"),
        locked=("55P03",),
        duplicate=("23505",),
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    # SQLite runs in the process that asks: its clock is the wall clock of the one machine that may use the file.
    "sqlite": Backend(
        drivers=("sqlite3",),
        extra="",
        now_ms="CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)",
        greatest="max",
        connect=_sqlite,
        engine={"paramstyle": "named"},
        shape=("no such table", "no such column", "has no column named"),
        denied=("attempt to write a readonly database",),
        syntax=("syntax error", "no such function"),
        duplicate=("UNIQUE constraint failed",),
    ),
}


def backend_of(engine: Engine) -> Backend:
    return BACKENDS[engine.dialect.name]


def is_mysql(of: Engine | Connection) -> bool:
    """True for MariaDB as well."""
    return of.dialect.name in ("mysql", "mariadb")


def is_mariadb(of: Engine | Connection) -> bool:
    """Known once there has been a connection: a mysql:// URL may lead to one."""
    return bool(getattr(of.dialect, "is_mariadb", False))


def usable_url(config: Config) -> URL:
    """`config.url` with its driver and password. Raises ConfigError if it cannot be used."""
    try:
        url = make_url(config.url)
        name = url.get_backend_name()
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        raise ConfigError(
            "url", f"{redacted(config.url)!r} is not a URL like postgresql://user@host/database"
        ) from None
    if "@" in (url.host or ""):
        raise ConfigError(
            "url", f"{redacted(config.url)}: write an @ in a password as %40, or use SPARK_LEASE_PASSWORD"
        )
    if name not in BACKENDS:
        raise ConfigError("url", f"{name}:// is no lease store that is known here; known: {', '.join(BACKENDS)}")
    if name == "sqlite":
        return _sqlite_file(url, config)
    if name != "postgresql" and not url.database:
        raise ConfigError("url", f"{redacted(config.url)} names no database: {name}://user@host/database")
    return _with_driver(url.set(password=config.password) if config.password else url, BACKENDS[name])


def _with_driver(url: URL, backend: Backend) -> URL:
    """The first driver that is there: `postgresql://` means psycopg 3 to SQLAlchemy 2.1 and psycopg2 to 2.0."""
    name, _, chosen = url.drivername.partition("+")
    if chosen and chosen not in backend.drivers:
        raise ConfigError("url", f"the driver {chosen} is not known here; known: {', '.join(backend.drivers)}")
    for driver in (chosen,) if chosen else backend.drivers:
        if importlib.util.find_spec(driver):
            return url.set(drivername=f"{'mysql' if name == 'mariadb' else name}+{driver}")
    raise ConfigError("url", f"no driver for {name}:// is installed: pip install 'spark_lease[{backend.extra}]'")


def missing_file(config: Config) -> str:
    """The file of a SQLite URL, if that is all that is missing; else ""."""
    file = Path(make_url(config.url).database or "").expanduser()
    there = next(each for each in file.parents if each.exists()) if config.url == local_url() else file.parent
    could_be_made = os.access(there, os.W_OK | os.X_OK)
    return str(file) if file.is_absolute() and could_be_made and not file.exists() else ""


def _sqlite_file(url: URL, config: Config) -> URL:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise ConfigError("url", "a SQLite database in memory excludes no other process: name a file, sqlite:////path")
    file = Path(url.database).expanduser()
    if not file.is_absolute():
        where = f"sqlite:///{file.absolute()}"
        raise ConfigError(
            "url", f"{url.database} is relative: each working folder would have a master. Write it as {where}"
        )
    if config.create_table == "false" and missing_file(config):
        raise ConfigError("url", f"{file} does not exist: run spark-lease init")
    if "." in config.table:
        raise ConfigError("table", f"{config.table}: SQLite has no schemas")
    try:
        if str(url) == local_url():
            file.parent.mkdir(parents=True, exist_ok=True)
        there = file.parent.is_dir()
    except OSError as error:
        how = "set HOME, or XDG_STATE_HOME" if str(url) == local_url() else "give this user access to its folder"
        raise ConfigError("url", f"{file}: {error.strerror}: {how}") from error
    if not there:
        raise ConfigError("url", f"the folder {file.parent} does not exist: create it")
    if file.is_dir():
        raise ConfigError("url", f"{file} is a folder: name a file in it")
    if not file.exists() and not os.access(file.parent, os.W_OK | os.X_OK):
        raise ConfigError("url", f"{file} does not exist, and this user may not make it")
    return url.set(database=str(file))
