"""Fenced writes to a Delta table through delta-rs, for code that writes without Spark.

delta-rs has no hook, but each of its writes is made on a snapshot that we hold: the epoch is checked in that very
snapshot, and a later claim is a conflict ("Metadata changed since last commit").
"""

from collections.abc import Callable
from typing import Any, TypeVar

from ...clock import Clock
from ...config.settings import Config
from ...election.ports import HeldLease
from .fence import address, as_hadoop, local_path
from .tables import DeltaFence

T = TypeVar("T")


class FencedTable:
    """The Delta table at path or URL `table`, for the master of a lease. Use `Lease.delta_rs`.

    Every write raises Fenced if the table was claimed under a newer epoch, LeaseLost, StoreError, and what delta-rs
    raises; then nothing was written. `how`: further arguments for delta-rs.
    """

    def __init__(self, lease: HeldLease, table: str, config: Config, clock: Clock) -> None:
        # Absolute: a later master may have another working folder, and must find the table.
        self._table = as_hadoop(table)
        self._options = dict(config.storage_options) or None if local_path(table) is None else None
        self._fence = DeltaFence(lease, config, clock)

    def append(self, data: Any, **how: Any) -> None:
        """Add the rows of `data` (anything that deltalake.write_deltalake takes); makes the table if there is none."""
        self._write_rows(data, "append", how)

    def overwrite(self, data: Any, **how: Any) -> None:
        """Replace the rows, or those of a `predicate`."""
        self._write_rows(data, "overwrite", how)

    def delete(self, predicate: str | None = None, **how: Any) -> dict[str, Any]:
        """Delete the rows for which `predicate` is true; returns the answer of delta-rs."""
        return self._commit(lambda there: there.delete(predicate, **how))

    def merge(self, source: Any, predicate: str, clauses: Callable[[Any], Any], **how: Any) -> dict[str, Any]:
        """Merge `source`; `clauses` gets delta-rs's merger and returns it with its `when_…` clauses."""
        return self._commit(lambda there: clauses(there.merge(source, predicate, **how)).execute())

    def _write_rows(self, data: Any, mode: str, how: dict[str, Any]) -> None:
        from deltalake import write_deltalake  # heavy

        def write(there: Any) -> None:
            # If there is no table, only the first writer that makes it succeeds.
            where = there or address(self._table)
            write_deltalake(where, data, mode=mode if there else "error", storage_options=self._options, **how)

        self._commit(write, or_make=True)

    def _commit(self, write: Callable[[Any], T], *, or_make: bool = False) -> T:
        from deltalake.exceptions import CommitFailedError, TableNotFoundError  # heavy

        try:
            there = self._open()
        except TableNotFoundError:
            if not or_make:
                raise
            there = None
        self._begin(there)
        self._fence.commit(self._table)
        try:
            return write(there)
        except CommitFailedError:
            if there is not None:
                self._begin(self._open())  # raises Fenced if the conflict was a claim
            raise

    def _begin(self, there: Any) -> None:
        newest = None if there is None else there.metadata().configuration.get(self._fence.property)
        self._fence.begin(self._table, newest)

    def _open(self) -> Any:
        from deltalake import DeltaTable  # heavy

        return DeltaTable(address(self._table), storage_options=self._options)
