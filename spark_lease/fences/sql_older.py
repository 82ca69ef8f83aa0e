"""PostgreSQL: ending the sessions of older epochs. They may be frozen in a transaction that a claim has to wait for."""

from __future__ import annotations

import logging

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ..lockers.sql_backends import code_of
from .session import application_prefix

log = logging.getLogger(__name__)

_MUST_NOT = "42501"
# In one statement: between a look and a kill the number of an ended session could be given to another one.
_END = """
SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid = %(pid)s AND application_name = %(application)s
"""
_OLDER = """
SELECT pid, application_name, usename FROM (
    SELECT pid, application_name, usename,
           CAST(substring(application_name FROM %(pattern)s) AS bigint) AS epoch
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
) AS session WHERE epoch < %(epoch)s
"""


def end_older_sessions(connection: Connection, name: str, epoch: int) -> str:
    """End every session of an older epoch of the lease `name` in this database; what keeps us from it, else "".

    Commits, and rolls back what failed. Raises DBAPIError.
    """
    pattern = application_prefix(name, 0).replace("/0/", "/([0-9]{1,18})/", 1)
    found = connection.exec_driver_sql(_OLDER, {"pattern": f"^{pattern}", "epoch": epoch}).all()
    denied = ""
    for pid, application, user in found:
        try:
            connection.exec_driver_sql(_END, {"pid": pid, "application": application})
            connection.commit()
            log.info("%s: ended a session of an older epoch, pid %d, user %s", name, pid, user)
        except DBAPIError as error:
            if code_of(error) != _MUST_NOT:
                raise
            connection.rollback()
            denied = (
                f"session {pid} of an older epoch belongs to the role {user}, and this one may not end it: "
                "GRANT pg_signal_backend TO CURRENT_USER"
            )
    return denied
