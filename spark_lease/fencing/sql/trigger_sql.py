"""The SQL that fences a table of PostgreSQL, as text: asks no database. `triggers.py` runs it."""

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy.dialects import postgresql

from .session import setting_of
from .tables import FENCE, FENCE_TABLES, FENCED, parts_of, tables_sql

_DIALECT: Any = postgresql.dialect  # SQLAlchemy 2.0 has no type for it
UNLEASED, OLDER = "SL001", "SL002"
"""SQLSTATE of a refusal: the session carries no epoch; its epoch is not the newest."""
TRIGGER = "spark_lease"
_WRITES = "INSERT OR UPDATE OR DELETE OR TRUNCATE"
_FUNCTION = """
CREATE OR REPLACE FUNCTION {schema}spark_lease_check() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $check$
DECLARE
    mine text := current_setting(TG_ARGV[1], true);
    newest bigint;
    hint text := 'Another master has claimed the database since: end this program. If none is at work, epochs began '
        || 'anew: spark-lease fence forget --lease ' || quote_literal(TG_ARGV[0]);
BEGIN
    IF coalesce(mine, '') = '' THEN
        IF TG_ARGV[2] = 'allow unleased' THEN
            RETURN NULL;
        END IF;
        RAISE EXCEPTION 'spark_lease: %.% is written only under the lease %, and this session carries no epoch of it',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = '{unleased}',
            HINT = 'Start the program by: spark-lease run --lease ' || TG_ARGV[0] || ' -- PROGRAM'
                || ' (options in the URL of its connection replace PGOPTIONS, which carries the epoch)';
    END IF;
    SELECT epoch INTO newest FROM {schema}{fence} WHERE name = TG_ARGV[0] FOR SHARE;
    IF newest::text IS DISTINCT FROM mine THEN
        IF mine ~ '^[0-9]{{1,18}}$' THEN
            IF mine::bigint > coalesce(newest, 0) THEN
                hint := 'This master has not claimed this database: set fence_url (SPARK_LEASE_FENCE_URL) for every '
                    || 'job of the lease';
            END IF;
        END IF;
        RAISE EXCEPTION 'spark_lease: fenced, %.% was claimed under epoch % of the lease %, and mine is %',
            TG_TABLE_SCHEMA, TG_TABLE_NAME, coalesce(newest::text, 'none'), TG_ARGV[0], mine USING ERRCODE = '{older}',
            HINT = hint;
    END IF;
    RETURN NULL;
END
$check$"""
_PLAIN = re.compile("[a-z_][a-z0-9_]*")
NO_PATH = "SET LOCAL search_path = pg_catalog, pg_temp"
"""Otherwise PostgreSQL could run, with our rights, a function or operator that another role has made in a schema of the
search path (CVE-2018-1058)."""
_REFUSE_OTHERS = """DO $fence$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.oid::regclass::text AS name, c.relowner AS owner FROM pg_class c WHERE c.oid IN (
            'public.spark_lease_fence'::regclass, 'public.spark_lease_fence_run'::regclass,
            'public.spark_lease_fence_done'::regclass, 'public.spark_lease_fence_table'::regclass)
        UNION ALL SELECT p.oid::regprocedure::text, p.proowner FROM pg_proc p
            WHERE p.oid = 'public.spark_lease_check()'::regprocedure
        UNION ALL SELECT 'the schema public', n.nspowner FROM pg_namespace n WHERE n.oid = 'public'::regnamespace
    LOOP
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = found.owner AND {trusted}) THEN
            RAISE EXCEPTION '% belongs to %, whose code would run with the rights of all who write to the table: '
                'have a superuser own it, or the owner of the table or database', found.name, found.owner::regrole;
        END IF;
    END LOOP;
END
$fence$"""


# The cascaded writes of a foreign key run as the table's owner.
_GRANT_TO_OWNERS = """DO $fence$
DECLARE
    owner regrole;
BEGIN
    FOR owner IN
        WITH RECURSIVE found (oid) AS (
            SELECT {table}::regclass::oid
            UNION SELECT i.inhrelid FROM pg_inherits i JOIN found ON i.inhparent = found.oid
        ) SELECT DISTINCT c.relowner::regrole FROM pg_class c JOIN found ON found.oid = c.oid
    LOOP
        EXECUTE format('GRANT SELECT, UPDATE ON public.{fence} TO %s', owner);
    END LOOP;
END
$fence$"""


def trusted(table: str) -> str:
    """SQL: may role `r` own code that runs with the rights of others, as a trigger does? `table` is SQL for an oid.

    True for superusers, this role, and the owners of the database and of that table.
    """
    return f"""(r.rolsuper OR r.rolname IN (current_user, 'pg_database_owner')
 OR r.oid = (SELECT datdba FROM pg_database WHERE datname = current_database())
 OR r.oid = (SELECT relowner FROM pg_class WHERE oid = {table}))"""


