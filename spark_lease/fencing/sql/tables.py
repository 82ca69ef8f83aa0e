"""The fence's own tables in a guarded database, and the statements about them in that database's SQL.

`spark_lease_fence (name, epoch)`: the highest epoch that was claimed, a row for each lease.
`spark_lease_fence_run (name, run, epoch)`: a row for each recent fenced transaction. If the answer to COMMIT was lost,
the row proves that the transaction was committed.
`spark_lease_fence_done (name, run_key, epoch, finished)`: a row for each run key that was completed with its data.
`spark_lease_fence_table (schema_name, table_name, name, allow_unleased)`: PostgreSQL's fenced tables (`fenced_list`).
The session's search path finds them all, in its default schema.
"""

import re
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    Text,
    any_,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
)
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect

from ...config.urls import redacted
from ...database.dialects import BACKENDS, is_mysql
from ...errors import ConfigError
from ...stores.sql.schema import NAME, creation
from ...stores.sql.words import Words

FENCE = Table(
    "spark_lease_fence",
    MetaData(),
    Column("name", NAME, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)
RUN = Table(
    "spark_lease_fence_run",
    MetaData(),
    Column("name", NAME, primary_key=True),
    Column("run", Words(32), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
)
DONE = Table(
    "spark_lease_fence_done",
    MetaData(),
    Column("name", NAME, primary_key=True),
    Column("run_key", NAME, primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("finished", BigInteger, nullable=False),  # milliseconds since 1970, by the database's clock
)
FENCE_TABLES = (FENCE, RUN, DONE)
FENCED = Table(
    "spark_lease_fence_table",
    MetaData(),
    Column("schema_name", Text, primary_key=True),
    Column("table_name", Text, primary_key=True),
    Column("name", NAME, nullable=False),
    Column("allow_unleased", Boolean, nullable=False),
)

_PART = re.compile(r'"(?:[^"\0]|"")+"|`(?:[^`\0]|``)+`|[^."`\s\0]+')
NO_EPOCH = 0
"""Stored for a run that was looked up and not found: its transaction can no longer commit."""


def where_is(engine: Engine) -> str:
    """The database, without credentials."""
    url = engine.url.set(drivername=engine.url.get_backend_name())
    return redacted(url.render_as_string(hide_password=True))


def refuse_unknown(engine: Engine) -> None:
    """Raise ConfigError for a database that cannot keep a fence."""
    if not isinstance(engine, Engine):
        raise ConfigError(
            "fence", f"{type(engine).__name__} cannot be fenced: give what SQLAlchemy's create_engine() makes"
        )
    if engine.dialect.is_async:  # its commits and rollbacks would have to be awaited
        raise ConfigError(
            "fence", "an asynchronous driver cannot be fenced: give an engine with another, such as psycopg2"
        )
    if engine.dialect.name not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise ConfigError("fence", f"{engine.dialect.name} is no database that is known here: {known}")
    if engine.dialect.name == "postgresql" and engine.driver not in BACKENDS["postgresql"].drivers:
        raise ConfigError("fence", f"the driver {engine.driver} is not known here: use psycopg2 or psycopg")
    if engine.dialect.name == "sqlite" and (
        engine.url.database in (None, "", ":memory:") or "mode=memory" in str(engine.url)
    ):
        raise ConfigError("fence", "a SQLite database in memory is seen by this process alone: it needs no fence")


def parts_of(table: str, dialect: str, key: str) -> list[str]:
    """Schema, if given, and name: quoted parts unchanged, others in lower case for PostgreSQL.

    Raises ConfigError, about `key`.
    """
    parts = _PART.findall(table)
    if ".".join(parts) != table or not 1 <= len(parts) <= 2:
        raise ConfigError(key, f'{table!r} is no name of a table, like flights, public.flights or "My Table"')
    return [_plain(each, dialect) for each in parts]


_FOLDED = str.maketrans(ascii_uppercase, ascii_lowercase)
"""PostgreSQL leaves other capitals unchanged in encodings with several bytes for a character."""


def _plain(part: str, dialect: str) -> str:
    if part[0] in '"`':
        return part[1:-1].replace(part[0] * 2, part[0])
    return part.translate(_FOLDED) if dialect == "postgresql" else part


def tables_sql(dialect: Dialect, tables: Sequence[Table] = FENCE_TABLES) -> Sequence[str]:
    """The statements that make the tables."""
    return [creation(dialect, each) for each in tables]


_OTHER_ENGINE = (
    "SELECT table_name, engine FROM information_schema.tables WHERE table_schema = database() "
    "AND table_name IN (%s, %s, %s) AND engine <> 'InnoDB' ORDER BY table_name"
)
_CLUSTERS = {("wsrep_on", "ON"): "Galera", ("group_replication_single_primary_mode", "OFF"): "group replication"}
_CLUSTERED = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')"


def look_at_server(connection: Connection) -> str:
    """MariaDB, MySQL: what to do about a fence that would not hold, because a table has no row locks, or the server
    knows only its own locks. "" if the fence holds. Raises DBAPIError."""
    if connection.dialect.name == "sqlite":
        return ""
    found = connection.exec_driver_sql(_OTHER_ENGINE, (FENCE.name, RUN.name, DONE.name)).first()
    if found:
        return f"{found[0]} is kept by {found[1]}: run ALTER TABLE {found[0]} ENGINE=InnoDB"
    if "ORACLE" in str(connection.exec_driver_sql("SELECT @@sql_mode").scalar()).split(","):
        return "sql_mode has ORACLE, in which check and COMMIT cannot be one statement: connect without it"
    settings = {(name.lower(), value.upper()) for name, value in connection.exec_driver_sql(_CLUSTERED).all()}
    cluster = next((each for setting, each in _CLUSTERS.items() if setting in settings), "")
    if cluster:  # a claim on one node does not conflict with a former master's commit on another
        return (
            f"this server is a node of a cluster ({cluster}) that writes on several nodes, and the other nodes do "
            "not see a fence's lock: the fenced tables must be on a server that alone accepts writes"
        )
    return ""


def raise_epoch(engine: Engine, name: str, epoch: int) -> Any:
    """The statement that raises the epoch of `name`, and keeps a higher one. It is idempotent."""
    new = _insert(engine)(FENCE).values({"name": name, "epoch": epoch})
    if is_mysql(engine):
        return new.on_duplicate_key_update(epoch=func.greatest(FENCE.c.epoch, epoch))
    return new.on_conflict_do_update(
        index_elements=["name"], set_={"epoch": epoch}, where=FENCE.c.epoch < new.excluded.epoch
    )


def _insert(engine: Engine) -> Any:
    """The database's own INSERT, which can define what happens if the row exists."""
    return {"postgresql": postgresql.insert, "sqlite": sqlite.insert}.get(engine.dialect.name, mysql.insert)


def read_epoch(name: str) -> Any:
    return select(FENCE.c.epoch).where(FENCE.c.name == name)


def insert_run(engine: Engine, values: dict[str, Any]) -> Any:
    """The statement that writes a run, unless the row exists. It waits for an open transaction with the same row."""
    if is_mysql(engine):
        return insert(RUN).values(values).prefix_with("IGNORE")
    return _insert(engine)(RUN).values(values).on_conflict_do_nothing()


def forget_runs(engine: Engine, name: str, runs: Sequence[str]) -> Any:
    these: Any = RUN.c.run.in_(runs)
    if engine.dialect.name == "postgresql":  # one parameter instead of one for each run
        these = cast(RUN.c.run, Text) == any_(literal(runs, postgresql.ARRAY(Text)))
    return delete(RUN).where(RUN.c.name == name, these)
