"""Refuses statements that would end a fenced transaction before its check, as far as their text shows that."""

import re
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event

from ...database.dialects import ENGINE_OF, is_mysql
from ...errors import ConfigError

# MariaDB and MySQL run the text in /*! … */, and MariaDB that in /*M! … */, often after a version number.
_COMMENTS = r"(?:[\s;]|/\*M?!\d*|\*/|/\*(?!M?!)(?>.*?\*/)|--[^\n]*\n|#[^\n]*\n)*"
_ENDS = re.compile(
    _COMMENTS + r"(COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|PREPARE\s+TRANSACTION|ROLLBACK(?!\s+(WORK\s+)?TO\b))\b",
    re.I | re.S,
)
# MariaDB knowledge base, "SQL statements that cause an implicit commit"; MySQL reference manual, "Statements that cause
# an implicit commit". A prepared statement may be any of them.
_DDL = re.compile(
    _COMMENTS
    + r"((CREATE|DROP)(?!\s+(OR\s+REPLACE\s+)?TEMPORARY\s+TABLES?\b)|ALTER|TRUNCATE|RENAME|GRANT|REVOKE|LOCK|UNLOCK"
    r"|ANALYZE|OPTIMIZE|REPAIR|CHECK|CACHE|LOAD\s+INDEX|FLUSH|RESET|INSTALL|UNINSTALL|IMPORT|CLONE|BACKUP|RESTART|SHUTDOWN"
    r"|(START|STOP)\s+(SLAVE|REPLICA|ALL|GROUP_REPLICATION)|CHANGE|PREPARE|EXECUTE"
    r"|SET\s+(PASSWORD|STATEMENT|DEFAULT\s+ROLE)|SET\b.*\bautocommit)\b",
    re.I | re.S,
)
_PART = r"""(?:`[^`]+`|"[^"]+"|\w+)"""
_NAME = rf"({_PART}(?:\s*\.\s*{_PART})?)"
_GAP = r"(?:\s|/\*(?>.*?\*/)|--[^\n]*\n|#[^\n]*\n)+"
_BEFORE = rf"""(?:{_GAP}|(?=[`"]))"""
_WRITES = re.compile(
    _COMMENTS + rf"(?:(?:INSERT|REPLACE)\b(?:{_GAP}(?:LOW_PRIORITY|DELAYED|HIGH_PRIORITY|IGNORE|INTO)\b)*{_BEFORE}"
    rf"|UPDATE\b(?:{_GAP}(?:LOW_PRIORITY|IGNORE)\b)*{_BEFORE}"
    rf"|DELETE\b(?:{_GAP}(?:LOW_PRIORITY|QUICK|IGNORE)\b)*(?:{_GAP}FROM\b)?{_BEFORE}"
    rf"|LOAD\s+DATA\b.*?\bINTO{_GAP}TABLE{_BEFORE})" + _NAME,
    re.I | re.S,
)
_known: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()
"""Tables of MariaDB and MySQL that were checked, and can be rolled back."""

AUTOCOMMIT = "this engine is in autocommit: there every statement is a transaction"
NO_COMMIT = "the block commits when it ends: no commit() inside"
NO_ROLLBACK = "the block rolls back when an exception leaves it: no rollback() inside"
NO_BEGIN = "the block has begun its transaction: no begin() inside, begin_nested() for a savepoint"
NO_CLOSE = "the block gives its connection back when it ends: no close() inside"
LOST = "the connection was lost inside the block, and with it the transaction"
OVER = "the transaction has ended inside the block, by itself or by a statement of it"
"""The next statement would be committed at once."""
IDLE = 0
"""A libpq connection in no transaction."""


def refuse(problem: str) -> NoReturn:
    raise ConfigError("fenced_sql", problem)


def refuse_autocommit(is_on: bool) -> None:
    if is_on:
        refuse(AUTOCOMMIT)


def refuse_end(statement: str) -> None:
    """Raise ConfigError if `statement` would end the transaction."""
    if _ENDS.match(statement):
        refuse(f"the block itself begins and ends its transaction: {statement.strip()[:40]!r}")


def watch(connection: Any) -> None:
    """From now on raise ConfigError for each statement that would end or evade the transaction, before it runs."""
    connection.watched = connection.connection.driver_connection
    if not event.contains(connection.engine, "before_cursor_execute", _look):
        event.listen(connection.engine, "before_cursor_execute", _look)


def refuse_ended(connection: Any) -> None:
    """Raise ConfigError if the transaction that is watched has ended."""
    driver = connection.watched
    if connection.closed or connection.connection.driver_connection is not driver:
        refuse(LOST)
    if (
        connection.is_over
        or (connection.dialect.name == "sqlite" and not driver.in_transaction)
        or (connection.engine.driver == "psycopg" and driver.info.transaction_status == IDLE)
    ):
        refuse(OVER)


def _look(connection: Any, cursor: Any, statement: str, *_: object) -> None:
    if not getattr(connection, "is_shut", False):
        return
    refuse_ended(connection)
    refuse_end(statement)
    if not is_mysql(connection):
        return
    if _DDL.match(statement):
        refuse(f"this database commits at {statement.strip()[:40]!r}, before the check: do it outside")
    known = _known.setdefault(connection.engine, set())
    if (written := _WRITES.match(statement)) and written[1] not in known:
        _refuse_without_rollback(connection, written[1])
        known.add(written[1])


def _refuse_without_rollback(connection: Connection, name: str) -> None:
    *schema, table = [part.strip('`"') for part in re.findall(_PART, name)]
    cursor: Any = connection.connection.cursor()
    cursor.execute(ENGINE_OF, (schema[0] if schema else None, table))
    found = cursor.fetchone()
    cursor.close()
    if found and found[0] not in (None, "InnoDB"):
        refuse(f"{name} is a table of {found[0]}, which cannot be rolled back: make it InnoDB")
