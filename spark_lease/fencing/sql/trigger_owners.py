"""Which roles may own the code that a fenced table of PostgreSQL runs.

A trigger runs its function, and all that its function calls, with the rights of the role that writes to the table.
"""

from __future__ import annotations

from sqlalchemy import Connection

from ...errors import ConfigError
from .tables import FENCE_TABLES, FENCED
from .trigger_sql import function_sql

_TRUSTED = """
(r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner')
 OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())
 OR r.oid = (SELECT relowner FROM pg_class WHERE oid = %(table)s::int8::oid))"""
_SCHEMA_THERE = f"""
SELECT {_TRUSTED}, r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
WHERE n.oid = to_regnamespace(%(name)s)
"""
_FUNCTION_THERE = f"""
SELECT p.prosrc, l.lanname = 'plpgsql' AND NOT p.prosecdef AND p.proconfig = ARRAY['search_path=pg_catalog, pg_temp'],
       {_TRUSTED}, r.rolname
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_roles r ON r.oid = p.proowner
WHERE p.oid = to_regprocedure(%(name)s)
"""
_FENCE_THERE = f"""
SELECT c.relkind = 'r' AND NOT c.relrowsecurity AND NOT c.relhasrules AND {_TRUSTED}, r.rolname
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass(%(name)s)
"""


def function_if_needed(
    connection: Connection, schema: str, oid: int, table: str, *, may_be_older: bool = False
) -> list[str]:
    """What makes the trigger's function, for the table of that `oid`; nothing where it is there already.

    Raises ConfigError where it, or the fence, belongs to a role whose code would run with the rights of all who write
    to the table.
    """
    wanted = function_sql(schema)
    tables = [(_FENCE_THERE, f"{schema}{each.name}") for each in (*FENCE_TABLES, FENCED)]
    for query, name in (
        (_SCHEMA_THERE, schema.removesuffix(".")),
        *tables,
        (_FUNCTION_THERE, f"{schema}spark_lease_check()"),
    ):
        row = connection.exec_driver_sql(query, {"name": name, "table": oid}).first()
        if row is None:
            continue
        *source, is_trusted, owner = row
        if not is_trusted:
            problem = f"{name} belongs to the role {owner}, whose code would run with the rights of all who write to "
            problem += f"{table}: have a superuser own it, or the owner of that table or database"
            raise ConfigError("fence", problem)
        if source and (source[0] == wanted.split("$check$")[1] or may_be_older) and source[1]:
            return []
    return [wanted]
