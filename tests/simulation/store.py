"""One lease store that all machines share, the network to it, the accidents that befall it, and an ActiveMQ broker.

The records and their rules are those of `spark_lease.testing.MemoryStore`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from spark_lease.election.directive import Directive
from spark_lease.election.record import LeaseRecord, Snapshot
from spark_lease.errors import StoreError
from spark_lease.testing import MemoryStore

from .history import Did, History
from .world import FOREVER, Machine, World, current_thread

LEASE = "nightly"
LATENCY = (0.0005, 0.005)
"""Seconds, one way."""
UNCUT = ("hangs uncut", "commits and answers late")
"""Kinds of faults against which the limit of a request does not help: its thread waits for as long as it takes."""


@dataclass(frozen=True)
class CallFault:
    """What becomes of one request. Seconds: it is applied `applied` and answered `answered` after it was sent."""

    kind: str
    applied: float | None
    answered: float | None
    error: bool = False


@dataclass(frozen=True)
class _TrueClock:
    world: World

    def now(self) -> float:
        return self.world.now


class SharedStore:
    """The records, and what they were at any moment."""

    def __init__(self, world: World, history: History, memory: type[MemoryStore], *, has_clock: bool) -> None:
        self.world, self.history = world, history
        self.records = memory(_TrueClock(world), offset=1.8e9, has_clock=has_clock)  # type: ignore[arg-type]
        self.past: list[tuple[float, LeaseRecord | None]] = [(0.0, None)]

    @property
    def record(self) -> LeaseRecord | None:
        return self.records.records.get(LEASE)

    def apply(self, call: Callable[[MemoryStore], Any]) -> Any:
        answer = call(self.records)
        if self.record != self.past[-1][1]:
            self.past.append((self.world.now, self.record))
        return answer

    def replace(self, record: LeaseRecord | None, words: str) -> None:
        """An accident: `record` stands there from now on."""
        if record != self.record:
            self.records.records.pop(LEASE, None)
            if record is not None:
                self.records.records[LEASE] = record
            self.past.append((self.world.now, record))
            self.history.add("store", Did.DAMAGED, detail=words)

    def as_of(self, instant: float) -> LeaseRecord | None:
        return [record for at, record in self.past if at <= instant][-1]

    def pause(self, duration: float) -> None:
        """As `spark-lease pause --now --for` does."""
        if self.record:
            now = self.world.now + self.records.offset
            directive = Directive("anna", until=now + duration, give_up=now).text()
            self.apply(lambda store: store.swap(LEASE, self.record, replace(self.record, directive=directive)))
            self.history.add("anna", Did.BLOCKED, detail=f"for {duration:g} s")

    def delete_row(self) -> None:
        self.replace(None, "row deleted")

    def restore_backup(self, age: float) -> None:
        self.replace(self.as_of(max(self.world.now - age, 0.0)), f"row restored from {age:g} s ago")

    def lose_last(self, duration: float) -> None:
        self.replace(self.as_of(max(self.world.now - duration, 0.0)), f"failed over, last {duration:g} s lost")

    def step_clock(self, by: float) -> None:
        self.records.offset += by
        did = Did.DAMAGED if by > 0 else Did.SET_BACK
        self.history.add("store", did, detail=f"clock stepped by {by:+g} s")

    def expires_at(self, record: LeaseRecord) -> float:
        """The true time at which the record runs out by the store's clock."""
        return (record.stamp or 0) / 1000 - self.records.offset


class Connection:
    """One machine's way to the store. Implements `LeaseStore`; its n-th request may have a fault of its own."""

    where = "store"

    def __init__(
        self, machine: Machine, shared: SharedStore, chance: Random, *, attempt_timeout: float, hit: Counter[str]
    ) -> None:
        self.machine, self.shared, self.chance = machine, shared, chance
        self.attempt_timeout = attempt_timeout
        self.faults: dict[tuple[bool, int], CallFault] = {}
        """By number, True: of the writes alone, False: of all requests."""
        self.outages: list[tuple[float, float]] = []
        self.calls, self.writes = 0, 0
        self.hit = hit

    def read(self, name: str) -> Snapshot:
        return self._call(lambda store: store.read(name))  # type: ignore[no-any-return]

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        self.writes += 1
        fault = self.faults.get((True, self.writes))
        return self._call(lambda store: store.swap(name, old, new), fault)  # type: ignore[no-any-return]

    def names(self) -> Sequence[str]:
        return [LEASE]

    def close(self) -> None:
        pass

    def _call(self, call: Callable[[MemoryStore], Any], fault: CallFault | None = None) -> Any:
        self.machine.step()
        world, sent = self.machine.world, self.machine.world.now
        self.calls += 1
        out, back = self.chance.uniform(*LATENCY), self.chance.uniform(*LATENCY)
        fault = fault or self.faults.get((False, self.calls), CallFault("", out, out + back))
        if any(begin <= sent < end for begin, end in self.outages):
            fault = CallFault("outage", None, None)
        if fault.kind:
            self.hit[fault.kind] += 1
        limit = self.attempt_timeout / self.machine.rate
        thread, answer = current_thread(), list[Any]()
        if fault.applied is not None:

            def apply() -> None:
                answer.append(self.shared.apply(call))

            world.at(sent + fault.applied, apply)
        arrives = FOREVER if fault.answered is None else fault.answered
        # The answer of a store that was asked too long ago is not waited for, unless its hanging cannot be cut off.
        cut_off = arrives if fault.kind in UNCUT else limit
        thread.wait_until(sent + min(arrives, cut_off))
        self.machine.step()
        if fault.error or arrives > cut_off or not answer:
            raise StoreError(self.where, fault.kind or "no answer")
        return answer[0]


class Broker:
    """An ActiveMQ Classic broker on the same row, by the statements of its lease locker, on a clock of its own.

    obtain: TIME is null or past by its clock; keep alive: the name is still its own; release: null and 0.
    """

    def __init__(self, shared: SharedStore, *, name: str, lease: float, offset: float) -> None:
        self.shared, self.name, self.lease, self.offset = shared, name, lease, offset
        self.master = False

    def run(self, start: float, end: float, *, recreates: bool) -> None:
        """Contend from `start` to `end`, then stop cleanly. `recreates`: deleteAllMessagesOnStartup."""
        world = self.shared.world
        if recreates:
            world.at(start, lambda: self.shared.replace(None, "table dropped by a broker"))
        at = start
        while at < end:
            world.at(at, self._keep_alive)
            at += self.lease / 3
        world.at(end, self._stop)

    def _keep_alive(self) -> None:
        now = round((self.shared.world.now + self.shared.records.offset + self.offset) * 1000)
        # A broker makes row 1 at its start if it is missing: without a name, without our columns.
        record = self.shared.record or LeaseRecord(None, 0, 0.0, None)
        if self.master:
            self.master = record.holder == self.name
        elif record.stamp is None or record.stamp < now:
            self.master = True
        if self.master:
            self._write(replace(record, holder=self.name, stamp=now + round(self.lease * 1000)))

    def _stop(self) -> None:
        if self.master and self.shared.record and self.shared.record.holder == self.name:
            self._write(replace(self.shared.record, holder=None, stamp=0))
        self.master = False

    def _write(self, record: LeaseRecord) -> None:
        self.shared.apply(lambda store: store.records.__setitem__(LEASE, record))
        until = self.shared.expires_at(record) if record.holder else None
        self.shared.history.add("broker", Did.REWRITTEN, until=until, detail=f"holder {record.holder}")
