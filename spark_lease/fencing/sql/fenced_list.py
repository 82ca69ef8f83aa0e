"""The fence's list of PostgreSQL's fenced tables, so that a table that is dropped and made again is fenced again.

The list is used only if it is an ordinary table of a trusted owner: a column's type, or an index, may run its owner's
code with the rights of the reading role. The owner of the fence is trusted, because every claim reads the fence.
"""

from collections.abc import Sequence

from sqlalchemy import Connection

from ...errors import ConfigError
from .catalog import schema_of_fence
from .tables import FENCE, FENCED
from .trigger_sql import TRIGGER, enlist_sql, literal, readable, trusted

_USABLE = f"""
SELECT c.relkind = 'r' AND NOT (c.relrowsecurity OR c.relhasrules OR c.relhastriggers)
  AND {trusted("CASE WHEN %(is_claimed)s THEN to_regclass(%(fence)s) END")}
  AND (SELECT bool_and(has_table_privilege(c.oid, may)) FROM unnest(%(rights)s::text[]) AS may)
FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass(%(name)s)
"""
# Listed tables that exist without their trigger, or have a partition without it.
LOST = """
SELECT n.nspname, c.relname, f.allow_unleased, f.name FROM {fenced} f
JOIN pg_namespace n ON n.nspname = f.schema_name JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = f.table_name
WHERE %(lease)s IN ('', f.name) AND EXISTS (
    WITH RECURSIVE below (oid) AS (
        SELECT c.oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below ON i.inhparent = below.oid
    ) SELECT FROM below JOIN pg_class b ON b.oid = below.oid WHERE b.relpersistence <> 't' AND NOT EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = b.oid AND t.tgname = %(trigger)s AND NOT t.tgisinternal
          AND t.tgenabled <> 'O'))
ORDER BY 1, 2
"""
# Listed tables that do not exist: the next claim fences each once there is a table of that name again.
DROPPED = """
SELECT f.schema_name, f.table_name, f.allow_unleased, f.name FROM {fenced} f WHERE %(lease)s IN ('', f.name)
AND NOT EXISTS (SELECT FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid
    WHERE n.nspname = f.schema_name AND c.relname = f.table_name)
"""
_IS_LISTED = "SELECT FROM {fenced} WHERE schema_name = %(schema)s AND table_name = %(table)s AND name = %(lease)s"


def listed(connection: Connection, schema: str, lease: str, query: str) -> dict[tuple[str, str], tuple[bool, str]]:
    """The listed tables of one lease, or of all, that are `LOST` or `DROPPED`: `allow_unleased` and the lease of each,
    by schema and name. Raises ConfigError if this role cannot use the list."""
    if not (fenced := _usable(connection, schema, "SELECT")):
        return {}
    rows = connection.exec_driver_sql(query.format(fenced=_escaped(fenced)), {"lease": lease, "trigger": TRIGGER}).all()
    return {(each[0], each[1]): (each[2], each[3]) for each in rows}


def is_listed(connection: Connection, schema: str, table: tuple[str, str], lease: str) -> bool:
    query = _IS_LISTED.format(fenced=_escaped(f"{schema}.{FENCED.name}"))
    values = {"schema": table[0], "table": table[1], "lease": lease}
    return connection.exec_driver_sql(query, values).first() is not None


def enlist(connection: Connection, schema: str, table: tuple[str, str], lease: str, allow_unleased: bool) -> None:
    """Put a table on the list. Raises ConfigError if this role may not."""
    if fenced := _usable(connection, schema, "SELECT", "INSERT", "UPDATE"):
        connection.exec_driver_sql(_escaped(enlist_sql(fenced, table, lease, allow_unleased)))


def delist(connection: Connection, schema: str, tables: Sequence[tuple[str, str]], lease: str) -> list[str]:
    """Take `tables` off the list; returns the statement, if any of them was listed.

    Raises ConfigError if this role may not, or if a table is listed under another lease than `lease`, if given.
    """
    if not tables or not (fenced := _usable(connection, schema, "SELECT", "DELETE")):
        return []
    wanted = ", ".join(f"({literal(each)}::name, {literal(table)}::name)" for each, table in tables)
    those = f"FROM {fenced} WHERE (schema_name, table_name) IN ({wanted})"
    listed = connection.exec_driver_sql(_escaped(f"SELECT schema_name, table_name, name {those}")).all()
    for schema_name, table, name in listed:
        refuse_another(readable(schema_name, table), name, lease)
    statement = f"DELETE {those}"
    return [statement] if connection.exec_driver_sql(_escaped(statement)).rowcount else []


def refuse_another(table: str, its_lease: str, lease: str) -> None:
    """Raise ConfigError if `table` is fenced under another lease than `lease`, if given."""
    if lease not in ("", its_lease):
        raise ConfigError("on", f"{table} is written under the lease {its_lease}, not {lease}")


def _usable(connection: Connection, schema: str, *rights: str) -> str:
    """The list, if there is one; "" if not. Raises ConfigError if this role may not, or must not, use it."""
    name = f"{schema}.{FENCED.name}"
    values = {
        "name": name,
        "fence": f"{schema}.{FENCE.name}",
        "rights": list(rights),
        # The fence's owner is trusted with the list only if this role's claims read that fence.
        "is_claimed": schema == schema_of_fence(connection),
    }
    row = connection.exec_driver_sql(_USABLE, values).first()
    if row and not row[0]:
        raise ConfigError(
            "fence",
            f"GRANT {', '.join(rights)} ON {name} TO this role. If it has them: that has to be an ordinary table "
            "of the owner of the fence or of the database, or of a superuser",
        )
    return name if row else ""


def _escaped(statement: str) -> str:
    return statement.replace("%", "%%")
