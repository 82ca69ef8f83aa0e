"""Which Delta tables a lease guards: those that its holders wrote to, noted beside it before the first write.

So nobody has to list them, and a new holder, who claims all of them before his work begins, knows each table to which
a write of an old one can still be on its way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from ..clock import Clock
from ..config import Config
from ..errors import ConfigError, Loss, StoreError
from ..lockers.registry import open_notes
from .base import Held
from .delta import address, claim, property_of, refuse_newer

log = logging.getLogger(__name__)

KIND = "table"
"""Of the notes that name a table."""


class DeltaFence:
    """What each Delta transaction of this process is asked for one lease. Used by several threads at once."""

    def __init__(self, lease: Held, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._clock = lease, config, clock
        self._known: set[str] = set()
        self.property = property_of(lease.name)

    def claim_all(self) -> str:
        """Claim what holders before wrote to, and what `fence_tables` names. Raises Fenced, LeaseLost, StoreError.

        A table that cannot be claimed is a StoreError if `fence_delta` is "required", and else a warning. Where the
        lease store has no place for notes, nothing can be fenced: ConfigError if that is "required", else its words.
        """
        if self._config.fence_delta == "off" or not self._config.enabled:
            return "it is switched off"
        try:
            recorded = self._recorded()
        except ConfigError as error:
            if self._config.fence_delta == "required":
                raise
            return str(error)
        self._known = set(recorded)
        for table, found in self._claim_all({*recorded, *self._config.fence_tables}).items():
            if isinstance(found, Exception):
                self._not_claimed(table, found)
            elif not found and table in recorded and _is_gone(table):
                self._forget(table)
        return ""

    def begin(self, table: str, newest: str | None) -> None:
        """A transaction on `table` begins, in whose snapshot the property is `newest`. To refuse it, raises
        Fenced, LeaseLost, StoreError or ConfigError."""
        refuse_newer(self._lease, table, newest)
        epoch = self._lease.wait_certain()
        if table not in self._known:
            # Before it goes on: a master after me claims what is noted, and nothing else.
            self._record(table, epoch)
            self._known.add(table)

    def commit(self) -> None:
        """It is about to be committed. Raises LeaseLost to refuse that."""
        self._lease.check()

    def _record(self, table: str, epoch: int) -> None:
        text = json.dumps({"epoch": epoch, "holder": self._lease.holder})
        with closing(open_notes(self._config, self._clock)) as notes:
            there = notes.add(self._lease.name, KIND, table, text, holder=self._lease.holder, epoch=epoch)
        if there is None:
            self._lease.lose(Loss.TAKEN, f"{table} was to be written to, and the lease is another's")
            self._lease.check()
        log.info("%s: guards %s", self._lease.name, table)

    def _recorded(self) -> list[str]:
        with closing(open_notes(self._config, self._clock)) as notes:
            return list(notes.all(self._lease.name, KIND))

    def _claim_all(self, tables: Iterable[str]) -> dict[str, bool | Exception]:
        """Side by side: for each, whether there is such a table, or what was raised. Bounded by `lease_duration`."""
        limit = self._config.lease_duration
        end, answers = self._clock.now() + limit, queue.SimpleQueue[tuple[str, bool | Exception]]()
        found: dict[str, bool | Exception] = {}

        def work(table: str) -> None:
            try:
                answers.put((table, claim(self._lease, table, clock=self._clock, timeout=limit)))
            except Exception as error:  # it belongs to whoever waits
                answers.put((table, error))

        waited = set(tables)
        for table in waited:
            threading.Thread(target=work, args=(table,), name=f"claim {table}", daemon=True).start()
        with contextlib.suppress(queue.Empty):
            while waited - set(found):
                table, answer = answers.get(timeout=max(end - self._clock.now(), 0.0))
                found[table] = answer
        silent = StoreError("Delta", f"no answer within {limit:g} s")
        return found | dict.fromkeys(waited - set(found), silent)

    def _not_claimed(self, table: str, error: Exception) -> None:
        """Raise it, or say it where that is all that was asked for."""
        if isinstance(error, ModuleNotFoundError):
            error = StoreError(table, f"{error.name} is not installed: pip install 'spark_lease[delta]'")
        if not isinstance(error, StoreError) or self._config.fence_delta == "required":
            raise error
        log.warning("%s: NOT FENCED: %s: %s", self._lease.name, table, error.problem)

    def _forget(self, table: str) -> None:
        self._known.discard(table)
        with closing(open_notes(self._config, self._clock)) as notes:
            notes.remove(self._lease.name, KIND, table)
        log.info("%s: %s is gone, it is guarded no more", self._lease.name, table)


def _is_gone(table: str) -> bool:
    """False where it may only be out of reach: of a share that is not mounted, nothing is there."""
    path = Path(address(table))
    return path.is_absolute() and path.parent.is_dir() and not path.exists()
