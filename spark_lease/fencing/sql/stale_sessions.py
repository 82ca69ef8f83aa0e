"""PostgreSQL: ending the sessions of older epochs. They may be frozen in a transaction that a claim has to wait for.

A session is known by its application_name. Of one that works under several leases, that has the innermost alone, and a
program may have set its own. Such a one is found by the row of the fence that it holds: it has passed the check under
an older epoch.
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
# In one statement: between a look and a kill the number of an ended session could be given to another one, or we be
# frozen while a newer master claims: what holds the row then is its work.
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

# Between an oid and a regclass an operator could have been planted that is no cast.
# A claim of another take-over is no write of a former master: `application_name` of `_libpq`, which has a space.
_BLOCKING = """
SELECT pid, application_name, usename FROM pg_stat_activity a
WHERE pid = ANY (pg_catalog.pg_blocking_pids(%(waiting)s)) AND application_name NOT LIKE 'spark\\_lease %%'
AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.mode = 'RowShareLock'
            AND l.relation = pg_catalog.to_regclass(%(fence)s)::oid)
"""
# Its locks are those of no process (PostgreSQL documentation, pg_locks.pid).
_PREPARED = """
SELECT pg_catalog.quote_literal(gid) FROM pg_prepared_xacts WHERE database = pg_catalog.current_database()
AND EXISTS (SELECT FROM pg_locks WHERE pid IS NULL AND mode = 'RowShareLock'
            AND relation = pg_catalog.to_regclass(%(fence)s)::oid)
"""
_LOOK_AGAIN = 0.005


def end_older_sessions(connection: Connection, name: str, epoch: int) -> str:
    """End every session of an older epoch of the lease `name` in this database; what keeps us from it, else "".

    Commits, and rolls back what failed. Raises DBAPIError.
    """
    pattern = application_prefix(name, 0).replace("/0/", "/([0-9]{1,18})/", 1)
    found = connection.exec_driver_sql(_OLDER, {"pattern": f"^{pattern}", "epoch": epoch}).all()
    return _end(connection, name, epoch, found)


def end_holders(connection: Connection, waiting: Connection, name: str, epoch: int) -> str:
    """End every session that has passed the check and holds the fence's row of the lease `name`, whatever its name.

    They are seen while `waiting` asks for that row, for as long as its lock_timeout. Returns and raises as above.
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
    with contextlib.suppress(DBAPIError):  # it has waited for as long as it may
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
