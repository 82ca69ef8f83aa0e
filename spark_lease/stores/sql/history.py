"""What one SQL store notes of the changes of hands that it makes, and whether it still can.

The lease comes first: a note that the database refuses is left out, together with all that follow, and one whose table
is locked by another session is left out once. Statements: `journal.py`; reader: `spark_lease.monitoring.history`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.exc import SQLAlchemyError

from ...config.settings import Config
from ...database.connections import store_error
from ...database.dialects import CONFLICTS, backend_of, says, was_refused
from ...election.journal_entries import ENDED, RELEASED, end_prefix, grant_text, is_release
from ...election.record import LeaseRecord
from . import schema
from .journal import NOTED, add_triggers, afterwards, digest, in_one_block, in_one_statement
from .notes import notes_table
from .statements import statements

log = logging.getLogger(__name__)

_OTHER_WRITES = ("renew", "wish")
Note = tuple[str, dict[str, object]]
"""What makes it (a key of `afterwards`), and its values."""


class SqlHistory:
    """Used by one thread at a time, like the store."""

    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine, self._config, self._backend = engine, config, backend_of(engine)
        self.table = notes_table(schema.spelled(engine, config.notes_table, broker_row=False))
        self._is_on = True
        self.skips = False
        """The next change of hands is not noted."""
        self._refusal: Exception | None = None
        self._untold: Exception | None = None
        self._made = False
        self._text = ""
        self.ending = RELEASED, ""
        """How the work ended of the hold that is released next: one of `GIVEN_BACK`, and more words."""

    @property
    def is_noting(self) -> bool:
        """Whether the next change of hands is to be noted."""
        return self._is_on and not self.skips

    def combined(self, plain: Mapping[str, str], table: Table, *, broker_row: bool, notifies: bool) -> dict[str, str]:
        """The statements that note as well, in place of those in `plain`. A MariaDB is known for one once connected."""
        if not self._is_on:
            return {}
        found = afterwards(self.table, self._engine)
        if self._engine.dialect.name == "postgresql":
            combine = in_one_statement(self.table, self._backend)
            every = statements(self._engine, table, broker_row=broker_row, notifies=notifies, combine=combine)
            found |= {what: every[what] for what in NOTED if self._is_noted(what)}
        if self._is_mariadb:
            found |= in_one_block(plain, self.table, self._engine)
        return found

    def begin(self, connection: Any, table: Table) -> None:
        """For a connection of the driver that is about to write. Raises the driver's error."""
        if self._engine.dialect.name == "sqlite" and self.is_noting:
            add_triggers(connection, table, self.table, self._engine, lambda: self._text)

    def values(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> dict[str, object]:
        """What the statements need besides the record."""
        self._text = ""
        if new.holder is not None and (old is None or old.epoch != new.epoch):
            self._text = grant_text(old, new, until=old.stamp if old else None, site=self._config.site)
        elif is_release(old, new):
            why, detail = self.ending
            self._text = end_prefix(why, detail=detail, when="at" if self._is_noted("release") else "by")
        return {"lease": self._config.row_of(name), "note": self._text}

    def rest(self, what: str, name: str, epoch: int) -> Note | None:
        """What is left to be noted of the change `what` that was made just now."""
        if what not in NOTED or not self.is_noting or self._is_noted(what):
            return None
        return "note release" if NOTED[what] == ENDED else "note", self.note(name, NOTED[what], epoch, self._text)

    def note(self, name: str, kind: str, epoch: int, text: str) -> dict[str, object]:
        values = {"lease": self._config.row_of(name), "kind": kind, "digest": digest(epoch), "item": str(epoch)}
        return {f"note_{key}": value for key, value in (values | {"content": text}).items()}

    def gives_way(self, what: str, error: Exception) -> bool:
        """Whether to ask the same once more, because `what` may have been refused for its note."""
        refused = was_refused(error, self._backend)
        if self.skips and refused:
            self.skips, self._refusal = False, None  # it was not for the note
            return False
        # SQLite looks at all triggers of a table, whatever is written to it.
        of_a_note = what in NOTED or (self._engine.dialect.name == "sqlite" and what in _OTHER_WRITES)
        if not of_a_note or not self.is_noting or not refused:
            return False
        if says(error, self._backend.shape) and self._may_make():
            with contextlib.suppress(SQLAlchemyError), self._engine.connect() as connection:
                self.make(connection)
            return True
        self.skips, self._refusal = True, error
        # Locked: by whom, and what, is not told. A release has no second chance, a grant has.
        return what == "release" or not says(error, self._backend.locked)

    def went_well(self, what: str) -> bool:
        """To be told after each request that was answered; True if nothing will be noted any more."""
        ends = False
        if self.skips and (what in NOTED or (self._refusal and says(self._refusal, self._backend.shape))):
            self.skips = False
            if self._refusal and not says(self._refusal, self._backend.locked + CONFLICTS):
                self._is_on, self._untold, ends = False, self._refusal, True
        if what in NOTED and self._untold:  # who only looks at leases misses nothing
            self._tell(self._untold)
            self._untold = None
        return ends

    def end(self, error: Exception) -> None:
        """Note nothing any more."""
        if self._is_on:
            self._is_on = False
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        advice = " (spark-lease init makes it)" if says(error, self._backend.shape) else ""
        problem = store_error(self._engine, self.table.fullname, error).problem
        told = (self._config.name, self.table.fullname, advice, problem)
        log.warning("%s: its history cannot be written to the table %s%s: %s", *told)

    def make(self, connection: Connection) -> None:
        """Make the table beside that of the leases, if that may be done and was not tried before."""
        if self._may_make():
            self._made = True
            with contextlib.suppress(SQLAlchemyError):  # said when a note is refused for it
                schema.make(connection, self.table)

    def _may_make(self) -> bool:
        return not self._made and schema.may_make(self._engine, self._config)

    def _is_noted(self, what: str) -> bool:
        """Whether the statement `what` notes what it changes."""
        name = self._engine.dialect.name
        return name == "sqlite" or self._is_mariadb or (name == "postgresql" and what not in self._config.statements)

    @property
    def _is_mariadb(self) -> bool:
        return bool(getattr(self._engine.dialect, "is_mariadb", False))
