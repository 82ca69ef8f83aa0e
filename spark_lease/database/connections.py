"""Connections on which every wait ends: engine, SocketWatchdog, WakeupPipe."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import weakref
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from ..clock import BootClock
from ..config.settings import Config
from ..config.urls import redacted
from ..errors import ConfigError, NotesDenied, SparkLeaseError, StoreError
from .dialects import (
    BACKENDS,
    STATEMENTS_LOGGED,
    UNKNOWN_LETTER,
    backend_of,
    begin_session,
    code_of,
    matches,
    usable_url,
)

SHARED = "shared"
"""Key in the `info` of a connection: true if a pooler may give its session to others: no setting may stay."""
WITHOUT_OPTIONS = "without options"
"""Key in the `info` of a connection: true if the pooler refuses startup options."""
_REFUSED_OPTIONS = ("startup parameter", "startup option", "command-line option")
"""What poolers say that take no options: PgBouncer, Odyssey and pgcat, RDS Proxy."""
_DENIED = (
    "correct the URL or the password, let this role log in, or have the rights granted that spark-lease init "
    '--print-sql names (with if_denied = "wait" a contender tries again)'
)
_RIGHTS = ("42501", "1142", "1143")
_NO_RIGHTS = (
    "have the rights granted, or the tables made, that spark-lease init --print-sql names "
    '(with if_denied = "wait" a contender tries again)'
)
BINARY_LOG = "have an administrator run SET GLOBAL binlog_format = ROW: as it is, the server takes no such writes"
_FILE = (
    "make the file and its folder writable for this user, or name another file "
    '(with if_denied = "wait" a contender tries again)'
)
_NO_TEXT = "without a text; often no file descriptor is free (ulimit -n)"
# Error 1290 of MariaDB and MySQL names the option that refuses; it may be another one.
IS_READ_ONLY = ("25006", "1792", " --read-only", " --super-read-only", "read-write mode during recovery")


def make_engine(config: Config, cut_off: SocketWatchdog) -> Engine:
    """An Engine for `config.url` with no connection yet: autocommit, no pool, all timeouts from `attempt_timeout`.

    `cut_off` is armed for each new connection before its first request. Raises ConfigError for a URL that cannot be
    used.
    """
    url = usable_url(config)
    backend = BACKENDS[url.get_backend_name()]
    try:
        engine = create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            poolclass=NullPool,
            connect_args=backend.connect(config),
            **backend.engine,
        )
    except ImportError as error:
        raise ConfigError("url", f"{redacted(config.url)} needs a driver that is not installed: {error}") from error

    @event.listens_for(engine, "do_connect")
    def connect(dialect: Any, record: Any, arguments: Any, keywords: Any) -> Any:
        if dialect.driver == "pymysql" and isinstance(keywords.get("password"), str):
            keywords["password"] = keywords["password"].encode()  # it would use latin-1, and the server UTF-8
        try:
            if dialect.driver == "psycopg" and "prepare_threshold" in keywords:  # the only number that is not libpq's
                keywords["prepare_threshold"] = int(keywords["prepare_threshold"])
            connection = dialect.connect(*arguments, **keywords)
        except (TypeError, RuntimeError, ValueError, FileNotFoundError, PermissionError) as error:
            # A parameter or an authentication method that the driver does not have; a certificate that is missing.
            raise ConfigError("url", f"{redacted(config.url)} cannot be used: {error}") from error
        except dialect.loaded_dbapi.Error as error:
            if not refuses_options(error):
                raise
            record.info[WITHOUT_OPTIONS] = True
            # Empty, not left out: without it libpq would take PGOPTIONS.
            connection = dialect.connect(*arguments, **keywords | {"options": ""})
        try:
            cut_off.watch(connection)
            with contextlib.closing(connection.cursor()) as cursor:
                for statement in backend.session(config):
                    cursor.execute(statement)
        except BaseException:  # its traceback would keep the connection and its descriptor open
            with contextlib.suppress(dialect.loaded_dbapi.Error):
                connection.close()
            raise
        return connection

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        if engine.dialect.name == "postgresql":
            record.info[SHARED] = not begin_session(connection, config)

    return engine


def refuses_options(error: Exception) -> bool:
    """True if a pooler of PostgreSQL takes no connection that brings options, as PGOPTIONS does."""
    return any(words in str(error) for words in _REFUSED_OPTIONS)


def descriptor_of(connection: Any) -> int | None:
    """The socket of a driver's connection; None if there is none, as with SQLite."""
    holder = connection if hasattr(connection, "fileno") else getattr(connection, "_sock", None)
    return None if holder is None else int(holder.fileno())


def has_hung_up(descriptor: int) -> bool:
    """True if the other side has closed the connection: it has restarted, or does not keep idle sessions."""
    looking = select.poll()
    looking.register(descriptor, getattr(select, "POLLRDHUP", 0))  # Linux; elsewhere a later sign is enough
    return bool(looking.poll(0))


def database_message(engine: Engine, error: Exception) -> str:
    """The message of the database, in one line and without the password, with advice if it is read-only."""
    said = getattr(error, "orig", None) or error
    message = " ".join(str(said).split()) or f"{type(said).__name__} {_NO_TEXT}"  # as with libpq
    message = re.sub(r" LINE \d+: .*?(?= (?:HINT|DETAIL|CONTEXT): |$)", "", message)  # the statement and a caret
    message += ": it is a replica, or read-only: name the primary" if matches(error, IS_READ_ONLY) else ""
    secret: Any = engine.url.password
    return message.replace(str(secret), "***") if secret else message


