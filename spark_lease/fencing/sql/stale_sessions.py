"""Ends PostgreSQL sessions of older epochs, which may be frozen in a transaction that makes a claim wait.

A session is recognised by its application_name. That names only the innermost of several leases, and a program may have
set its own. Such a session is found by its lock on the fence's row: it has passed the check under an older epoch.
"""

import contextlib
import logging
from collections.abc import Sequence
from threading import Thread
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ...database.dialects import code_of
from .session import application_prefix
from .tables import FENCE, read_epoch

log = logging.getLogger(__name__)

_MUST_NOT = "42501"
# In one statement: between a look and a kill, another session could get the pid of one that ended. Or this process
# could be frozen while a newer master claims: then the newer master's own work locks the row.
_END = f"""
SELECT pid, pg_catalog.pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = pg_catalog.current_database() AND pid = %(pid)s AND application_name = %(application)s
AND coalesce((SELECT epoch FROM {FENCE.name} WHERE CAST(name AS text) = %(name)s), 0) <= CAST(%(epoch)s AS bigint)
"""
_IS_SUPER = "SELECT rolsuper FROM pg_roles WHERE CAST(rolname AS text) = %(role)s"
_OLDER = """
SELECT pid, application_name, usename FROM (
    SELECT pid, application_name, usename,
           CAST(substring(application_name FROM %(pattern)s) AS bigint) AS epoch
    FROM pg_stat_activity WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
) AS session WHERE epoch < %(epoch)s
"""

# The cast to oid: an operator between an oid and a regclass could have been planted.
# Another claim is no write of a former master: it has the `application_name` of `_libpq`, with a space.
_BLOCKING = """
SELECT pid, application_name, usename FROM pg_stat_activity a
WHERE pid = ANY (pg_catalog.pg_blocking_pids(%(waiting)s)) AND application_name NOT LIKE 'spark\\_lease %%'
AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.mode = 'RowShareLock'
            AND l.relation = pg_catalog.to_regclass(%(fence)s)::oid)
"""
# The locks of a prepared transaction have no pid (PostgreSQL documentation, pg_locks.pid).
_PREPARED = """
SELECT pg_catalog.quote_literal(gid) FROM pg_prepared_xacts WHERE database = pg_catalog.current_database()
AND EXISTS (SELECT FROM pg_locks WHERE pid IS NULL AND mode = 'RowShareLock'
            AND relation = pg_catalog.to_regclass(%(fence)s)::oid)
"""
_LOOK_AGAIN = 0.005


def end_older_sessions(connection: Connection, name: str, epoch: int) -> str:
    """End every session of an older epoch of lease `name` in this database; returns what prevents that, else "".

    Commits, and rolls back what failed. Raises DBAPIError.
    """
    pattern = application_prefix(name, 0).replace("/0/", "/([0-9]{1,18})/", 1)
    found = connection.exec_driver_sql(_OLDER, {"pattern": f"^{pattern}", "epoch": epoch}).all()
    return _end(connection, name, epoch, found)


def end_holders(connection: Connection, waiting: Connection, name: str, epoch: int) -> str:
    """End every session that has passed the check and locks the fence's row of lease `name`, under any name.

    They are visible while `waiting` waits for that row, up to its lock_timeout. Returns and raises as above.
    """
    pid = waiting.exec_driver_sql("SELECT pg_catalog.pg_backend_pid()").scalar()
    asking = Thread(target=_ask, args=(waiting, name), daemon=True)
    asking.start()
    found: Sequence[Any] = []
    try:
        while asking.is_alive() and not found:
            found = connection.exec_driver_sql(_BLOCKING, {"waiting": pid, "fence": FENCE.name}).all()
            connection.rollback()  # pg_stat_activity is a snapshot for a transaction
            asking.join(_LOOK_AGAIN)
    finally:
        asking.join()  # a server that hangs is cut off by the session's own deadline
    if not found and (prepared := connection.exec_driver_sql(_PREPARED, {"fence": FENCE.name}).scalars().all()):
        return f"a prepared transaction may hold it: COMMIT PREPARED or ROLLBACK PREPARED {' or '.join(prepared)}"
    return _end(connection, name, epoch, found)


def _ask(waiting: Connection, name: str) -> None:
    with contextlib.suppress(DBAPIError):  # its lock_timeout is over
        waiting.execute(read_epoch(name).with_for_update())


def _end(connection: Connection, name: str, epoch: int, found: Sequence[Any]) -> str:
    denied = ""
    for pid, application, user in found:
        try:
            connection.exec_driver_sql(_END, {"pid": pid, "application": application, "name": name, "epoch": epoch})
            connection.commit()
            log.info("%s: ended a session of an older epoch, pid %d, user %s", name, pid, user)
        except DBAPIError as error:
            if code_of(error) != _MUST_NOT:
                raise
            connection.rollback()
            denied = f"session {pid} of an older epoch belongs to the role {user}, and this one may not end it: "
            is_super = connection.exec_driver_sql(_IS_SUPER, {"role": user}).scalar()
            end_it = f"have a superuser run SELECT pg_terminate_backend({pid})"
            denied += end_it if is_super else "GRANT pg_signal_backend TO CURRENT_USER"
    return denied
