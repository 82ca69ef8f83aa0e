"""The differences between databases: drivers, clocks, timeouts, answers to a write, kinds of errors."""

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
    # Whatever the column's collation is: that of a broker's table takes "PARIS", "paris" and "paris " as equal.
    text: Column = literal_column(f"CONVERT({column.name} USING utf8mb4)")
    return cast(text, LargeBinary()).op("<=>", is_comparison=True)(cast(value, LargeBinary()))


def _libpq(config: Config) -> dict[str, Any]:
    """libpq's connection parameters (PostgreSQL documentation, "Parameter Key Words"); whole seconds, one in ms."""
    whole = math.ceil(config.attempt_timeout)
    return {
        "connect_timeout": whole,
        "keepalives": 1,
        "keepalives_idle": whole,
        "keepalives_interval": whole,
        "keepalives_count": 1,
        "tcp_user_timeout": math.ceil(config.attempt_timeout * 1000),
        "client_encoding": "utf8",  # for the names of leases, whatever the role's setting is
        "application_name": f"spark_lease {config.name}".encode()[:63].decode(errors="ignore"),
        "options": " ".join([*_own_options(config), *(f"-c {name}={ms}" for name, ms in _bounds(config).items())]),
    }


def _own_options(config: Config) -> list[str]:
    """The options of the user, which ours must not replace."""
    theirs = make_url(config.url).query.get("options") or os.environ.get("PGOPTIONS", "")
    return list(filter(None, [theirs] if isinstance(theirs, str) else theirs))


def _bounds(config: Config) -> dict[str, int]:
    """Timeouts in milliseconds. They tell a row that stays locked from a server that hangs."""
    limit = config.attempt_timeout * 1000
    return {"statement_timeout": math.ceil(limit), "lock_timeout": math.ceil(limit * _LOCKED)}


# A role or database may have it off: then a server that crashes forgets the master, or the epoch that was claimed. Of
# the values only "off" contains "off". replace() and no CASE … =: a planted operator in the search path could run.
_KEEP_COMMITS = (
    "pg_catalog.set_config('synchronous_commit', "
    "pg_catalog.replace(pg_catalog.current_setting('synchronous_commit'), 'off', 'on'), {local})"
)
"""Makes PostgreSQL confirm no commit that a crash could undo."""


def transaction_bounds(bounds: Mapping[str, int]) -> str:
    """A statement that bounds the waits of a PostgreSQL transaction, in milliseconds, and makes its commit durable."""
    # One statement: a driver that prepares it takes no more.
    ours = [f"pg_catalog.set_config('{name}', '{ms}', true)" for name, ms in bounds.items()]
    return f"SELECT {', '.join(ours)}, {_KEEP_COMMITS.format(local='true')}"


def shared_bounds(config: Config) -> str:
    """`transaction_bounds` for a session that is not ours alone."""
    return transaction_bounds(_bounds(config))


def begin_session(connection: Any, config: Config) -> bool:
    """False if a pooler ignored the options of this connection to PostgreSQL: its session is not ours alone.

    If the session is ours alone, its commits are durable from now on."""
    with connection.cursor() as cursor:
        wanted = f"'{_bounds(config)['statement_timeout']} ms'"
        found = f"pg_catalog.current_setting('statement_timeout')::interval = {wanted}::interval"
        cursor.execute(f"SELECT {found}, pg_catalog.current_setting('synchronous_commit')")
        is_ours, commits = cursor.fetchone()
        if is_ours and commits == "off":
            cursor.execute(f"SELECT {_KEEP_COMMITS.format(local='false')}")
        return bool(is_ours)


def _pymysql(config: Config) -> dict[str, Any]:
    """Seconds to connect and for each read or write of the socket; the cut-off is for the whole request."""
    limit = config.attempt_timeout
    return {"connect_timeout": limit, "read_timeout": limit, "write_timeout": limit, "charset": "utf8mb4"}


def _sqlite(config: Config) -> dict[str, Any]:
    # The renewing thread opens the connection; the releasing thread uses it after the renewing one has ended.
    return {"timeout": config.attempt_timeout, "check_same_thread": False}


