"""A lease store in memory, for which a test plans the result of each call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..election.record import LeaseRecord, Snapshot, is_directive
from .clock import VirtualClock

Fault = Callable[[Callable[[], Any], VirtualClock], Any]
"""Gets a call to the store, and the clock; makes the call, or does what the test plans instead."""


class MemoryStore:
    """Implements `LeaseStore`. `peer` returns another contender's store over the same records, with its own faults.

    The store's clock is `clock` plus `offset` seconds; with `has_clock` False it has none, like a Delta table.
    """

    where = "memory"

    def __init__(self, clock: VirtualClock, *, offset: float = 1e9, has_clock: bool = True) -> None:
        self.clock, self.offset, self.has_clock = clock, offset, has_clock
        self.records: dict[str, LeaseRecord] = {}
        self.calls: list[str] = []
        self._faults: deque[Fault] = deque()
        self._writes = [0]

    def peer(self) -> MemoryStore:
        other = MemoryStore(self.clock, offset=self.offset, has_clock=self.has_clock)
        other.records, other._writes = self.records, self._writes
        return other

    def plan(self, *faults: Fault | None) -> None:
        """Plan a fault for each of the next calls; None: the call goes through."""
        self._faults.extend(fault or (lambda call, clock: call()) for fault in faults)

    def read(self, name: str) -> Snapshot:
        return self._call("read", lambda: self._read(name))  # type: ignore[no-any-return]

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        return self._call("swap", lambda: self._swap(name, old, new))  # type: ignore[no-any-return]

    def names(self) -> Sequence[str]:
        return sorted(self.records)

    def close(self) -> None:
        self.calls.append("close")

    def _read(self, name: str) -> Snapshot:
        record = self.records.get(name)
        if record is None or not self.has_clock:
            return Snapshot(record, None)
        now = self._store_ms()
        return Snapshot(record, ((record.stamp or 0) - now) / 1000, now / 1000)

    def _swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        if self.records.get(name) != old:
            return None
        self._writes[0] += 1
        stamp = self._writes[0]
        epoch = new.epoch
        if self.has_clock and is_directive(old, new):
            stamp = new.stamp or 0
        elif self.has_clock:
            stamp = 0 if new.holder is None else self._store_ms() + round(new.duration * 1000)
            if old is None or new.epoch != old.epoch:
                epoch = max(new.epoch, self._store_ms())
        self.records[name] = replace(new, epoch=epoch, stamp=stamp)
        return self.records[name]

    def _store_ms(self) -> int:
        return round((self.clock.now() + self.offset) * 1000)

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        self.calls.append(what)
        return self._faults.popleft()(call, self.clock) if self._faults else call()
