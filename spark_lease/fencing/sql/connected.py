"""The way to a fence: a connection of the user's engine of which every wait ends, and what is raised without one."""

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...database.connections import database_message
from ...database.dialects import code_of
from ...errors import ConfigError, FenceUnreachable, StoreError
from ...system.call_timeout import CallTimeout
from .search_path import mismatch
from .tables import FENCE_TABLES, look_at_server, tables_sql, where_is

_AT_LEAST = 2.0
"""Seconds, if fewer are left: the error must name what blocked the claim before, also on a busy machine."""


def connected(engine: Engine, timeout: float) -> Connection:
    """`engine.connect()` within `timeout` seconds, at least two. Raises what that raises, and FenceUnreachable.

    The kernel of a frozen server still accepts connections. No driver limits the wait for the server's first message,
    and there is no socket yet that could be shut down.
    """
    if engine.dialect.name == "sqlite":  # waits for no server, and only its own thread may use the connection
        return engine.connect()
    connecting = CallTimeout(where_is(engine), timeout=round(max(timeout, _AT_LEAST), 1))
    try:
        return connecting.call(engine.connect)
    except StoreError as error:
        unreachable = FenceUnreachable(where_is(engine), error.problem)
        unreachable.may_pass = True
        raise unreachable from error
    finally:
        connecting.close()


def refuse_no_hold(connection: Connection, name: str) -> None:
    """Raise ConfigError for a fence that would hold back no writer of lease `name`. Raises DBAPIError."""
    is_postgres = connection.dialect.name == "postgresql"
    if problem := mismatch(connection, name) if is_postgres else look_at_server(connection):
        raise ConfigError("fence", f"{where_is(connection.engine)}: {problem}")


def unreachable(engine: Engine, error: SQLAlchemyError, blocked_by: str = "") -> FenceUnreachable:
    if code_of(error) == "42501":
        names = ", ".join(each.name for each in FENCE_TABLES)
        blocked_by = f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO this role"
    elif code_of(error) == "1142":  # MySQL says so of a missing table as well
        rights = [f"GRANT SELECT, INSERT, UPDATE, DELETE ON {each.name} TO this role" for each in FENCE_TABLES]
        blocked_by = f"have an administrator run: {'; '.join([*tables_sql(engine.dialect), *rights])}"
    message = database_message(engine, error)
    if blocked_by:  # then a connection that was lost was cut off here, when the time was over
        was_cut = isinstance(error, DBAPIError) and error.connection_invalidated
        message = blocked_by if was_cut else f"{blocked_by} ({message})"
    return FenceUnreachable(where_is(engine), message)


def cannot_be_made(engine: Engine, error: SQLAlchemyError) -> ConfigError:
    problem = f"its tables are missing and cannot be made here ({database_message(engine, error)})"
    return ConfigError("fence", f"{where_is(engine)}: {problem}. Run: {'; '.join(tables_sql(engine.dialect))}")
