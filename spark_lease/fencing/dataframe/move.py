"""Moves staged rows into the user's table in the one fenced transaction, after a rehearsal."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from ...database.connections import BINARY_LOG, database_message
from ...database.dialects import code_of, is_mysql
from ...errors import StagingLost
from ..sql.tables import where_is
from .columns import Column
from .staging import NUMBERED, staged
from .target import DENIED, NOW, Target, demand_strict, no_key, quote, refusal, run, zeros_kept

_HERE = "spark_lease_frame"
_KEYS = "spark_lease_keys"
_LONGEST = {
    f"{size}{kind}": 256**length - 1
    for length, size in ((1, "tiny"), (2, ""), (3, "medium"))
    for kind in ("text", "blob")
}
"""The most bytes that a column of these MariaDB types takes."""
_NO_SUCH_KEY = ("42P10", "ON CONFLICT clause does not match")
_LOCKED, _TOO_WIDE, _LOGGED_WITH_GTIDS = ("55P03", "1205"), "1118", "3748"
_MANY_COLUMNS = (
    "so many columns do not fit into the table in which write_sql stages them, where each text is a longtext: write "
    "fewer columns, or some of them as one JSON"
)


@dataclass(frozen=True, slots=True)
class Move:
    """What to do with staged rows. `keys`: columns of the target; empty except for upsert."""

    target: Target
    columns: Sequence[Column]
    mode: str
    keys: Sequence[str]

    def is_copied(self) -> bool:
        """True if COPY into the table itself does the same: each column is staged as its own type, or is text; and no
        column of a domain is left out, whose constraints COPY would not check."""
        is_same = all(each.staged in ("text", each.field.type) for each in self.columns)
        written = {each.field for each in self.columns}
        is_unseen = any(each.is_domain for each in self.target.fields if each not in written)
        return self.target.takes_copy and not self.keys and is_same and not is_unseen

    def statement(self, engine: Engine, source: str) -> str:
        """INSERT … SELECT. `source`: a staging table, and the condition for the rows that count."""
        names = [quote(engine, each.field.name) for each in self.columns]
        moved = ", ".join(each.moved for each in self.columns)
        insert = f"INSERT INTO {self.target.name} ({', '.join(names)}) SELECT {moved} FROM {source}"
        return insert + self._upsert(engine) if self.keys else insert

    def _upsert(self, engine: Engine) -> str:
        keys = ", ".join(quote(engine, each) for each in self.keys)
        rest = [quote(engine, each.field.name) for each in self.columns if each.field.name not in self.keys]
        if is_mysql(engine):
            first = quote(engine, self.keys[0])
            updates = ", ".join(f"{each} = VALUES({each})" for each in rest) or f"{first} = {self.target.name}.{first}"
            return f" ON DUPLICATE KEY UPDATE {updates}"
        updates = ", ".join(f"{each} = excluded.{each}" for each in rest)
        return f" ON CONFLICT ({keys}) DO " + (f"UPDATE SET {updates}" if updates else "NOTHING")


def rehearse(connection: Connection, move: Move, table: str) -> None:
    """Let the database check types, keys and rights of the move, without any rows. Raises ConfigError."""
    engine = connection.engine
    try:
        make_here(connection, move.columns)
        run(connection, f"EXPLAIN {move.statement(engine, f'{here(connection)} WHERE 1 = 1')}")
        drop_here(connection)
    except DBAPIError as error:
        if error.connection_invalidated or code_of(error) in _LOCKED:
            raise
        if any(each in (code_of(error) or "", str(error.orig)[: len(each)]) for each in _NO_SUCH_KEY):
            raise no_key(table, move.keys) from error
        problem = _MANY_COLUMNS if code_of(error) == _TOO_WIDE else database_message(engine, error)
        problem += f": {BINARY_LOG}" if code_of(error) == _LOGGED_WITH_GTIDS else ""
        raise refusal(f"{table} cannot take this DataFrame: {problem}") from error


def make_here(connection: Connection, columns: Sequence[Column]) -> None:
    demand_strict(connection)
    drop_here(connection)  # MariaDB does not roll back CREATE TEMPORARY TABLE
    numbered = f", {NUMBERED}" if is_mysql(connection) else ""
    try:
        run(connection, f"CREATE TEMPORARY TABLE {here(connection)} ({staged(columns)}{numbered})")
    except DBAPIError as error:
        if code_of(error) not in DENIED:
            raise
        database = quote(connection.engine, connection.engine.url.database or "…")
        right = f"CREATE TEMPORARY TABLES ON {database}.*" if numbered else f"TEMPORARY ON DATABASE {database}"
        problem = f"this role may not make temporary tables: GRANT {right} TO it"
        raise refusal(f"{database_message(connection.engine, error)}; {problem}") from error


def drop_here(connection: Connection) -> None:
    kind = "TEMPORARY TABLE" if is_mysql(connection) else "TABLE"
    run(connection, f"DROP {kind} IF EXISTS {here(connection)}")


def here(connection: Connection) -> str:
    """The staging table of the driver's own session: no other session can see it, or make one in its place."""
    schema = {"postgresql": "pg_temp.", "sqlite": "temp."}.get(connection.dialect.name, "")
    return schema + _HERE


