"""The table that a DataFrame is written to: its name, its columns, and the reasons to refuse it.

Only the database can judge types, keys and rights: `move.rehearse` asks it.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from ...database.dialects import ENGINE_OF, is_mysql
from ...errors import ConfigError
from ..sql.tables import parts_of

# A domain counts as its base type, at the lowest level; so does an array of a domain.
_POSTGRES = """
WITH RECURSIVE made_of (type, base) AS (
    SELECT oid, oid FROM pg_type WHERE typbasetype = 0::oid
    UNION ALL SELECT d.oid, base FROM pg_type d JOIN made_of ON type = d.typbasetype)
SELECT a.attname, pg_catalog.format_type(a.atttypid, -1), t.typcategory::text,
       CASE WHEN e.oid IS NULL THEN b.typname::text ELSE '_'::text || e.typname::text END,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AND t.typdefault IS NULL,
       a.attgenerated <> '' OR a.attidentity = 'a', t.typtype = 'd'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    JOIN made_of one ON one.type = t.oid JOIN pg_type b ON b.oid = one.base
    LEFT JOIN made_of each ON b.typcategory = 'A' AND each.type = b.typelem LEFT JOIN pg_type e ON e.oid = each.base
WHERE a.attrelid = pg_catalog.to_regclass(%(table)s)::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
# COPY ignores rules, and is refused by views and by row-level security. It does not count rows that a trigger (here:
# before, each row, insert) keeps out of the table.
_HOW = """
SELECT relkind = 'r', relkind IN ('r', 'p') AND NOT relhasrules AND NOT relrowsecurity AND NOT EXISTS (
    SELECT FROM pg_trigger WHERE NOT tgisinternal AND tgtype::int4 & 7 = 7 AND tgrelid IN (
        SELECT c.oid UNION SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)))
FROM pg_class c WHERE oid = pg_catalog.to_regclass(%(table)s)::oid
"""
_MYSQL = """
SELECT column_name, data_type, coalesce(character_set_name, ''),
       if(data_type = 'timestamp' AND is_nullable = 'NO' AND
          (version() LIKE '%%MariaDB%%' OR NOT @@explicit_defaults_for_timestamp), 'now', data_type),
       is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%%auto_increment%%',
       extra LIKE '%% GENERATED%%' OR extra IN ('VIRTUAL', 'PERSISTENT', 'STORED'), 0
FROM information_schema.columns WHERE table_schema = coalesce(%(schema)s, database()) AND table_name = %(table)s
ORDER BY ordinal_position
"""
# Last: true if the column, when not written, gets a value that no other row has: its next number, or NULL.
_MYSQL_UNIQUE = """
SELECT index_name, column_name, sub_part IS NULL,
       extra LIKE '%%auto_increment%%' OR (
         is_nullable = 'YES' AND extra = '' AND
         (column_default IS NULL OR version() LIKE '%%MariaDB%%' AND column_default = 'NULL'))
FROM information_schema.statistics LEFT JOIN information_schema.columns USING (table_schema, table_name, column_name)
WHERE table_schema = coalesce(%(schema)s, database()) AND table_name = %(table)s AND NOT non_unique
"""
# Foreign keys by which a DELETE changes rows of another table: that table, the key, and its action.
_CASCADES = {
    "postgresql": """
WITH RECURSIVE behind (oid) AS (
    SELECT pg_catalog.to_regclass(%(full)s)::oid
    UNION SELECT d.refobjid FROM behind JOIN pg_class v ON v.oid = behind.oid AND v.relkind = 'v'
        JOIN pg_rewrite r ON r.ev_class = v.oid JOIN pg_depend d ON d.objid = r.oid AND d.refobjid <> v.oid
        AND d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass),
parts AS (SELECT oid FROM behind UNION SELECT relid FROM behind, pg_catalog.pg_partition_tree(behind.oid))
SELECT conrelid::pg_catalog.regclass::text, conname,
       CASE confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' ELSE 'SET DEFAULT' END
FROM pg_constraint WHERE contype = 'f' AND confdeltype IN ('c', 'n', 'd')
    AND confrelid IN (SELECT oid FROM parts) AND conrelid NOT IN (SELECT oid FROM parts)
ORDER BY conparentid, 1 LIMIT 1
""",
    "mysql": """
SELECT table_name, constraint_name, delete_rule FROM information_schema.referential_constraints
WHERE unique_constraint_schema = coalesce(%(schema)s, database()) AND referenced_table_name = %(table)s
  AND delete_rule NOT IN ('RESTRICT', 'NO ACTION')
  AND NOT (constraint_schema = unique_constraint_schema AND table_name = referenced_table_name)
""",
    "sqlite": """
SELECT m.name, 'of ' || k."from", k.on_delete
FROM pragma_foreign_keys, SCHEMA.sqlite_master AS m, pragma_foreign_key_list(m.name, coalesce(:schema, 'main')) AS k
WHERE foreign_keys AND m.type = 'table' AND lower(k."table") = lower(:table)
  AND lower(m.name) <> lower(:table) AND k.on_delete NOT IN ('RESTRICT', 'NO ACTION')
""",
}
NOW = "now"
DENIED = ("42501", "1142", "1044")
"""Error codes for a missing right."""
_STRICT = {"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"}
_MAKES_NULL = "EMPTY_STRING_IS_NULL"
_MODE = """create_engine(…, connect_args={"init_command": "SET sql_mode = 'STRICT_TRANS_TABLES'"})"""
_SQLITE = (
    "SELECT name, type, '', lower(type), "
    "\"notnull\" AND dflt_value IS NULL AND NOT (pk AND upper(type) = 'INTEGER' AND max(pk) OVER () = 1), "
    "hidden IN (2, 3), 0 "
    "FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1"
)


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the table. `category`: PostgreSQL's category of its type (S text, A array), or MariaDB's character
    set; `kind`: the short name of the type; `NOW`: in MariaDB, MySQL, a type that silently makes NULL the present."""

    name: str
    type: str
    category: str
    kind: str
    is_needed: bool
    is_made_there: bool
    is_domain: bool


@dataclass(frozen=True, slots=True)
class Target:
    """A table: its name, quoted for SQL, its columns, and whether COPY has the same effect as INSERT."""

    name: str
    fields: tuple[Field, ...]
    takes_copy: bool
    is_alone: bool
    """True if a DELETE must leave out the tables below: they inherit from it, and are no partitions."""

    def field_of(self, source: str) -> Field:
        """The column for `source` of a DataFrame: with the same name, or with one that differs only in case."""
        exactly = [each for each in self.fields if each.name == source]
        nearly = [each for each in self.fields if each.name.lower() == source.lower()]
        for found in (exactly, nearly):
            if len(found) == 1:
                return found[0]
        there = ", ".join(each.name for each in self.fields)
        raise refusal(f"the DataFrame has a column {source}, and {self.name} has {there}: rename or drop it")


def refusal(problem: str) -> ConfigError:
    return ConfigError("write_sql", problem)


def quote(engine: Engine, identifier: str) -> str:
    mark = "`" if is_mysql(engine) else '"'
    return mark + identifier.replace(mark, mark * 2) + mark


def run(connection: Connection, statement: str, values: Any = None) -> Any:
    """Run `statement` unchanged: a % in it is a placeholder only if there are `values`."""
    if values is None and connection.dialect.name != "sqlite":
        statement = statement.replace("%", "%%")
    return connection.exec_driver_sql(statement, values or ())


def wait_briefly(connection: Connection, seconds: int) -> None:
    """Raise a database error after `seconds` of waiting for a table's lock, in this transaction."""
    if connection.dialect.name == "postgresql":
        run(connection, f"SET LOCAL lock_timeout = '{seconds}s'")
    elif connection.dialect.name != "sqlite":
        connection.detach()  # there the setting belongs to the session, whose default is a day
        run(connection, f"SET lock_wait_timeout = {seconds}")


