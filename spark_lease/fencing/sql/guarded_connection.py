"""The connection of a fenced transaction, which refuses to end it, to begin another and to change the session."""

from typing import Any

from sqlalchemy import Connection, Engine, PoolProxiedConnection, RootTransaction, TwoPhaseTransaction

from ...database.connections import descriptor_of, has_hung_up
from .refusals import NO_BEGIN, NO_CLOSE, NO_COMMIT, NO_ROLLBACK, OVER, refuse

_COMMIT_FIRST = ("begin", "autocommit", "set_autocommit", "tpc_begin", "executescript")
"""Methods of the drivers' connections."""
_TRIES = 100
"""More than a pool has connections: the server may have ended all of them."""


def pooled_connection(engine: Engine) -> PoolProxiedConnection:
    """A connection of the pool that the server has not ended while it was idle; else the block would fail."""
    try:
        for _ in range(_TRIES):
            pooled = engine.raw_connection()
            if engine.dialect.name == "sqlite" or not _has_ended(pooled, engine):
                break
            pooled.invalidate()
    except engine.dialect.loaded_dbapi.Error as error:  # as SQLAlchemy would raise it
        Connection._handle_dbapi_exception_noconnection(error, engine.dialect, engine)
        raise
    return pooled


def _has_ended(pooled: PoolProxiedConnection, engine: Engine) -> bool:
    try:
        descriptor = descriptor_of(pooled.driver_connection)
    except engine.dialect.loaded_dbapi.Error:  # the program has closed it
        return True
    return descriptor is not None and has_hung_up(descriptor)


class GuardedConnection(Connection):
    """While `is_shut`, it refuses begin, commit, rollback and close. A lost connection is not opened again."""

    def __init__(self, engine: Engine) -> None:
        self.is_shut = self.is_over = False
        """`is_over`: rolled back by a caller that cannot be refused, like a failed ORM session. Nothing may follow."""
        self.watched: Any = None
        """The driver's own connection, while `refusals` checks its statements."""
        super().__init__(engine, pooled_connection(engine), _allow_revalidate=False)

    @property
    def connection(self) -> PoolProxiedConnection:
        if not self.is_shut:
            return super().connection
        self.before_it_is_shown()
        return _Handle(self, super().connection)  # type: ignore[return-value]

    def before_it_is_shown(self) -> None:
        """Called before code gets the driver's own connection."""

    def new_cursor(self, pooled: PoolProxiedConnection, *args: Any, **more: Any) -> Any:
        """Make the cursor that `connection.cursor` returns."""
        return pooled.cursor(*args, **more)

    def roll_back(self, pooled: PoolProxiedConnection) -> None:
        """Implement `connection.rollback`, which SQLAlchemy calls as well."""
        self.is_over = True
        pooled.rollback()

    def begin(self) -> RootTransaction:
        self._refuse_begin()
        return super().begin()

    def begin_twophase(self, xid: Any = None) -> TwoPhaseTransaction:
        self._refuse_begin()
        return super().begin_twophase(xid)

    def _refuse_begin(self) -> None:
        if self.is_shut:
            refuse(NO_BEGIN if self.in_transaction() else OVER)

    def commit(self) -> None:
        refuse(NO_COMMIT) if self.is_shut else super().commit()

    def rollback(self) -> None:
        refuse(NO_ROLLBACK) if self.is_shut else super().rollback()

    def close(self) -> None:
        refuse(NO_CLOSE) if self.is_shut else super().close()


class _Handle:
    """SQLAlchemy's handle of the driver's connection, for the block: it refuses to begin, commit and close."""

    __slots__ = ("_inside", "_pooled")

    def __init__(self, inside: GuardedConnection, pooled: PoolProxiedConnection) -> None:
        self._inside, self._pooled = inside, pooled

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._pooled, name)
        return _refuse_begin if name in _COMMIT_FIRST and callable(found) else found

    def cursor(self, *args: Any, **more: Any) -> Any:
        return self._inside.new_cursor(self._pooled, *args, **more)

    def commit(self) -> None:
        refuse(NO_COMMIT)

    def rollback(self) -> None:
        self._inside.roll_back(self._pooled)

    def close(self) -> None:
        refuse(NO_CLOSE)


def _refuse_begin(*_: object, **__: object) -> None:
    refuse(NO_BEGIN)
