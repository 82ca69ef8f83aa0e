"""From a URL to connections of which every wait has an end: drivers, credentials, timeouts, the cut-off.

Here stands what differs between databases. What is the same for all of them is in `sql.py` and `sql_schema.py`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import select
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from ..clock import Clock
from ..config import Config, default_url, redacted
from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Backend:
    """One database product: its clock in milliseconds since 1970 as SQL, and how it says "no such table or column"."""

    now_ms: str
    greatest: str
    """The function that gives the larger of two numbers."""
    shape_codes: frozenset[str]
    shape_texts: tuple[str, ...]

    def is_about_shape(self, error: BaseException) -> bool:
        return code_of(error) in self.shape_codes or any(text in str(error) for text in self.shape_texts)


def code_of(error: BaseException) -> str | None:
    """SQLSTATE, as psycopg2 and psycopg call it."""
    return getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)


BACKENDS: Mapping[str, Backend] = {
    # clock_timestamp() and not now(): a statement that had to wait for a lock is stamped with the end of the wait.
    "postgresql": Backend(
        now_ms="CAST(date_part('epoch', clock_timestamp()) * 1000 AS BIGINT)",
        greatest="greatest",
        shape_codes=frozenset({"42P01", "42703", "3F000"}),
        shape_texts=(),
    ),
    # SQLite runs in the process that asks: its clock is the wall clock of the one machine that may use the file.
    "sqlite": Backend(
        now_ms="CAST((julianday('now') - 2440587.5) * 86400000 AS BIGINT)",
        greatest="max",
        shape_codes=frozenset(),
        shape_texts=("no such table", "no such column", "has no column named"),
    ),
}


def make_engine(config: Config, opened: Callable[[Any], None]) -> Engine:
    """An Engine for `config.url` with no connection yet: autocommit, no pool, all timeouts from `attempt_timeout`.

    `opened` gets each connection of the driver before anything is asked of it. Raises ConfigError for a URL that
    cannot be used.
    """
    url = _usable(config)
    timeouts = _sqlite_timeouts if url.get_backend_name() == "sqlite" else _postgres_timeouts
    engine = create_engine(
        url,
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
        connect_args=timeouts(config),
        paramstyle="named" if url.get_backend_name() == "sqlite" else "pyformat",
    )

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: object, words: Any, keywords: Any) -> Any:
        connection = dialect.connect(*words, **keywords)
        opened(connection)
        return connection

    if url.get_backend_name() == "postgresql":

        @event.listens_for(engine, "connect")
        def limit_statements(connection: Any, _record: object) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET statement_timeout = {math.ceil(config.attempt_timeout * 1000)}")

    return engine


def backend_of(engine: Engine) -> Backend:
    return BACKENDS[engine.dialect.name]


def _usable(config: Config) -> URL:
    try:
        url = make_url(config.url)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        raise ConfigError(
            "url", f"{redacted(config.url)!r} is not a URL like postgresql://user@host/database"
        ) from None
    if backend not in BACKENDS:
        raise ConfigError("url", f"{backend}:// is no lock store that is known here; known: {', '.join(BACKENDS)}")
    if config.password and backend != "sqlite":
        url = url.set(password=config.password)
    return _sqlite_file(url, config) if backend == "sqlite" else _installed_driver(url)


def _sqlite_file(url: URL, config: Config) -> URL:
    if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
        raise ConfigError("url", "a SQLite database in memory excludes nobody: name a file, sqlite:///path")
    file = Path(url.database).expanduser().absolute()
    if config.create_table == "false" and not file.exists():
        raise ConfigError("url", f"{file} does not exist: run spark-lease init")
    if "." in config.table:
        raise ConfigError("table", f"{config.table}: SQLite has no schemas")
    try:
        if str(url) == default_url():
            file.parent.mkdir(parents=True, exist_ok=True)
        there = file.parent.is_dir()
    except OSError as error:
        raise ConfigError("url", f"{file}: {error.strerror}") from error
    if not there:
        raise ConfigError("url", f"the folder {file.parent} does not exist: create it")
    return url.set(database=str(file))


def _installed_driver(url: URL) -> URL:
    """`postgresql://` means psycopg 3 to SQLAlchemy 2.1 and psycopg2 to 2.0: take the one that is there."""
    if "+" in url.drivername:
        return url
    for driver in ("psycopg2", "psycopg"):
        if importlib.util.find_spec(driver):
            return url.set(drivername=f"postgresql+{driver}")
    raise ConfigError("url", "no PostgreSQL driver is installed: pip install 'spark_lease[postgres]'")


def _postgres_timeouts(config: Config) -> dict[str, Any]:
    """libpq's connection parameters (PostgreSQL documentation, "Parameter Key Words"); whole seconds but the last."""
    whole = math.ceil(config.attempt_timeout)
    return {
        "connect_timeout": whole,
        "keepalives": 1,
        "keepalives_idle": whole,
        "keepalives_interval": whole,
        "keepalives_count": 1,
        "tcp_user_timeout": math.ceil(config.attempt_timeout * 1000),
        "application_name": f"spark_lease {config.name}".encode()[:63].decode(errors="ignore"),
    }


def _sqlite_timeouts(config: Config) -> dict[str, Any]:
    # The renewing thread opens the connection, the one that releases uses it after that thread has ended.
    return {"timeout": config.attempt_timeout, "check_same_thread": False}


class CutOff:
    """Ends a request that outlives `timeout` seconds by shutting down its socket, from a thread of its own.

    The timeouts above do not cover a server that is frozen while its kernel goes on acknowledging: libpq would wait
    for ever. Arming costs a lock and a clock reading, so that a renewal need not start a thread.
    """

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout, self._clock = timeout, clock
        self._lock = threading.Lock()
        self._armed: tuple[int, float] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self, fd: int) -> None:
        """The request on socket `fd` starts now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="spark_lease cut-off", daemon=True)
            self._thread.start()
        self.disarm()
        with self._lock:
            # A descriptor of our own: the driver may close its own under us, and its number be given to somebody else.
            self._armed = (os.dup(fd), self._clock.now() + self._timeout)

    def disarm(self) -> None:
        """The request has ended."""
        with self._lock:
            if self._armed:
                os.close(self._armed[0])
                self._armed = None

    def close(self) -> None:
        """Cut off what is still under way: whoever closes the connection would wait for it."""
        self._closed.set()
        with self._lock:
            self._cut()

    def _loop(self) -> None:
        # Whatever is armed while this waits for `timeout` is not due before the wait is over.
        pause = self._timeout
        while not self._clock.wait(self._closed, pause):
            with self._lock:
                pause = self._armed[1] - self._clock.now() if self._armed else self._timeout
                if pause <= 0:
                    self._cut()
                    pause = self._timeout

    def _cut(self) -> None:
        if self._armed:
            with contextlib.suppress(OSError), socket.socket(fileno=self._armed[0]) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
            self._armed = None


class Alarm:
    """Ends a wait for a socket from another thread, once and for all."""

    def __init__(self) -> None:
        pipe = os.pipe()
        self._hears, self._rings = pipe
        for end in pipe:
            weakref.finalize(self, os.close, end)

    def wait(self, fd: int, timeout: float) -> None:
        """Return when `fd` can be read, or the alarm has rung, at the latest after `timeout` seconds."""
        ready = select.poll()  # select(2) knows no descriptor above 1023
        for each in (fd, self._hears):
            ready.register(each, select.POLLIN)
        ready.poll(timeout * 1000)

    def ring(self) -> None:
        os.write(self._rings, b"x")
