"""Statements that note a change of hands beside the lease, by the very statement, or transaction, that makes it.

It goes to the server in one message: a contender that is frozen on the way leaves no row locked. PostgreSQL: the
statement writes both. MariaDB: a block of statements. SQLite: triggers of this connection alone. What has neither
(MySQL, statements of the configuration) is noted right after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Engine, Select, Table, Text, bindparam, cast, func, insert, literal_column, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.elements import ColumnElement

from ...config.settings import BROKER
from ...database.dialects import Backend, backend_of
from ...election.journal_entries import ENDED, GRANT

NOTED = {"insert": GRANT, "take": GRANT, "release": ENDED}
"""The statements that change hands, and the kind of their notes."""
_SHA, _TEXT = "spark_lease_sha256", "spark_lease_note"


def in_one_statement(notes: Table, backend: Backend) -> Callable[[str, Any], Any]:
    """What makes of each write one that is noted as well, for `sql_statements.statements`, on PostgreSQL."""
    now: ColumnElement[int] = literal_column(backend.now_ms)

    def combine(what: str, write: Any) -> Any:
        if what not in NOTED:
            return write
        # A release that tells others is a SELECT from what was written.
        is_told = isinstance(write, Select)
        written = write.get_final_froms()[0] if is_told else write.cte("written")
        epoch = cast(written.c.epoch, Text)
        utf8, in_hex = (literal_column(each, Text) for each in ("'UTF8'", "'hex'"))
        values: dict[str, Any] = {
            "lease": cast(bindparam("lease"), Text),
            "kind": literal_column(f"'{NOTED[what]}'"),
            "digest": func.pg_catalog.encode(func.pg_catalog.sha256(func.pg_catalog.convert_to(epoch, utf8)), in_hex),
            "item": epoch,
            "content": cast(bindparam("note"), Text) if NOTED[what] == GRANT else _timed("note", now),
            "noted": now,
        }
        seen: Any = select(*values.values()).select_from(written)
        # One under the same epoch may be left of a row that was lost: that is no reason to refuse a grant.
        insertion: Any = postgresql.insert(notes)
        noted = insertion.from_select(list(values), seen).on_conflict_do_nothing()
        result: Any = select(written.c.time, written.c.epoch)
        return (write if is_told else result).add_cte(noted.cte("noted"))

    return combine


def _timed(note: str, now: ColumnElement[int]) -> ColumnElement[str]:
    """The text that begins with the parameter `note`, an `end_prefix`, and ends with the time of the statement."""
    return cast(bindparam(note), Text) + cast(now, Text) + literal_column("'}'", Text)


def in_one_block(sql: Mapping[str, str], notes: Table, engine: Engine) -> dict[str, str]:
    """The writes among `sql`, each as a block of MariaDB that writes, notes, commits, and returns time and epoch."""
    table, now = engine.dialect.identifier_preparer.format_table(notes), backend_of(engine).now_ms
    last = "CAST(GREATEST(%(epoch)s, LAST_INSERT_ID()) AS SIGNED)"  # it would be a decimal
    released = f"CONCAT(%(note)s, {now}, '}}')"
    found = {}
    for what in NOTED:
        is_grant = NOTED[what] == GRANT
        epoch, content = (last, "%(note)s") if is_grant else ("%(epoch)s", released)
        found[what] = _BLOCK.format(
            write=sql[what],
            notes=table,
            kind=NOTED[what],
            epoch=epoch,
            content=content,
            now=now,
            time="CAST(LAST_INSERT_ID() + %(duration)s AS SIGNED)" if is_grant else "0",
        )
    return found


_BLOCK = """\
BEGIN NOT ATOMIC
  DECLARE spark_lease_rows INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  START TRANSACTION;
  {write};
  SET spark_lease_rows = ROW_COUNT();
  IF spark_lease_rows > 0 THEN
    INSERT IGNORE INTO {notes} (lease, kind, digest, item, content, noted)
    VALUES (%(lease)s, '{kind}', SHA2({epoch}, 256), {epoch}, {content}, {now});
  END IF;
  COMMIT;
  SELECT {time}, {epoch} FROM DUAL WHERE spark_lease_rows > 0;
END"""


def add_triggers(connection: Any, table: Table, notes: Table, engine: Engine, text: Callable[[], str]) -> None:
    """Have this connection to SQLite, and no other, note what it writes; `text` gives what is noted.

    Raises sqlite3.Error.
    """
    connection.create_function(_SHA, 1, digest, deterministic=True)
    connection.create_function(_TEXT, 0, text)
    quote, now = engine.dialect.identifier_preparer.quote, backend_of(engine).now_ms
    lease = f"coalesce(NEW.name, '{BROKER}')"
    released = f"{_TEXT}() || {now} || '}}'"
    for number, (event, when, kind, content) in enumerate(
        (
            ("INSERT", "NEW.broker_name IS NOT NULL", GRANT, f"{_TEXT}()"),
            ("UPDATE", "NEW.broker_name IS NOT NULL AND NEW.epoch <> OLD.epoch", GRANT, f"{_TEXT}()"),
            ("UPDATE", "NEW.broker_name IS NULL AND OLD.broker_name IS NOT NULL", ENDED, released),
        )
    ):
        connection.execute(
            f"CREATE TEMP TRIGGER IF NOT EXISTS spark_lease_{number} AFTER {event} ON main.{quote(table.name)} "
            f"WHEN {when} BEGIN INSERT OR IGNORE INTO {quote(notes.name)} (lease, kind, digest, item, content, noted) "
            f"VALUES ({lease}, '{kind}', {_SHA}(NEW.epoch), NEW.epoch, {content}, {now}); END"
        )


def afterwards(notes: Table, engine: Engine) -> dict[str, str]:
    """The statements that make one note each, for what is not noted together with its change: a release has been by
    the time at which it is noted, at the latest."""
    now: ColumnElement[int] = literal_column(backend_of(engine).now_ms)
    columns = ("lease", "kind", "digest", "item", "content")
    values: dict[str, Any] = {each: bindparam(f"note_{each}") for each in columns}
    values["noted"] = now
    released = values | {"content": _timed("note_content", now)}
    found = {"note": insert(notes).values(**values), "note release": insert(notes).values(**released)}
    return {what: str(each.compile(dialect=engine.dialect)) for what, each in found.items()}


def digest(epoch: int) -> str:
    """What stands for the key `epoch` of a note."""
    return hashlib.sha256(str(epoch).encode()).hexdigest()
