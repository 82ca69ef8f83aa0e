"""A connection of the user's engine, for which no wait is endless."""

from sqlalchemy import Connection, Engine

from ...errors import FenceUnreachable, StoreError
from ...system.call_timeout import CallTimeout
from .tables import where_is

_AT_LEAST = 2.0
"""Seconds, where hardly any are left: what was in the way before is to be told, also by a machine that is busy."""


def connected(engine: Engine, timeout: float) -> Connection:
    """`engine.connect()`, within `timeout` seconds, or two. Raises what that raises, and FenceUnreachable.

    A server that is frozen still accepts connections, by its kernel. No driver's own limit ends the wait for its first
    word, and there is no socket yet that could be shut down.
    """
    if engine.dialect.name == "sqlite":  # waits for no server, and a connection may be of use to its own thread alone
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
