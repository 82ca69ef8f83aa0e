"""PostgreSQL: fenced tables whose trigger goes by another fence than the one that this role finds.

A fence is found by the search path. A claim of one that no trigger looks at would hold back nobody.
"""

from __future__ import annotations

from sqlalchemy import Connection

from .sql_table import FENCE

# The lease is the first of a trigger's arguments, each of which ends with a zero byte (pg_trigger.tgargs).
_ASTRAY = """
SELECT DISTINCT n.nspname FROM pg_trigger t
JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.tgname = 'spark_lease' AND NOT t.tgisinternal AND p.proname = 'spark_lease_check'
AND substring(t.tgargs FROM 1 FOR position('\\x00'::bytea IN t.tgargs) - 1)
    = convert_to(%(name)s, getdatabaseencoding())
AND n.oid IS DISTINCT FROM (SELECT c.relnamespace FROM pg_class c WHERE c.oid = to_regclass(%(fence)s))
"""


def look_astray(connection: Connection, name: str) -> str:
    """What is wrong, and what to do about it; "" if nothing is. Raises DBAPIError."""
    found = connection.exec_driver_sql(_ASTRAY, {"name": name, "fence": FENCE.name}).scalars().all()
    if not found:
        return ""
    schemas = " and ".join(f'"{each}"' for each in found)
    return (
        f"fenced tables of {name} go by the fence in schema {schemas}, which this role's search_path does not find: "
        f"set search_path = {schemas.replace(' and ', ', ')} for it"
    )