def name_of(error: Exception) -> str:
    """The class of an error from foreign code, with its text only if the system wrote that: another text may hold a
    secret."""
    text = error.strerror if isinstance(error, OSError) else str(error) if "start new thread" in str(error) else ""
    return type(error).__name__ + (f": {text}" if text else "")


def refusal(engine: Engine, config: Config, error: Exception, note: str = "{}") -> SparkLeaseError:
    """ConfigError if the next try would get the same answer, and `if_denied` says to end; else StoreError.

    `database_message` is put in the place of the braces of `note`."""
    where, problem = redacted(config.url), note.format(database_message(engine, error))
    if _is_final(engine, config, error):
        return ConfigError("url", f"{where}: {problem}: {_advice(engine, error)}")
    return StoreError(where, problem)


def notes_error(engine: Engine, config: Config, error: Exception) -> StoreError:
    """Translate an error of the notes: NotesDenied if another try would get the same answer, else StoreError."""
    where, problem = redacted(config.url), database_message(engine, error)
    if _is_final(engine, config, error):
        return NotesDenied(where, f"{problem}: {_advice(engine, error)}")
    return StoreError(where, problem)


def _advice(engine: Engine, error: Exception) -> str:
    if engine.dialect.name == "sqlite":
        return _FILE
    if code_of(error) == UNKNOWN_LETTER:
        return "the database's encoding lacks a letter of this name: use others, or a database in UTF-8"
    if code_of(error) == STATEMENTS_LOGGED:
        return BINARY_LOG
    return _NO_RIGHTS if code_of(error) in _RIGHTS else _DENIED


def _is_final(engine: Engine, config: Config, error: Exception) -> bool:
    denied, code = backend_of(engine).denied, code_of(error)
    is_denied = matches(error, denied) and (code in denied if code else _by_all(error, denied))
    return config.if_denied == "fail" and is_denied


def _by_all(error: Exception, denied: tuple[str, ...]) -> bool:
    """True if all hosts of a URL deny access. libpq tries all and reports each; one that is down might let us in."""
    if any(each in str(error) for each in ("could not translate host name", "timeout expired")):
        return False
    attempt = r'to server (?:at|on socket) ("[^"]+")( \([^)]*\))?(, port \d+)? failed: (.*?)(?=connection to server|\Z)'
    # A name may have several addresses, and a host several ports. An address may be asked twice, with TLS and without:
    # the second answer says nothing of a server that could not answer the first.
    asked: dict[tuple[str, str], dict[str, bool]] = {}
    for host, address, port, message in re.findall(attempt, str(error), re.S):
        denies = asked.setdefault((host, port), {})
        denies[address] = denies.get(address, True) and any(kind in message for kind in denied)
    return all(any(denies.values()) for denies in asked.values())


class SocketWatchdog:
    """Ends a request that takes longer than `timeout` seconds: a thread of its own shuts down the socket.

    The timeouts of the driver do not cover a server that is frozen while its kernel goes on acknowledging: libpq would
    wait for ever. Arming costs a lock and a clock reading, so that a renewal need not start a thread.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout, self._clock = timeout, BootClock()
        self._lock = threading.Lock()
        self._armed: tuple[int, float] | None = None
        self.has_cut = False
        """True if a request was cut off; the caller sets it to False before the next one."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self, fd: int | None) -> None:
        """Start the time of a request on socket `fd`; one without a socket never hangs. Raises SQLAlchemyError, as the
        request would, if no descriptor is free for the cut-off."""
        if fd is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="spark_lease cut-off", daemon=True)
            self._thread.start()
        with self._lock:
            self._forget()
            # A descriptor of our own: the driver may close its own meanwhile, and another file may get that number.
            try:
                duplicate = os.dup(fd)
            except OSError as error:
                raise SQLAlchemyError(f"{error.strerror}: no descriptor is free (ulimit -n)") from error
            self._armed = (duplicate, self._clock.now() + self._timeout)

    def watch(self, connection: Any) -> None:
        """Start the time of a request on this connection of a driver."""
        self.arm(descriptor_of(connection))

    def disarm(self) -> None:
        """Stop the time: the request has ended."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        if self._armed:
            os.close(self._armed[0])
            self._armed = None

    def close(self) -> None:
        """Cut off a request that is still under way: closing the connection would wait for it."""
        self._closed.set()
        with self._lock:
            self._cut()

    def _loop(self) -> None:
        # A request that is armed during this wait of `timeout` is not due before the wait is over.
        pause = self._timeout
        while not self._clock.wait(self._closed, pause):
            with self._lock:
                pause = self._armed[1] - self._clock.now() if self._armed else self._timeout
                if pause <= 0:
                    self.has_cut = self._armed is not None
                    self._cut()
                    pause = self._timeout

    def _cut(self) -> None:
        if self._armed:
            with contextlib.suppress(OSError), socket.socket(fileno=self._armed[0]) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)
            self._armed = None


class WakeupPipe:
    """Ends a wait, with or without a socket, from another thread. All later waits end at once."""

    def __init__(self) -> None:
        pipe = os.pipe()
        self._hears, self._rings = pipe
        for end in pipe:
            weakref.finalize(self, os.close, end)

    def wait(self, fd: int | None, timeout: float) -> None:
        """Wait until `fd` can be read, or until `ring` is called: `timeout` seconds at most."""
        ready = select.poll()  # select(2) knows no descriptor above 1023
        for each in (fd, self._hears):
            if each is not None:
                ready.register(each, select.POLLIN)
        ready.poll(timeout * 1000)

    def ring(self) -> None:
        os.write(self._rings, b"x")
