"""Which Delta tables a lease guards: those that its holders wrote to, noted beside it before the first write.

So nobody has to list them, and a new holder, who claims all of them before his work begins, knows each table to which
a write of an old one can still be on its way.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
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
_AT_ONCE = 8


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
        tables = [*recorded, *(each for each in self._config.fence_tables if each not in recorded)]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="claim") as pool:
            for table, done in zip(tables, pool.map(self._claim, tables), strict=True):
                if done is not None:
                    self._known |= {table} & set(recorded)
                if done is False and table in recorded and _is_gone(table):
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

    def _claim(self, table: str) -> bool | None:
        """Whether there is such a table; None if it could not be claimed."""
        try:
            return claim(self._lease, table, clock=self._clock, timeout=self._config.lease_duration)
        except ModuleNotFoundError as error:
            problem = f"{error.name} is not installed: pip install 'spark_lease[delta]'"
        except StoreError as error:
            problem = str(error.problem)
        if self._config.fence_delta == "required":
            raise StoreError(table, problem)
        log.warning("%s: NOT FENCED: %s: %s", self._lease.name, table, problem)
        return None

    def _forget(self, table: str) -> None:
        with closing(open_notes(self._config, self._clock)) as notes:
            notes.remove(self._lease.name, KIND, table)
        log.info("%s: %s is gone, it is guarded no more", self._lease.name, table)


def _is_gone(table: str) -> bool:
    """False where it may only be out of reach: of a share that is not mounted, nothing is there."""
    path = Path(address(table))
    return path.is_absolute() and path.parent.is_dir() and not path.exists()
