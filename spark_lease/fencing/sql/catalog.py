"""Reads in PostgreSQL's catalogue about a table that is, or will be, fenced, and about the tables above and below it.

All queries run without the role's search path, in a transaction that has called `leave_path`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from ...errors import ConfigError
from .tables import FENCE, FENCE_TABLES, FENCED, where_is
from .trigger_sql import NO_PATH, TRIGGER, function_sql, parts, quoted, readable, spelled, trusted

# A trigger's arguments: each ends with a zero byte, in the database's encoding (PostgreSQL documentation,
# pg_trigger.tgargs).
_ARGUMENTS = """ARRAY(
    SELECT convert_from(substring(t.tgargs FROM at - size + 1 FOR size - 1), getdatabaseencoding()) FROM (
        SELECT at, at - coalesce(lag(at) OVER (ORDER BY at), 0) AS size
        FROM generate_series(1, octet_length(t.tgargs)) AS at WHERE get_byte(t.tgargs, at - 1) = 0) AS found
    ORDER BY at)"""
_LOOK = f"""
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text,
  {_ARGUMENTS}, pg_has_role(c.relowner, 'USAGE'),
  coalesce(t.tgenabled::text, ''), coalesce(fn.nspname, '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = '{TRIGGER}' AND NOT t.tgisinternal
LEFT JOIN pg_proc f ON f.oid = t.tgfoid LEFT JOIN pg_namespace fn ON fn.oid = f.pronamespace
WHERE """
# Partitions and inheriting tables, at every level: pg_inherits has both. Temporary tables belong to one session.
_BELOW = """c.relpersistence <> 't' AND c.oid IN (WITH RECURSIVE below (oid) AS (
    SELECT %(oid)s::int8::oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN below ON i.inhparent = below.oid
) SELECT oid FROM below)"""
_ABOVE = """c.oid IN (WITH RECURSIVE above (oid) AS (
    SELECT i.inhparent FROM pg_inherits i WHERE i.inhrelid = %(oid)s::int8::oid
    UNION SELECT i.inhparent FROM pg_inherits i JOIN above ON i.inhrelid = above.oid
) SELECT oid FROM above)"""
_TRUSTED = trusted("%(table)s::int8::oid")
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
_OWNERS = """
WITH owner AS (SELECT DISTINCT c.relowner AS oid FROM pg_class c WHERE c.oid = ANY (%(tables)s::int8[]::oid[]))
SELECT format('GRANT SELECT, UPDATE ON %%s TO %%s', %(fence)s::text, oid::regrole) FROM owner
WHERE NOT (has_table_privilege(oid, to_regclass(%(fence)s), 'SELECT')
       AND has_table_privilege(oid, to_regclass(%(fence)s), 'UPDATE'))
UNION ALL SELECT format('GRANT USAGE ON SCHEMA %%s TO %%s', %(schema)s::text, oid::regrole) FROM owner
WHERE NOT has_schema_privilege(oid, to_regnamespace(%(schema)s), 'USAGE')
"""
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True)
class Found:
    """A table and the trigger that fences it, if any: the arguments, and the schema (quoted) of its function."""

    oid: int
    schema: str
    table: str
    kind: str
    arguments: tuple[str, ...]
    owned: bool
    enabled: str
    """A: always. D, R: the owner has switched it off. O: switched on again, but not ALWAYS (pg_trigger.tgenabled)."""
    fence: str

    @property
    def name(self) -> str:
        """Quoted, for SQL."""
        return spelled([self.schema, self.table])

    @property
    def readable(self) -> str:
        """For people, who may use it as input."""
        return readable(self.schema, self.table)


_KEPT = "spark_lease_path"


def leave_path(connection: Connection) -> None:
    """Leave the role's search_path, for this transaction only; its schemas are kept for `path_of`."""
    found = connection.exec_driver_sql("SELECT pg_catalog.current_schemas(false)::pg_catalog.text[]")
    connection.info[_KEPT] = found.scalar()
    connection.exec_driver_sql(NO_PATH)


def path_of(connection: Connection) -> list[str]:
    found: list[str] = connection.info[_KEPT]
    return found


def schemas_of_lists(connection: Connection) -> list[str]:
    """The schemas that have a list of fenced tables, quoted. The list may belong to any role."""
    query = "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relname = %(name)s"
    return [quoted(each) for each in connection.exec_driver_sql(query, {"name": FENCED.name}).scalars()]


def schema_of_fence(connection: Connection) -> str:
    """The schema (quoted) of the fence that a claim of this role would find, or in which it would make one."""
    path = [quoted(each) for each in path_of(connection)]
    for schema in path:
        if connection.exec_driver_sql("SELECT to_regclass(%(name)s)", {"name": f"{schema}.{FENCE.name}"}).scalar():
            return schema
    if not path:
        raise ConfigError("table", "this role has no schema in its search_path, and the fence has to be in one")
    return path[0]


def look_for(connection: Connection, table: str) -> Found | None:
    """The relation of that name, in the role's own search_path if it has no schema. Raises ConfigError for no name."""
    # to_regclass reads quotes as SQL does, and returns NULL if there is no such relation.
    names = parts(table)
    places = [names] if len(names) > 1 else [[schema, *names] for schema in path_of(connection)]
    for each in places:
        if found := _look(connection, "c.oid = to_regclass(%(name)s)", {"name": spelled(each)}):
            return found[0]
    return None


def find(connection: Connection, table: str) -> Found:
    """A table that this role may fence. Raises ConfigError."""
    found = look_for(connection, table)
    if not found:
        raise ConfigError("table", f"there is no {table} in {where_is(connection.engine)}")
    if found.kind not in "rp":
        raise ConfigError("table", f"{table} is {_KINDS.get(found.kind, 'no table')}: fence the tables behind it")
    if not found.owned:
        raise ConfigError(
            "table", f"this role does not own {table}: give its owner what `spark-lease fence add --print-sql` prints"
        )
    return found


def refuse_below_others(connection: Connection, found: Found, table: str, lease: str) -> None:
    """Raise ConfigError for a table below others: a write through those, even to its rows, runs no trigger of it."""
    for above in those_above(connection, found):
        if above.kind == "p":
            if not those_above(connection, above):
                raise ConfigError("table", f"{table} is a partition: fence its root {above.readable}")
        elif above.arguments[:1] != (lease,):
            problem = f"{table} inherits from {above.readable}, through which its rows are written: fence that"
            raise ConfigError("table", problem)


def those_above(connection: Connection, found: Found) -> list[Found]:
    return _look(connection, _ABOVE, {"oid": found.oid})


def with_those_below(connection: Connection, found: Found) -> list[Found]:
    return _look(connection, _BELOW, {"oid": found.oid})


def all_fenced(connection: Connection) -> list[Found]:
    """All fenced tables, without temporary ones and triggers that name no lease: any role may make those."""
    found = _look(connection, "t.tgname IS NOT NULL AND c.relpersistence <> 't'", {})
    return [each for each in found if each.arguments]


def function_if_needed(connection: Connection, schema: str, found: Found, *, may_be_older: bool = False) -> list[str]:
    """The statement that makes the trigger's function in `schema`; empty if the function exists.

    Raises ConfigError if the function, or the fence, belongs to an untrusted role: its code would run with the rights
    of every role that writes to the table.
    """
    wanted = function_sql(f"{schema}.")
    for query, name in (
        (_SCHEMA_THERE, schema),
        *((_FENCE_THERE, f"{schema}.{each.name}") for each in (*FENCE_TABLES, FENCED)),
        (_FUNCTION_THERE, f"{schema}.spark_lease_check()"),
    ):
        row = connection.exec_driver_sql(query, {"name": name, "table": found.oid}).first()
        if row is None:
            continue
        *source, is_trusted, owner = row
        if not is_trusted:
            problem = f"{name} belongs to the role {owner}, whose code would run with the rights of all who write to "
            problem += f"{found.readable}: have a superuser own it, or the owner of that table or database"
            raise ConfigError("fence", problem)
        if source and (source[0] == wanted.split("$check$")[1] or may_be_older) and source[1]:
            return []
    return [wanted]


def grants_to_owners(connection: Connection, schema: str, tables: Sequence[Found]) -> list[str]:
    """The grants that the owners of `tables` lack to read the fence: the cascaded writes of a foreign key, and SECURITY
    DEFINER functions, run as the owner."""
    values = {"tables": [each.oid for each in tables], "schema": schema, "fence": f"{schema}.{FENCE.name}"}
    return list(connection.exec_driver_sql(_OWNERS, values).scalars())


def _look(connection: Connection, which: str, values: dict[str, object]) -> list[Found]:
    rows = connection.exec_driver_sql(f"{_LOOK}{which} ORDER BY 2, 3", values).all()
    return [
        Found(oid, schema, table, kind, tuple(arguments), owned, is_off, quoted(fence) if fence else "")
        for oid, schema, table, kind, arguments, owned, is_off, fence in rows
    ]