def _mysql_session(config: Config) -> list[str]:
    limit = config.attempt_timeout * _LOCKED
    whole = max(1, math.floor(limit - 2))  # MySQL ends a wait up to two seconds late
    return [
        # If the default of autocommit is 0, MySQL reports it as on, and PyMySQL leaves it off: no grant would be
        # committed, and at the end of our session a second contender would become master.
        "SET SESSION autocommit = 1",
        # Else a long list is cut off without a warning, and SQLAlchemy cannot read the definition of a table.
        f"SET SESSION sql_select_limit = {2**64 - 1}, sql_quote_show_create = 1",
        # Else a ROLLBACK, such as SQLAlchemy's, begins a transaction that no grant leaves: the end of the session
        # undoes all grants.
        "SET SESSION completion_type = NO_CHAIN",
        # A connection is kept between two renewals.
        f"SET SESSION wait_timeout = {_KEPT}",
        # MySQL has no max_statement_time, and ignores a comment for MariaDB alone.
        f"SET SESSION /*M! max_statement_time = {limit:.3f}, */ innodb_lock_wait_timeout = {whole}, "
        f"lock_wait_timeout = {whole}",
        # Else INSERT … SELECT locks all that it reads, and two of them end in a deadlock.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ]


_KEPT = 86400
"""Seconds for which a server must keep an idle session: no lease is longer."""
_LOCKED = 0.8
"""The share of `attempt_timeout` for which a request waits until a row is unlocked."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One database product."""

    drivers: tuple[str, ...]
    """Packages that connect to it, the best first."""
    extra: str
    """The extra of spark_lease that installs them."""
    now_ms: str
    """Its clock in milliseconds since 1970, as SQL."""
    greatest: str
    """The function that gives the larger of two numbers."""
    connect: Callable[[Config], dict[str, Any]]
    """The connection arguments of the driver, by which every wait ends."""
    engine: Mapping[str, Any]
    """Arguments of `create_engine`."""
    session: Callable[[Config], list[str]] = lambda config: []
    """Statements for each new connection."""
    returning: bool = True
    """True if a write can return what it wrote; if not, LAST_INSERT_ID returns the time of the write."""
    table_options: str = ""
    """Appended to CREATE TABLE."""
    equal: Callable[[Column, Column], Column] = ColumnElement.is_not_distinct_from
    """Compares every byte; NULL equals NULL."""
    shape: tuple[str, ...] = ()
    """Codes, or error texts, of "no such table or column"."""
    denied: tuple[str, ...] = ()
    """Those of "access denied": a wrong password, a missing privilege, no such database."""
    syntax: tuple[str, ...] = ()
    """Those of an invalid statement."""
    locked: tuple[str, ...] = ()
    """Those of "another transaction has locked it"."""
    duplicate: tuple[str, ...] = ()
    """Those of "this key exists already"."""

    @property
    def stamp_ms(self) -> str:
        """`now_ms` in a statement that writes it."""
        return self.now_ms if self.returning else f"LAST_INSERT_ID({self.now_ms})"


ENGINE_OF = (
    "SELECT engine, table_type FROM information_schema.tables "
    "WHERE table_schema = coalesce(%s, database()) AND table_name = %s"
)
"""MariaDB, MySQL: the engine that keeps the table of that schema (NULL: this session's) and name; NULL for a view."""
UNKNOWN_LETTER = "22P05"
"""PostgreSQL's code of a text that its database, in another encoding than UTF-8, cannot hold."""
STATEMENTS_LOGGED = "1665"
"""MariaDB's and MySQL's code of a binary log of statements, which takes no write under READ COMMITTED."""
CONFLICTS = ("40001", "40P01", "1213", "1020")
"""Codes of deadlocks and serialization failures, of all databases: nothing was done, and a retry may succeed."""


def matches(error: BaseException, kinds: tuple[str, ...]) -> bool:
    """True if the error is one of `kinds`: codes or error texts, as in a `Backend`."""
    return code_of(error) in kinds or any(" " in kind and kind in str(error) for kind in kinds)


def code_of(error: BaseException) -> str | None:
    """The error number of MySQL and MariaDB, else the SQLSTATE of psycopg2 or psycopg."""
    error = getattr(error, "orig", None) or error
    if error.args and isinstance(error.args[0], int):
        return str(error.args[0])
    return getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)


_MYSQL = Backend(
    drivers=("pymysql",),
    extra="mariadb",
    # Constant within a statement, independent of time zones; CURRENT_TIMESTAMP has whole seconds.
    now_ms="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
    greatest="greatest",
    connect=_pymysql,
    engine={"paramstyle": "pyformat"},
    session=_mysql_session,
    returning=False,
    # Another engine may lock no row and roll nothing back; older row formats have no room to index a name.
    table_options=" ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARSET=utf8mb4",
    equal=_is_to_the_byte,
    shape=("1146", "1054"),
    # The second line: the account may not log in at all, from this host, without TLS, or with this password.
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
        # Else each new connection first asks whether that extension exists.
        engine={"paramstyle": "pyformat", "use_native_hstore": False},
        shape=("42P01", "42703", "3F000"),
        # A refusal to connect has no code. The last texts are libpq's, about parts of the URL.
        denied=(
            *("42501", "28P01", "28000", "3D000", UNKNOWN_LETTER, "password authentication failed", "does not exist"),
            *("no password supplied", "permission denied for database", "not permitted to log in"),
            *("invalid dsn", "invalid connection option", "invalid sslmode value"),
            *("unrecognized configuration parameter", "server does not support SSL", "SSL required"),
            *("no pg_hba.conf entry", "does not match host name", "certificate verify failed"),
        ),
        syntax=("42601", "42883", "42P18"),
        locked=("55P03",),
        duplicate=("23505",),
    ),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    # SQLite runs in the calling process: its clock is the wall clock of the one machine that may use the file.
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
    """True for MariaDB. Known only after a connection: a mysql:// URL may lead to one."""
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
    """The first driver that is installed: `postgresql://` means psycopg 3 to SQLAlchemy 2.1 and psycopg2 to 2.0."""
    name, _, chosen = url.drivername.partition("+")
    if chosen and chosen not in backend.drivers:
        raise ConfigError("url", f"the driver {chosen} is not known here; known: {', '.join(backend.drivers)}")
    for driver in (chosen,) if chosen else backend.drivers:
        if importlib.util.find_spec(driver):
            return url.set(drivername=f"{'mysql' if name == 'mariadb' else name}+{driver}")
    raise ConfigError("url", f"no driver for {name}:// is installed: pip install 'spark_lease[{backend.extra}]'")


def missing_file(config: Config) -> str:
    """The file of a SQLite URL, if only the file is missing; else ""."""
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
        raise ConfigError("url", f"{file} does not exist: if that is its name, run spark-lease init")
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
