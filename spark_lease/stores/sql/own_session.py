"""The database session that a store keeps for its requests, opened when it is needed."""

import contextlib
import logging
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Engine

from ...clock import wall_time
from ...config.settings import Config
from ...config.urls import redacted
from ...database.connections import (
    SHARED,
    SocketWatchdog,
    WakeupPipe,
    descriptor_of,
    has_hung_up,
    refusal,
)
from ...database.dialects import shared_bounds
from ...errors import RecordUnreadable, StoreError
from .statements import Prepared

log = logging.getLogger(__name__)

_UNHEARD = 0.05
"""Seconds until another look, for a release just before we began to listen."""


class OwnSession:
    """A connection of the driver and its cursor. Both are None until a request needs them, and after a failure."""

    def __init__(self, config: Config, engine: Engine, cut_off: SocketWatchdog) -> None:
        """`cut_off` ends a request that takes too long."""
        self._config, self._engine, self._cut_off = config, engine, cut_off
        self._sql: Mapping[str, str] = {}
        self._plans: Mapping[str, Prepared] = {}
        self.connection: Any = None
        self.cursor: Any = None
        self.may_be_shared = False
        """True if a pooler may give the session to others: no setting may stay in it."""
        self._planned: Mapping[str, Prepared] = {}
        self._local = self._listening_to = ""
        self.fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._alarm = WakeupPipe()
        self._clocks_compared = self._is_closed = False
        self._in_use = threading.Lock()

    def use(self, sql: Mapping[str, str], plans: Mapping[str, Prepared]) -> None:
        """Set the statements, by what they do, and those of them to prepare in a session that is ours alone."""
        self._sql, self._plans = sql, plans

    @contextlib.contextmanager
    def one_request(self, *, is_last: bool) -> Iterator[None]:
        """No other thread uses the connection meanwhile. It is dropped after a failure, and if `is_last` for a while.

        That is done inside the lock: SQLite's library crashes if another thread still uses a closed connection."""
        try:
            with self._in_use:
                self._cut_off.has_cut = False
                try:
                    yield
                except BaseException:
                    self.drop()
                    raise
                if is_last:
                    self.drop()
        finally:
            if self._is_closed:
                self.drop_if_idle()

    def ask(self, what: str, values: Mapping[str, object]) -> list[Any] | None:
        """Run one statement; return its rows, None if it returns none. Call it in `one_request`."""
        try:
            self._need_connection()
            planned = self._planned.get(what)
            self._cut_off.arm(self.fd)
            self.cursor.execute(planned.execute if planned else self._local + self._sql[what], values)
            while self._local and self._engine.driver == "psycopg" and self.cursor.nextset():
                pass  # to the answer of the last statement
            return self.cursor.fetchall() if self.cursor.description else None
        finally:
            self._cut_off.disarm()

    @contextlib.contextmanager
    def as_connection(self) -> Iterator[Connection]:
        """The session as an SQLAlchemy Connection. Call it in `one_request`."""
        try:
            self._need_connection()
            self._cut_off.arm(self.fd)
            yield Connection(self._engine, self.connection)
        finally:
            self._cut_off.disarm()

    def _need_connection(self) -> None:
        """Connect, unless there is a session that the server has not ended, with the file that exists now."""
        file = self._file_there()
        if self.cursor is not None and self.fd is not None and has_hung_up(self.fd):
            self.drop()  # a renewal that fails once is late, and a release is not repeated
        if file != self._file:
            self.drop()  # SQLite would write on into a file that was deleted or replaced, beside the next master's
        if self.cursor is None:
            self._file = file  # set before it is opened: a file that is replaced meanwhile is opened again
            self._connect()

    def _file_there(self) -> tuple[int, int] | None:
        """Device and inode of the file that SQLite would open; None if it does not exist yet, and for a server.

        Raises RecordUnreadable if it existed before: a renewal makes no new file, in which another may be master."""
        path = self._engine.url.database
        if self._engine.dialect.name != "sqlite" or path is None:
            return None
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            if self._file is None:
                return None
            raise RecordUnreadable(redacted(self._config.url), "the file is gone") from None
        except OSError as error:
            raise StoreError(redacted(self._config.url), f"cannot look at the file: {error}") from error
        return found.st_dev, found.st_ino

    def _connect(self) -> None:
        try:
            self.connection = self._engine.raw_connection()
        except ssl.SSLError as error:
            raise refusal(self._engine, self._config, error) from error
        driver: Any = self.connection.driver_connection
        is_shared = self.connection.info.get(SHARED, False)
        self.may_be_shared |= is_shared
        self._local = f"{shared_bounds(self._config)}; " if is_shared else ""
        # psycopg's other cursors send one statement in a message if there are values.
        several = is_shared and self._engine.driver == "psycopg"
        self.cursor = self._engine.dialect.loaded_dbapi.ClientCursor(driver) if several else driver.cursor()
        self.fd = descriptor_of(driver)
        self._planned = {} if is_shared else self._plans
        for each in self._planned.values():
            self.cursor.execute(each.prepare)
        if self._config.max_allowable_diff_from_db_time and not self._clocks_compared:
            self._warn_of_clock_difference()

    def _warn_of_clock_difference(self) -> None:
        self.cursor.execute(self._sql["now"])
        self._clocks_compared = True
        difference = wall_time() - self.cursor.fetchone()[0] / 1000
        if abs(difference) > self._config.max_allowable_diff_from_db_time:
            log.warning("%s: this machine's clock is %+.1f s off the database's", self._config.name, difference)

    def give_up_plans(self) -> None:
        """Prepare no more: the session was shared all the same, and finds a prepared statement by chance only."""
        self._plans, self.may_be_shared = {}, True

    def drop(self) -> None:
        connection, self.connection, self.cursor, self._listening_to = self.connection, None, None, ""
        if connection is not None and connection.is_valid:  # SQLAlchemy itself invalidates a lost one
            connection.invalidate()

    def drop_if_idle(self) -> None:
        """Drop the connection, unless another thread is in a request: that one drops it by itself."""
        if not self._in_use.locked():
            with self._in_use:
                self.drop()

    def wait(self, timeout: float) -> None:
        """Wait until `close` is called, `timeout` seconds at most."""
        self._alarm.wait(None, timeout)

    def notifications(self, channel: str, timeout: float) -> list[str]:
        """What PostgreSQL sends on `channel` within `timeout` seconds. Raises an error of the driver or SQLAlchemy."""
        if self._listening_to != channel:
            answered = self.cursor is not None  # a store that fails is not asked again before its time
            self._listen(channel)
            timeout = min(timeout, _UNHEARD) if answered else timeout
        driver: Any = self.connection.driver_connection
        driver.poll()
        if not driver.notifies:
            self._alarm.wait(driver.fileno(), timeout)
            driver.poll()
        payloads = [each.payload for each in driver.notifies]
        driver.notifies.clear()
        return payloads

    def _listen(self, channel: str) -> None:
        try:
            if self.cursor is None:
                self._connect()
            if self.may_be_shared:
                return  # LISTEN would stay in a session that a pooler gives to others
            self._cut_off.arm(self.fd)
            self.cursor.execute(f'LISTEN "{channel}"')  # LISTEN takes no parameter
        finally:
            self._cut_off.disarm()
        self._listening_to = channel

    def close(self) -> None:
        """End every wait, and drop the connection once no request is under way."""
        self._alarm.ring()
        self._cut_off.close()
        self._is_closed = True
        self.drop_if_idle()
