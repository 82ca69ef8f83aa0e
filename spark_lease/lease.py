"""The lease as guarded code holds it: `with hold_lease("nightly-flights") as lease`."""

import math
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from .clock import Clock
from .config.settings import Config
from .election.journal_entries import bounded_age
from .election.record import Protection
from .fencing.delta.delta_rs import FencedTable
from .fencing.sql import session
from .fencing.status import Fences
from .holds import GuardedHold


class Lease:
    """One hold on a lease, for guarded code: the guard acquires it before that code and releases it after.

    Any thread may use it. The clock alone decides whether it is held: past its deadline a lease is lost even if no
    thread noticed. A forked child may use `check`, `remaining`, `is_in_doubt`, `wait_certain`, and the fences.
    """

    def __init__(self, hold: GuardedHold, config: Config, clock: Clock) -> None:
        self._hold, self._config, self._clock = hold, config, clock
        self._pid, self._thread = os.getpid(), threading.get_ident()

    @property
    def name(self) -> str:
        """The lease's name."""
        return self._hold.name

    @property
    def holder(self) -> str:
        """The unique name of this holder in the store: `label:pid:start:random`."""
        return self._hold.holder

    @property
    def run_key(self) -> str:
        """The run key that was set; "" if none was."""
        return self._hold.run_key

    @property
    def epoch(self) -> int:
        """The fencing token of this hold: larger than that of every earlier hold."""
        return self._hold.epoch

    @property
    def protection(self) -> Protection:
        """What ends the guarded work when the lease is lost, see `Protection`."""
        return self._hold.protection

    @property
    def fences(self) -> Fences:
        """Which guarded stores refuse the writes of older masters, as far as this process knows."""
        return self._hold.fences

    def __repr__(self) -> str:
        return repr(self._hold)

    def check(self) -> int:
        """The epoch, if the lease is held at this instant; else raises LeaseLost. Costs no I/O: call it freely.

        If the wall clock has jumped ahead by a second or more since the last renewal, this machine may have been
        suspended, and its monotonic clock with it: then `check` waits until the lease is renewed or lost.
        """
        return self._hold.check()

    def remaining(self) -> float:
        """Seconds for which `check()` answers without another renewal; 0 once the lease is lost."""
        return self._hold.remaining()

    @property
    def is_in_doubt(self) -> bool:
        """True while the lease is held and a renewal is overdue: it failed, or its answer has not come.

        `check()` still answers. Code that can wait should call `wait_certain`.
        """
        return self._hold.is_in_doubt

    def wait_certain(self, timeout: float = math.inf) -> int:
        """Wait until no renewal is overdue and return the epoch, at once if none is. Call it before new work.

        Raises LeaseLost if the lease is lost meanwhile, StoreError if it is still in doubt after `timeout` seconds.
        """
        return self._hold.wait_certain(timeout)

    def fenced_sql(self, engine: Any, *, completes: str = "") -> AbstractContextManager[Any]:
        """One transaction on an SQLAlchemy Engine; it commits only while this epoch is the newest: see `fencing.sql`.

        Yields the Connection. Commits at the end of the block, rolls back if an exception leaves it. The run key
        `completes` becomes done in the same transaction: no other hold can complete it, not even a later one.
        Raises Fenced, LeaseLost, StoreError, ConfigError, AlreadyDone (for `completes`), and the database's own errors.
        """
        from .fencing.sql.transaction import transaction  # imports SQLAlchemy: only when used

        return transaction(self._hold, engine, self._completion(completes))

    def write_sql(
        self,
        df: Any,
        engine: Any,
        table: str,
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        through: str = "auto",
        completes: str = "",
    ) -> int:
        """Write all rows of the DataFrame `df` to `table`, or none, in one `fenced_sql`; returns the row count.

        Columns are matched by name. `mode`: "append"; "overwrite" (DELETE, then INSERT, in that transaction); "upsert",
        by the columns `keys`, over which the table has a unique index. `through`: "driver" collects the rows;
        "executors" stage them in a table beside `table`; "auto" uses the driver for up to 10 000 rows (to find out,
        Spark may compute the first rows twice) and for SQLite. The run key `completes` becomes done in the same
        transaction; if it is done already, AlreadyDone is raised before Spark computes. Raises what `fenced_sql` and
        Spark raise; ConfigError if frame, table and arguments do not fit together, before anything is written.
        """
        from .fencing.dataframe.writer import write_sql  # imports SQLAlchemy and Arrow: only when used

        key = self._completion(completes)
        return write_sql(self._hold, df, engine, table, mode=mode, keys=keys, through=through, completes=key)

    def _completion(self, key: str) -> Any:
        from .fencing.sql.transaction import Completion

        retention = bounded_age(self._config.run_retention)
        return Completion(key, self._hold.runs.backfill, retention) if key else None

    def jdbc_url(self, url: str) -> str:
        """Add the epoch to `url`, a jdbc:postgresql: URL, for fenced tables. Raises ConfigError."""
        return session.jdbc_url(url, self.name, self.check())

    def complete(self, run_key: str, **counts: int) -> None:
        """Note beside the lease, for good, that `run_key` is done, with counts of your choice (rows=123).

        May be repeated. Raises LeaseLost, StoreError, AlreadyDone if it was done under another epoch, and ConfigError
        if it is not a printable text of 1 to 250 characters.
        """
        self._hold.runs.complete(run_key, counts=counts)

    def is_done(self, run_key: str) -> bool:
        """True if a master has completed `run_key`. Raises StoreError, and ConfigError as `complete` does."""
        return self._hold.runs.is_done(run_key)

    def delta_rs(self, table: str | os.PathLike[str]) -> FencedTable:
        """Fenced writes to the Delta table at path or URL `table` without Spark: append, overwrite, merge, delete."""
        return FencedTable(self._hold, os.fspath(table), self._config, self._clock)