def move_all(connection: Connection, move: Move, source: str, rows: int) -> None:
    """Move `rows` rows, or raise StagingLost: a server that has crashed empties its unlogged tables."""
    demand_strict(connection)
    if move.keys:
        _refuse_equal_keys(connection, move, source, rows)
    _refuse_longer(connection, move, source)
    _refuse_null(connection, move, source)
    empty(connection, move)
    with zeros_kept(connection):
        moved = run(connection, move.statement(connection.engine, source)).rowcount
    if moved != rows or move.keys:  # a trigger may keep some out; MariaDB counts an updated row twice
        refuse_less(connection, run(connection, f"SELECT count(*) FROM {source}").scalar(), rows)


def _refuse_longer(connection: Connection, move: Move, source: str) -> None:
    """Refuse values that are too long for their column. In INSERT … SELECT from one of these types to a smaller one
    MariaDB truncates them, in strict mode too, unless it converts the characters."""
    plain = ("", "utf8mb4")  # text of another character set is converted, and then MariaDB does check
    limited = [
        each
        for each in move.columns
        if each.field.kind in _LONGEST and (each.staged == "longblob" or each.field.category in plain)
    ]
    if not limited or not is_mysql(connection):
        return
    lengths = ", ".join(f"max(octet_length({each.moved}))" for each in limited)
    for each, longest in zip(limited, run(connection, f"SELECT {lengths} FROM {source}").one(), strict=True):
        if (longest or 0) > (limit := _LONGEST[each.field.kind]):
            problem = f"{each.field.name} is {each.field.kind}, which takes {limit} bytes, and a value has {longest}"
            raise refusal(problem)


def _refuse_null(connection: Connection, move: Move, source: str) -> None:
    """Refuse NULL where the server would silently store the present time."""
    for number, each in enumerate(move.columns):
        is_found = f"SELECT 1 FROM {source} AND c{number} IS NULL LIMIT 1"
        if each.field.kind == NOW and run(connection, is_found).first():
            raise refusal(f"{each.field.name} takes no NULL, and this server would store the present time instead")


def empty(connection: Connection, move: Move) -> None:
    """Delete all rows if the mode is overwrite; unlike with TRUNCATE, readers see them until COMMIT. On PostgreSQL two
    overwrites take turns: otherwise neither would delete the rows that the other inserts."""
    if move.mode == "overwrite":
        rows = f"ONLY {move.target.name}" if move.target.is_alone else move.target.name
        if connection.dialect.name == "postgresql":
            level = run(connection, "SHOW transaction_isolation").scalar()
            if level != "read committed":  # it sees rows that another committed meanwhile
                raise refusal(f"overwrite needs an engine with READ COMMITTED transactions, this one has {level}")
            run(connection, f"LOCK TABLE {rows} IN SHARE ROW EXCLUSIVE MODE")
        run(connection, f"DELETE FROM {rows}")
        # Nothing is inserted by others meanwhile: PostgreSQL's table is locked, SQLite has one writer.
        if _may_look(connection, move) and run(connection, f"SELECT 1 FROM {rows} LIMIT 1").first():
            raise refusal(
                f"an overwrite of {move.target.name} leaves rows there, kept or inserted by a trigger, or kept by "
                "row-level security: have the role delete all rows, or use another mode"
            )


