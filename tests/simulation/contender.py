"""One contender: acquires, works, writes, is demoted or releases, and contends again. The policy in it is the real one.

What stands in for Spark is `Work`: it writes to a target with a fence, asks before each write or not, takes its time to
stop, and can be killed. A `runner` is like `spark-lease run`: nobody but `end_hold` kills its work. Any other is like a
guarded block with `on_lost = "exit"`, whose process is gone by `stop_by`. Both are started again.
"""

from __future__ import annotations

import threading
from functools import partial
from random import Random
from typing import Any

import greenlet

from spark_lease.errors import LeaseHeldByOther, LeaseLost, SparkLeaseError

from . import history as recording
from .history import Did, History, RecordedLocker
from .policy import Policy
from .scenario import Contender
from .store import LEASE, Connection
from .world import FOREVER, Machine, Thread

RESTART = 1.0
"""Seconds after which a scheduler starts a process again that ended by a loss or a crash."""


class Target:
    """The guarded store: it keeps the highest epoch that it has seen and refuses smaller ones (the fence)."""

    def __init__(self) -> None:
        self.highest = 0

    def write(self, epoch: int) -> bool:
        self.highest = max(self.highest, epoch)
        return epoch == self.highest


class Work:
    """Guarded work of one hold, on a thread of its own that Python's other threads do not control: a JVM."""

    def __init__(
        self, machine: Machine, who: str, lease: Any, target: Target, history: History, plan: Contender
    ) -> None:
        self._machine, self._who, self._lease, self._target = machine, who, lease, target
        self._history, self._plan = history, plan
        self._epoch = lease.epoch
        self._stop_at, self._begun, self._over = FOREVER, False, False
        self._chance = Random(who)

    def start(self) -> None:
        self._begun = True
        self._history.add(self._who, Did.BEGAN, epoch=self._epoch)
        Thread(machine=self._machine, target=self._run, name="work").start()

    def stop(self) -> None:
        self._over |= not self._begun
        self._stop_at = min(self._stop_at, self._machine.world.now + self._plan.stops_in)

    def kill(self) -> None:
        """Begin to kill it: some of it may take the kernel a while."""
        if self._begun and self._plan.dies_in:
            self._machine.world.at(self._machine.world.now + self._plan.dies_in, self.end)
        else:
            self.end()

    def end(self) -> None:
        if self._begun and not self._over:
            self._history.add(self._who, Did.ENDED, epoch=self._epoch)
        self._over = True

    def wait_until_over(self, until: float) -> bool:
        while not self._over and (left := until - self._machine.now()) > 0:
            self._machine.sleep(min(left, 0.05))
        return self._over

    def _run(self) -> None:
        while not self._over and self._machine.world.now < self._stop_at:
            if self._plan.careless or self._may_write():
                self._machine.sleep(self._chance.uniform(0.0, 0.1))  # the write is on its way
                if not self._over:
                    self._write()
            self._machine.sleep(self._chance.uniform(0.0, 0.3))
        self.end()

    def _may_write(self) -> bool:
        try:
            self._history.check(self._lease, self._who)
        except LeaseLost:
            self.stop()
            return False
        return True

    def _write(self) -> None:
        self._history.add(self._who, Did.ATTEMPTED, epoch=self._epoch)
        accepted = self._target.write(self._epoch)
        self._history.add(self._who, Did.ACCEPTED if accepted else Did.REFUSED, epoch=self._epoch, detail="target")


class Life:
    """All incarnations of one contender on one machine, one after the other."""

    def __init__(
        self, number: int, plan: Contender, machine: Machine, store: Connection, policy: Policy, target: Target,
        history: History,
    ) -> None:  # fmt: skip
        self.number, self.plan, self.machine, self.store = number, plan, machine, store
        self._policy, self._target, self._history = policy, target, history
        self._holds = 0
        self.work: Work | None = None
        self.who = ""

    def finish(self) -> None:
        """The world ends: so does the work."""
        if self.work:
            self.work.end()

    def start(self, at: float) -> None:
        main = Thread(machine=self.machine, target=self._run, name="main")
        self.machine.world.at(at, main.start)

    def crash(self) -> None:
        if self.work:
            self.work.end()
        if self.who:
            self._history.add(self.who, Did.GAVE_UP, detail="its process ended")
        self.machine.die()
        self.start(self.machine.world.now + RESTART)

    def _run(self) -> None:
        while True:
            self._holds += 1
            self.who = f"{self.plan.label}{self.number}.{self._holds}"
            self._hold(self.who)
            self.work = None
            self.machine.sleep(0.2)

    def _hold(self, who: str) -> None:
        policy, machine = self._policy, self.machine
        waits = {"holder": self.plan.label, "acquire_timeout": self.plan.patience}
        config = policy.sources.configure(name=LEASE, **waits, **self.plan.timings)
        holder = policy.record.new_holder(config.holder)
        rules = policy.locker.RecordRules(self.store, config, machine, holder=holder)
        locker = RecordedLocker(rules, self._history, who, duration=config.lease_duration)
        lease = policy.contender.Contender(locker, config, holder=holder, clock=machine)
        self._ended = threading.Event()
        keepalive = policy.keepalive.Keepalive(
            lease, config, clock=machine, on_lost=partial(self._on_lost, lease), thread=partial(Thread, machine=machine)
        )
        try:
            policy.lifecycle.begin_hold(lease, keepalive)
        except SparkLeaseError as error:
            policy.lifecycle.abandon(lease, keepalive)
            why = recording.STANDBY if isinstance(error, LeaseHeldByOther) else ""
            self._history.add(who, Did.GAVE_UP, detail=f"{why}{error}")
            return
        self.work = work = Work(machine, who, lease, self._target, self._history, self.plan)
        work.start()
        machine.wait(self._ended, self.plan.work)
        work.stop()
        dying = FOREVER if self.plan.runner else 1.0
        end = policy.lifecycle.end_hold
        if end(lease, keepalive, work, clock=machine, stop_budget=config.stop_budget, dying=dying) is not None:
            self.crash()
            raise greenlet.GreenletExit
        work.wait_until_over(FOREVER)

    def _on_lost(self, lease: Any, lost: LeaseLost) -> None:
        recording.lost(self._history, self.who, lost)
        if self.work:
            self.work.stop()
        self._ended.set()
        if not self.plan.runner:
            Thread(machine=self.machine, target=self._demote, args=(lease,), name="watch").start()

    def _demote(self, lease: Any) -> None:
        while (left := lease.stop_by() - self.machine.now()) > 0:
            self.machine.sleep(left)
        self.crash()