def statements_of(table: str, lease: str, *, allow_unleased: bool = False) -> list[str]:
    """The SQL that fences `table`, for a DBA to read and run; the fence is in schema public. Raises ConfigError."""
    made = [each.replace("EXISTS ", "EXISTS public.", 1) for each in tables_sql(_DIALECT(), (*FENCE_TABLES, FENCED))]
    names = parts(table)
    names = names if len(names) > 1 else ["public", *names]
    name, how = spelled(names), ("public.", lease, allow_unleased)
    done = [*made, function_sql("public."), *trigger_sql(name, *how), _trigger_below(name, *how)]
    done.append(_GRANT_TO_OWNERS.format(table=literal(name), fence=FENCE.name))
    fence = ", ".join(f"public.{each.name}" for each in FENCE_TABLES)
    grant = f"-- For the role of the job:\n-- GRANT SELECT, INSERT, UPDATE, DELETE ON {fence} TO …"
    grant += f"\n-- GRANT SELECT ON public.{FENCED.name} TO …"
    refuse_others = _REFUSE_OTHERS.format(trusted=trusted(f"{literal(name)}::regclass"))
    noted = enlist_sql(f"public.{FENCED.name}", names, lease, allow_unleased)
    return ["BEGIN", NO_PATH, *done, refuse_others, noted, f"{grant}\nCOMMIT"]


def function_sql(schema: str) -> str:
    """The statement that makes the trigger's function; `schema` is quoted, and ends with a dot."""
    names = {"schema": schema, "fence": FENCE.name}
    return _FUNCTION.format(**names, unleased=UNLEASED, older=OLDER).strip()


def trigger_sql(name: str, schema: str, lease: str, allow_unleased: bool) -> list[str]:
    """The statements that make the trigger: it calls that function before each write to table `name` (quoted)."""
    # ALWAYS: otherwise session_replication_role = replica, which loaders set for speed, would bypass the trigger.
    parameters = (lease, setting_of(lease), "allow unleased" if allow_unleased else "refuse unleased")
    arguments = ", ".join(literal(each) for each in parameters)
    return [
        f"DROP TRIGGER IF EXISTS {TRIGGER} ON {name}",
        f"CREATE TRIGGER {TRIGGER} BEFORE {_WRITES} ON {name} FOR EACH STATEMENT "
        f"EXECUTE FUNCTION {schema}spark_lease_check({arguments})",
        f"ALTER TABLE {name} ENABLE ALWAYS TRIGGER {TRIGGER}",
    ]


def enlist_sql(fenced: str, table: Sequence[str], lease: str, allow_unleased: bool) -> str:
    """The statement that adds `table` (schema and name), fenced under `lease`, to the list `fenced`."""
    # Cast to name, as PostgreSQL truncates a name that is too long.
    values = ", ".join([*(f"{literal(each)}::name" for each in table), literal(lease), str(allow_unleased).lower()])
    return (
        f"INSERT INTO {fenced} (schema_name, table_name, name, allow_unleased) VALUES ({values}) "
        "ON CONFLICT (schema_name, table_name) DO UPDATE SET name = EXCLUDED.name, "
        "allow_unleased = EXCLUDED.allow_unleased"
    )


def _trigger_below(name: str, *how: Any) -> str:
    """`trigger_sql` for the partitions of `name` and the tables that inherit from it, which the SQL itself looks up."""
    statements = [each.replace("%", "%%").replace("\0", "%s") for each in trigger_sql("\0", *how)]
    done = "\n".join(f"        EXECUTE format({literal(each)}, below);" for each in statements)
    tag = "$fence$"
    while tag in done:
        tag = f"{tag[:-1]}_$"
    return f"""DO {tag}
DECLARE
    below regclass;
BEGIN
    FOR below IN
        WITH RECURSIVE found (oid) AS (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = {literal(name)}::regclass
            UNION SELECT i.inhrelid FROM pg_inherits i JOIN found ON i.inhparent = found.oid
        ) SELECT oid::regclass FROM found
    LOOP
{done}
    END LOOP;
END
{tag}"""


def parts(table: str) -> list[str]:
    """Split `table` into schema, if given, and name. Raises ConfigError."""
    return parts_of(table, "postgresql", "table")


def spelled(names: Sequence[str]) -> str:
    """Join `names`, quoted for SQL."""
    return ".".join(quoted(each) for each in names)


def readable(schema: str, table: str) -> str:
    """The full name for people: quotes only where they are needed."""
    return ".".join(each if _PLAIN.fullmatch(each) else quoted(each) for each in (schema, table))


def quoted(identifier: str) -> str:
    """One name, quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    # A trigger takes only literals. In a plain one, a backslash's meaning depends on standard_conforming_strings.
    doubled = text.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"
