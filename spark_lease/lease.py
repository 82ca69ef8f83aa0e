"""The lease as its user holds it: a hold, and what is done under it (fenced writes, run keys, notes)."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any

from .clock import Clock
from .config.settings import Config
from .election.contender import Contender, OnRenewal, StandbyNote
from .election.hold import Deadline, Hold
from .election.journal_entries import bounded_age
from .election.locker import locker_over
from .election.ports import Locker
from .election.record import Protection, new_holder
from .fencing.delta.delta_rs import FencedTable
from .fencing.refusal import NothingBegun
from .fencing.sql import session
from .fencing.sql.databases import claim_databases, prepare
from .fencing.status import Fences
from .journal.runs import Runs
from .journal.standbys import Presence
from .stores.registry import open_lock, open_notes, open_store
from .stores.unguarded import Unguarded

log = logging.getLogger(__name__)


class Lease(Hold):
    """A hold on one lease, for those who work under it: acquired once, then lost or released for good.

    Any thread may use it. A clock alone says whether it is held: past its deadline a lease is lost even if no thread
    has noticed.
    """

    def __init__(
        self, config: Config, *, holder: str, clock: Clock, deadline: Deadline, protection: Protection
    ) -> None:
        super().__init__(config, holder=holder, clock=clock, deadline=deadline, protection=protection)
        self.run_key, self.runs = config.run_key, Runs(self, config, clock)
        self.fences = Fences()

    def fenced_sql(self, engine: Any, *, completes: str = "") -> AbstractContextManager[Any]:
        """One transaction on an Engine of SQLAlchemy, which commits only while my epoch is the newest: `fencing.sql`.

        Gives the Connection. Commits at the end of the block, rolls back if an exception leaves it. The run key
        `completes` is done with it, in the same transaction: no other can complete it, even as a later master.
        Raises Fenced, LeaseLost, StoreError, ConfigError, AlreadyDone (`completes` is), and what the database raises.
        """
        from .fencing.sql.completion import completing_sql
        from .fencing.sql.transaction import fenced_sql  # SQLAlchemy, for those who use it

        if not completes:
            return fenced_sql(self, engine)
        return completing_sql(
            self, engine, completes, note=self.runs.heal, retention=bounded_age(self._config.run_retention)
        )

    def write_sql(
        self,
        df: Any,
        engine: Any,
        table: str,
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        through: str = "auto",
    ) -> int:
        """Rows of the DataFrame `df` into `table`, all or none, in one `fenced_sql`; how many (`fencing.dataframe`).

        Columns by name. `mode`: "append"; "overwrite" (DELETE, then INSERT, in that transaction); "upsert", by the
        columns `keys` over which the table has a unique index. `through`: "driver" collects the rows, "executors" have
        them staged in a table beside `table`; "auto" takes the driver for up to 10 000 rows (to find out, the first
        rows may be computed twice) and for SQLite. Raises what `fenced_sql` and Spark raise; ConfigError if it does not
        fit together, before anything is written.
        """
        from .fencing.dataframe.writer import write_sql  # SQLAlchemy and Arrow, for those who use it

        return write_sql(self, df, engine, table, mode=mode, keys=keys, through=through)

    def jdbc_url(self, url: str) -> str:
        """`url`, a jdbc:postgresql: one, with the epoch in it, for tables that are fenced. Raises ConfigError."""
        return session.jdbc_url(url, self.name, self.check())

    def complete(self, run_key: str, **counts: int) -> None:
        """Note beside the lease that `run_key` is done, with numbers of your choice (rows=123); for good.

        May be repeated. Raises LeaseLost, StoreError, and AlreadyDone if it was done under another epoch.
        """
        self.runs.complete(run_key, counts=counts)

    def is_done(self, run_key: str) -> bool:
        """Whether a master has completed `run_key`. Raises StoreError."""
        return self.runs.is_done(run_key)

    def delta_rs(self, table: str) -> FencedTable:
        """Fenced writes to the Delta table at path or URL `table` without Spark: append, overwrite, merge, delete."""
        return FencedTable(self, table, self._config, self._clock)

    def prepare(self) -> None:
        """Import what the work needs from the grant on, while another may still be master. Never raises."""
        with contextlib.suppress(Exception):  # it is said when it is needed
            prepare(self._config)

    def claim_databases(self) -> bool:
        """Claim what `fencing.sql.databases` says, before the work begins; by the process that keeps the lease.

        Raises Fenced, LeaseLost, FenceUnreachable, ConfigError: then nothing may begin.
        """
        return claim_databases(self._config, NothingBegun(self), clock=self._clock)

    def noted(self, kind: str) -> dict[str, str]:
        """What was noted beside the lease, as `Notes.all` says; asked for by the process that keeps it.

        So the driver loads no client of the store. Raises StoreError, ConfigError.
        """
        with closing(open_notes(self._config, self._clock)) as notes:
            return notes.all(self._config.shared_name, kind)

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        """Have `text` noted beside the lease, as `Notes.add` says; by the process that keeps the lease.

        So no thread of the guarded program's is inside a client library while the program changes its environment:
        libpq reads that, and a read beside a change can end the process with SIGSEGV (getenv(3), "MT-Safe env").
        `newest`: the key is my epoch, and the text takes the place of what was noted under it, and under older ones.
        Raises StoreError, ConfigError.
        """
        name = self._config.shared_name
        with closing(open_notes(self._config, self._clock)) as notes:
            there = notes.all(name, kind) if newest else {}
            if key in there and there[key] != text:
                notes.remove(name, kind, key)
            noted = notes.add(name, kind, key, text, holder=self.holder, epoch=self._epoch)
            for older in there:
                if int(older) < self._epoch:  # only these: a newer master has a note of its own by now
                    notes.remove(name, kind, older)
        return noted


class LocalLease(Contender, Lease):
    """A lease that this process itself takes and renews."""


def open_contender(
    config: Config,
    clock: Clock,
    *,
    holder: str = "",
    protection: Protection = Protection.THREAD,
    published: Deadline | None = None,
    on_renewal: OnRenewal | None = None,
    stands_still: Callable[[], str] = lambda: "",
) -> LocalLease:
    """A contender for `config.name` under `holder`, or one of its own; asks no store yet. Raises ConfigError.

    `on_renewal` is called if `config` has renewals measured.
    """
    holder = holder or new_holder(config.holder)
    note: StandbyNote | None = None
    locker: Locker = Unguarded()
    if config.enabled:
        note = Presence(config, clock, holder=holder)
        locker = locker_over(
            open_store(config),
            config,
            clock,
            holder=holder,
            protection=lambda: lease.protection,
            lock=open_lock(config, clock),
        )
    else:
        log.warning("%s: enabled = false, NOTHING IS GUARDED: every process is master", config.name)
    lease = LocalLease(
        locker,
        config,
        holder=holder,
        clock=clock,
        protection=protection,
        published=published,
        standby_note=note,
        on_renewal=on_renewal if on_renewal and config.enabled and config.is_measured else lambda took, confirmed: None,
        stands_still=stands_still,
    )
    return lease
