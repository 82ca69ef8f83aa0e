"""Contenders on a virtual clock, for the tests of the policy."""

from __future__ import annotations

from typing import Any

from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.locker import RecordRules
from spark_lease.election.ports import Lock
from spark_lease.election.record import new_holder
from spark_lease.holds import LocalHold
from spark_lease.testing import MemoryStore, VirtualClock

NAME = "nightly"


class Contender:
    """One contender with its own way to the store. Timings: 5 / 5 / 15 / 10 / 30 s unless said otherwise."""

    def __init__(
        self, clock: VirtualClock, store: MemoryStore, label: str = "a", *, lock: Lock | None = None, **settings: Any
    ) -> None:
        self.config: Config = configure(name=NAME, **settings)
        self.store, self.clock, self.lock = store, clock, lock
        holder = new_holder(label)
        locker = RecordRules(store, self.config, clock, holder=holder, lock=lock)
        self.lease = LocalHold(locker, self.config, holder=holder, clock=clock)

    @property
    def record(self) -> Any:
        return self.store.records[NAME]