def target_of(connection: Connection, table: str) -> Target:
    """Look at `table`. Raises ConfigError if it does not exist, or cannot be rolled back."""
    *schema, name = parts_of(table, connection.dialect.name, "write_sql")
    full = ".".join(quote(connection.engine, each) for each in (*schema, name))
    fields = tuple(Field(*row[:4], *map(bool, row[4:])) for row in _columns(connection, schema, name, full))
    if not fields:
        raise refusal(f"there is no table {table}: make it first")
    is_alone, takes_copy = False, False
    if connection.dialect.name == "postgresql":
        is_alone, takes_copy = run(connection, _HOW, {"table": full}).one()
    return Target(full, fields, takes_copy, is_alone)


def _columns(connection: Connection, schema: list[str], name: str, full: str) -> Any:
    where = {"schema": schema[0] if schema else None, "table": name}
    if connection.dialect.name == "postgresql":
        return run(connection, _POSTGRES, {"table": full}).all()
    if connection.dialect.name == "sqlite":
        return run(connection, _SQLITE, (name, schema[0] if schema else "main")).all()
    found = run(connection, ENGINE_OF, (where["schema"], name)).first()
    engine = (found[0] or found[1]) if found else ""
    if engine == "VIEW":
        raise refusal(f"{name} is a view, and whether its tables can be rolled back is not known: name the table")
    if engine not in ("", "InnoDB"):
        raise refusal(f"{name} is a table of {engine}, which cannot be rolled back: make it InnoDB")
    return run(connection, _MYSQL, where).all()


