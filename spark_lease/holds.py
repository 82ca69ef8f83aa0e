"""`GuardedHold`: a hold for fences and run keys; `open_contender` makes one that takes the lease from a store."""

import contextlib
import itertools
import logging
import os
from collections.abc import Callable
from contextlib import closing
from typing import Any

from .clock import Clock
from .config.settings import Config
from .election.contender import Contender, OnRenewal, StandbyNote
from .election.hold import Deadline, Hold
from .election.locker import RecordRules
from .election.ports import Grant, HasSession, Journal, Locker
from .election.record import Protection, new_holder
from .errors import SparkLeaseError
from .fencing.delta.tables import KIND as DELTA_TABLES
from .fencing.sql.databases import claim_databases, is_unfenced, prepare
from .fencing.status import Fences
from .journal.changes import ChangeJournal
from .journal.runs import Runs
from .journal.standbys import Presence
from .stores.registry import NOTES, open_lock, open_notes, open_store

log = logging.getLogger(__name__)


class GuardedHold(Hold):
    """A hold with all that guarded work needs. The process that keeps the lease makes its claims and notes."""

    def __init__(
        self, config: Config, *, holder: str, clock: Clock, deadline: Deadline, protection: Protection
    ) -> None:
        super().__init__(config, holder=holder, clock=clock, deadline=deadline, protection=protection)
        self.run_key, self.runs = config.run_key, Runs(self, config, clock)
        self.fences = Fences()

    @property
    def kept_by(self) -> int:
        """The pid of the process that keeps the lease, and that ends when the lease is no longer kept."""
        return os.getpid()

    def prepare(self) -> None:
        """Import what the work needs after the grant, while another may still be master. Never raises."""
        with contextlib.suppress(Exception):  # the import is tried again, and fails, where it is needed
            prepare(self._config)

    def stands_by(self, state: str) -> None:
        """Note the state of this standby for `status`: a word of `spark.warm_standby`. Does not block."""

    def claim_databases(self) -> bool:
        """Claim the database (`fencing.sql.databases`) before the work begins, in the process that keeps the lease.

        Raises Fenced, LeaseLost, FenceUnreachable, ConfigError: then no work may begin.
        """
        return claim_databases(self._config, self)

    def note_run(self, outcome: str, detail: str = "", *, left: str = "") -> list[SparkLeaseError]:
        """Note how the work ended (a word of `journal_entries.GIVEN_BACK`); returns the errors to raise after success.

        `left`: work that it left behind, because of which its run key is not done."""
        self.ends_as(outcome, detail)
        problems = self.runs.note_end(self.run_key, outcome)
        if left and self.run_key and self._config.enabled:
            return [SparkLeaseError(f"{self.name}: {left}: its run key {self.run_key!r} is not marked as done")]
        return problems

    def noted(self, kind: str) -> dict[str, str]:
        """The notes beside the lease, as `Notes.all` returns them, read by the process that keeps the lease.

        So the driver loads no client of the store. Raises StoreError, ConfigError.
        """
        with closing(open_notes(self._config)) as notes:
            return notes.all(self._config.shared_name, kind)

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        """Note `text` beside the lease, as `Notes.add` does, in the process that keeps the lease.

        So no thread of the guarded program is inside a client library while the program changes its environment: libpq
        reads it, and a read during a change can end the process with SIGSEGV (getenv(3), "MT-Safe env"). `newest`: the
        key is this hold's epoch, and the text replaces the notes under it and under older epochs.
        Raises StoreError, ConfigError.
        """
        name = self._config.shared_name
        with closing(open_notes(self._config)) as notes:
            there = notes.all(name, kind) if newest else {}
            if key in there and there[key] != text:
                notes.remove(name, kind, key)
            noted = notes.add(name, kind, key, text, holder=self.holder, epoch=self._epoch)
            for older in there:
                if int(older) < self._epoch:  # not newer ones: a newer master may have noted its own by now
                    notes.remove(name, kind, older)
        return noted


class LocalHold(Contender, GuardedHold):
    """A hold that this process takes and renews itself."""

    database: HasSession | None = None
    """The store, if it is in a database."""

    def acquire(self, *, still_wanted: Callable[[], None] = lambda: None) -> int:
        asked = itertools.count()

        def look() -> None:
            still_wanted()
            if next(asked) == 1:  # another is master: asked once now, the same is answered faster at the grant
                self.at_hand()

        return super().acquire(still_wanted=look)

    def at_hand(self) -> dict[str, Any]:
        """Look up, in the store's session, what guarded work asks for first. Leaves out what fails; never raises.

        Only the acquiring thread may call it: it waits in that session."""
        found: dict[str, Any] = {}
        if self.database:
            with contextlib.suppress(Exception):  # any error: it shows when the work asks
                found["is_unfenced"] = is_unfenced(self._config, self.database.session)
            if self._config.fence_delta != "off":
                with contextlib.suppress(Exception):  # any error: it shows when the work asks
                    found["tables"] = self.database.notes.all(self._config.shared_name, DELTA_TABLES)
        return found

    def stands_by(self, state: str) -> None:
        if self._standby_note:
            self._standby_note.become(state)


class _Unguarded:
    """`enabled = false`, for development: no lock at all. Every contender is master, under epoch 0."""

    def try_acquire(self) -> Grant:
        return Grant(0)

    def renew(self) -> Grant:
        return Grant(0)

    def release(self) -> bool:
        return True

    def wait(self, timeout: float, poll: float) -> None:
        """Never called: the first attempt succeeds."""

    def close(self) -> None:
        """Nothing is open."""


def open_contender(
    config: Config,
    clock: Clock,
    *,
    holder: str = "",
    protection: Protection = Protection.THREAD,
    published: Deadline | None = None,
    on_renewal: OnRenewal | None = None,
    stands_still: Callable[[], str] = lambda: "",
) -> LocalHold:
    """Make a contender for `config.name` named `holder`, or with a new name; asks no store yet. Raises ConfigError.

    `on_renewal` is called only if `config` asks for metrics.
    """
    holder = holder or new_holder(config.holder)
    note: StandbyNote | None = None
    journal: Journal | None = None
    locker: Locker = _Unguarded()
    database: HasSession | None = None
    if config.enabled:
        store = open_store(config)
        database = store if isinstance(store, HasSession) else None
        if config.scheme in NOTES:
            note = Presence(config, clock, holder=holder)
            journal = ChangeJournal(config, database)
        locker = RecordRules(
            store, config, clock, holder=holder, protection=lambda: hold.protection, lock=open_lock(config)
        )
    else:
        log.warning("%s: enabled = false, NOTHING IS GUARDED: every process is master", config.name)
    hold = LocalHold(
        locker,
        config,
        holder=holder,
        clock=clock,
        protection=protection,
        published=published,
        standby_note=note,
        journal=journal,
        on_renewal=on_renewal if on_renewal and config.enabled and config.is_measured else lambda took, confirmed: None,
        stands_still=stands_still,
    )
    hold.database = database
    return hold
