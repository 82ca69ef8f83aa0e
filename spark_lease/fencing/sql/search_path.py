"""Finds PostgreSQL's fenced tables whose trigger checks another fence than the one that this role finds.

The search path decides which fence a role finds. If no trigger checks the claimed fence, the claim stops no writer. Any
role can put such a trigger on a table of its own. So a table of an untrusted role causes a warning, and stops no claim.
"""

import logging

from sqlalchemy import Connection

from .tables import FENCE
from .trigger_sql import trusted

log = logging.getLogger(__name__)

# This role also trusts roles whose rights it has. A superuser has the rights of all, and trusts none because of that.
# The lease is the first of a trigger's arguments, each of which ends with a zero byte (pg_trigger.tgargs).
_FENCED = f"""
WITH trusted AS (
  SELECT r.oid FROM pg_roles r, pg_roles me WHERE me.rolname = current_user
    AND ({trusted("pg_catalog.to_regclass(%(fence)s)::oid")}
      OR (NOT me.rolsuper AND pg_catalog.pg_has_role(me.oid, r.oid, 'MEMBER'))))
SELECT c.relowner IN (SELECT oid FROM trusted)
  OR n.oid = (SELECT relnamespace FROM pg_class WHERE oid = pg_catalog.to_regclass(%(fence)s)::oid) AS counts,
  p.proowner IN (SELECT oid FROM trusted) AND n.nspowner IN (SELECT oid FROM trusted) AS is_safe,
  n.nspname AS schema, pg_catalog.format('%%I.%%I', cn.nspname, c.relname) AS fenced,
  pg_get_userbyid(c.relowner) AS owner
FROM pg_trigger t
JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace cn ON cn.oid = c.relnamespace
JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgname = 'spark_lease' AND NOT t.tgisinternal AND p.proname = 'spark_lease_check'
AND c.relpersistence <> 't'
AND substring(t.tgargs FROM 1 FOR greatest(position(pg_catalog.decode('00', 'hex') IN t.tgargs) - 1, 0))
    = pg_catalog.convert_to(%(name)s, pg_catalog.getdatabaseencoding())
"""
_ASTRAY = f"""{_FENCED}
AND n.oid IS DISTINCT FROM (SELECT f.relnamespace FROM pg_class f WHERE f.oid = pg_catalog.to_regclass(%(fence)s)::oid)
ORDER BY fenced
"""

_PATH = """
SELECT pg_catalog.to_regclass(%(fence)s) IS NOT NULL, pg_catalog.current_setting('search_path')
"""

_ANY = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = %(fence)s)
  OR EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgname = 'spark_lease')
"""


def is_without_any_fence(connection: Connection) -> bool:
    """True if no schema has a fence, or a fenced table. Raises DBAPIError.

    It looks in all schemas, because a session opened before `ALTER ROLE … SET search_path` still uses the old path.
    """
    return not connection.exec_driver_sql(_ANY, {"fence": FENCE.name}).scalar()


def has_fence(connection: Connection, name: str) -> bool:
    """True if this role may read the fence that it finds, or must: tables are fenced for lease `name`.

    A fence that only other teams use does not count. Raises DBAPIError."""
    there = "SELECT pg_catalog.has_table_privilege(pg_catalog.to_regclass(%(fence)s)::oid, 'SELECT')"
    if connection.exec_driver_sql(there, {"fence": FENCE.name}).scalar():
        return True
    found = connection.exec_driver_sql(_FENCED, {"name": name, "fence": FENCE.name}).all()
    return any(each.counts for each in found)


def mismatch(connection: Connection, name: str) -> str:
    """The problem, and what to do about it; "" if there is none. Raises DBAPIError."""
    found = connection.exec_driver_sql(_ASTRAY, {"name": name, "fence": FENCE.name}).all()
    for each in found:
        if not each.counts:
            log.warning(
                "%s: %s is fenced by another fence than this role finds, and not counted: its owner %s is neither this "
                "role, nor one whose rights it has, nor the owner of the database or of the fence. If this lease "
                "writes to it, change its owner",
                *(name, each.fenced, each.owner),
            )
    counted = [each for each in found if each.counts]
    if unsafe := [each.fenced for each in counted if not each.is_safe]:
        return f"{', '.join(unsafe)}: fenced by code of a role that is not trusted: run spark-lease fence add again"
    if not counted:
        return ""
    schemas = [f'"{each}"' for each in dict.fromkeys(each.schema for each in counted)]
    found_first, path = connection.exec_driver_sql(_PATH, {"fence": FENCE.name}).one()
    wanted = [*schemas, path] if found_first else [path, *schemas]  # the path must find the tables of the lease as well
    return (
        f"fenced tables of {name} use the fence in schema {' and '.join(schemas)}, which this role's search_path "
        f"does not find: set search_path = {', '.join(filter(None, wanted))} for it"
    )