def refuse_other_keys(connection: Connection, table: str, keys: Sequence[str], written: Sequence[str]) -> None:
    """Raise ConfigError unless only an index over `keys` can conflict: MariaDB and MySQL update any conflicting row."""
    *schema, name = parts_of(table, connection.dialect.name, "write_sql")
    unique: dict[str, set[str]] = defaultdict(set)
    meets_none = set[str]()
    for index, column, is_whole, is_free in run(
        connection, _MYSQL_UNIQUE, {"schema": schema[0] if schema else None, "table": name}
    ):
        unique[index].add(column if is_whole and column else "")  # a part of a column, or an expression
        if is_free and column not in written:
            meets_none.add(index)
    if set(keys) not in unique.values():
        raise no_key(table, keys)
    for index, columns in unique.items():
        if columns != set(keys) and index not in meets_none:
            raise refusal(f"{table} has another unique index, {index}, whose rows this database would update as well")


def refuse_cascades(connection: Connection, table: str, full: str) -> None:
    """An overwrite deletes and inserts: rows of other tables must not be deleted by the first. Raises ConfigError."""
    *schema, name = parts_of(table, connection.dialect.name, "write_sql")
    kind = "mysql" if is_mysql(connection) else connection.dialect.name
    where = {"schema": schema[0] if schema else None, "table": name, "full": full}
    statement = _CASCADES[kind].replace("SCHEMA", quote(connection.engine, where["schema"] or "main"))
    if found := run(connection, statement, where).first():
        child, key, action = found
        raise refusal(
            f"an overwrite deletes all rows of {table}, and with them changes rows of {child}, whose foreign key {key} "
            f'says ON DELETE {action}: use mode="upsert", or write both tables in fenced_sql'
        )


def demand_strict(connection: Connection) -> None:
    """Make sure that no value is changed silently. MariaDB and MySQL truncate values unless sql_mode is strict;
    PostgreSQL reads NULL in an array as a text if a role has it set so. Raises ConfigError."""
    if connection.dialect.name == "postgresql":
        run(connection, "SET LOCAL array_nulls = on")
    if is_mysql(connection):
        mode = str(run(connection, "SELECT @@sql_mode").scalar())
        modes = set(mode.split(","))
        if not _STRICT & modes:
            raise refusal(f"sql_mode is {mode!r}, which silently cuts off values that do not fit: {_MODE}")
        if _MAKES_NULL in modes:
            raise refusal(f"sql_mode has {_MAKES_NULL}, which silently makes '' NULL: {_MODE}")


def refuse_safe_updates(connection: Connection) -> None:
    """MariaDB, MySQL: refuse a server that refuses a DELETE of all rows, before Spark computes. Raises ConfigError."""
    if is_mysql(connection) and run(connection, "SELECT @@sql_safe_updates").scalar():
        how = """create_engine(…, connect_args={"init_command": "SET sql_safe_updates = 0"})"""
        raise refusal(f"sql_safe_updates = 1 refuses the DELETE of an overwrite: {how}")


@contextmanager
def zeros_kept(connection: Connection) -> Iterator[None]:
    """Keep zeros in the block: in an AUTO_INCREMENT column MariaDB and MySQL replace 0 by the next number."""
    if not is_mysql(connection):
        yield
        return
    mode = run(connection, "SELECT @@sql_mode").scalar()
    run(connection, "SET SESSION sql_mode = concat(@@sql_mode, ',NO_AUTO_VALUE_ON_ZERO')")
    try:
        yield
    finally:
        with suppress(SQLAlchemyError):  # the connection was lost, and its session with it
            run(connection, "SET SESSION sql_mode = %s", (mode,))


def no_key(table: str, keys: Sequence[str]) -> ConfigError:
    return refusal(f"{table} has no primary key and no unique index over {', '.join(keys)}: upsert needs one")