def _may_look(connection: Connection, move: Move) -> bool:
    may = "SELECT pg_catalog.has_any_column_privilege(pg_catalog.to_regclass(%(table)s)::oid, 'SELECT')"
    if connection.dialect.name == "postgresql":
        return bool(run(connection, may, {"table": move.target.name}).scalar())
    return not is_mysql(connection)


def refuse_less(connection: Connection, there: int, rows: int) -> None:
    if there != rows:
        raise StagingLost(where_is(connection.engine), f"{there} of {rows} staged rows are there")


def _refuse_equal_keys(connection: Connection, move: Move, source: str, rows: int) -> None:
    """Refuse keys that are equal for the table: to it 12:00:00.1 and 12:00:00.2, or 'a' and 'A', may be the same."""
    keys = [(f"c{number}", each) for number, each in enumerate(move.columns) if each.field.name in move.keys]
    named, none = ", ".join(move.keys), " OR ".join(f"{place} IS NULL" for place, _ in keys)
    if run(connection, f"SELECT count(*) FROM {source} AND ({none})").scalar():
        raise refusal(f"the DataFrame has NULL in a key ({named}), which is equal to none")
    names = ", ".join(quote(connection.engine, each.field.name) for _, each in keys)
    places, table = ", ".join(place for place, _ in keys), move.target.name
    match connection.dialect.name:
        case "postgresql":  # it refuses by itself keys that are equal only in the table
            found = run(connection, f"SELECT count(*) FROM (SELECT DISTINCT {places} FROM {source}) AS found").scalar()
            distinct = int(found or 0)
        case "sqlite":
            distinct = _as_stored(connection, table, names, source, places)
        case _:
            distinct = _as_indexed(connection, table, names, source, places)
    if distinct < rows:
        raise refusal(f"{rows - distinct} of {rows} rows have a key ({named}) that another one has as well: keep one")


def _as_stored(connection: Connection, table: str, names: str, source: str, places: str) -> int:
    """SQLite: the number of distinct keys once they are in columns like those of `table`, in its collation, which the
    left side of a UNION decides."""
    run(connection, f"DROP TABLE IF EXISTS temp.{_KEYS}")
    run(connection, f"CREATE TEMPORARY TABLE {_KEYS} AS SELECT {names} FROM {table} LIMIT 0")
    run(connection, f"INSERT INTO temp.{_KEYS} SELECT {places} FROM {source}")
    both = f"SELECT {names} FROM {table} WHERE 0 UNION SELECT {names} FROM temp.{_KEYS}"
    found = run(connection, f"SELECT count(*) FROM ({both})").scalar()
    run(connection, f"DROP TABLE temp.{_KEYS}")
    return int(found or 0)


def _as_indexed(connection: Connection, table: str, names: str, source: str, places: str) -> int:
    """MariaDB, MySQL: how many keys a unique index over these columns of `table` accepts."""
    run(connection, f"DROP TEMPORARY TABLE IF EXISTS {_KEYS}")
    run(
        connection,
        f"CREATE TEMPORARY TABLE {_KEYS} ({NUMBERED}, UNIQUE ({names})) AS SELECT {names} FROM {table} LIMIT 0",
    )
    accepted = run(connection, f"INSERT IGNORE INTO {_KEYS} ({names}) SELECT {places} FROM {source}")
    run(connection, f"DROP TEMPORARY TABLE {_KEYS}")
    return int(accepted.rowcount)
