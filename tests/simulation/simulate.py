"""Run one scenario on the policy, and judge what happened."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from .checker import Violation, judge
from .contender import Life, Target
from .history import Did, Event, History
from .policy import Edit, Policy, load
from .scenario import CALLS, STEPS, Fault, Scenario
from .store import LEASE, Broker, CallFault, Connection, SharedStore
from .world import Machine, Thread, World, current_thread

_QUIET = logging.Logger("simulated", logging.CRITICAL)
TAKEOVER = 2.0
"""Seconds: the longest poll_period of a scenario, and requests."""


@dataclass(frozen=True)
class Outcome:
    events: list[Event]
    violations: list[Violation]
    hit: Counter[str]
    """How often each kind of fault took place."""
    steps: int


class Simulator:
    """A policy, loaded once, to run any number of scenarios on."""

    def __init__(self, edits: Sequence[Edit] = ()) -> None:
        self.policy: Policy = load(lambda: current_thread().machine.step(), edits)
        for module in vars(self.policy).values():
            module.log = _QUIET
            if hasattr(module, "wall_time"):
                module.wall_time = lambda: current_thread().machine.wall_time()

    def run(self, scenario: Scenario) -> Outcome:
        return _Run(scenario, self.policy).run()


class _Run:
    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self.scenario, self.policy = scenario, policy
        self.world = World()
        self.history = History(lambda: self.world.now, lease=LEASE)
        self.shared = SharedStore(self.world, self.history, policy.store.MemoryStore, has_clock=scenario.has_clock)
        self.hit: Counter[str] = Counter()
        target = Target()
        self.lives = []
        for number, plan in enumerate(scenario.contenders):
            machine = Machine(self.world, f"{plan.label}{number}", rate=plan.rate, wall=plan.wall)
            timeout = policy.sources.configure(name=LEASE, **plan.timings).attempt_timeout
            chance = Random(scenario.chance * 10 + number)
            store = Connection(machine, self.shared, chance, attempt_timeout=timeout, hit=self.hit)
            self.lives.append(Life(number, plan, machine, store, policy, target, self.history))

    def run(self) -> Outcome:
        for fault in self.scenario.faults:
            self._plan(fault)
        for life in self.lives:
            life.start(life.plan.start)
        self.world.run(self.scenario.horizon)
        for life in self.lives:
            life.finish()
        events = self.history.events
        takeover = TAKEOVER
        if not self.scenario.has_clock:  # a standby has to watch the record stand still for all of its duration
            takeover += max(each.timings["lease_duration"] for each in self.scenario.contenders)
        return Outcome(events, judge(events, takeover=takeover), self.hit, self.world.steps)

    def _plan(self, fault: Fault) -> None:
        life = self.lives[fault.who]
        if fault.kind in CALLS:
            life.store.faults[fault.writes, int(fault.at)] = _call_fault(fault, life.store.attempt_timeout)
        elif fault.kind in STEPS:
            life.machine.planned[int(fault.at)] = lambda thread: self._at_step(fault, life, thread)
        else:
            action = self._at_time(fault, life)
            self.world.at(fault.at, lambda: self._counted(fault.kind, action))

    def _counted(self, kind: str, action: Callable[[], None]) -> None:
        self.hit[kind] += kind != "outage"  # which counts when a request runs into it
        action()

    def _at_step(self, fault: Fault, life: Life, thread: Thread) -> None:
        self.hit[fault.kind] += 1
        if fault.kind == "crash at a step":
            life.crash()
        elif fault.kind == "frozen at a step":
            self._freeze(fault, life)
        else:
            thread.starved_until = self.world.now + fault.size
            ends_work = thread.name.startswith("watch") or (life.plan.runner and thread.name == "main")
            did = Did.FROZEN if ends_work else Did.STARVED
            self.history.add(life.who, did, since=self.world.now, at=thread.starved_until, detail=thread.name)

    def _at_time(self, fault: Fault, life: Life) -> Callable[[], None]:
        shared, size = self.shared, fault.size
        outage = (fault.at, fault.at + size)
        ahead = size / 10 if round(fault.at) % 2 else -size / 10
        broker = Broker(shared, name="broker", lease=max(size, 0.1), offset=ahead)
        return {
            "frozen": lambda: self._freeze(fault, life),
            "crash": life.crash,
            "outage": lambda: life.store.outages.append(outage),
            "wall clock step": lambda: setattr(life.machine, "wall", life.machine.wall + size),
            "paused now": lambda: shared.pause(size),
            "row deleted": shared.delete_row,
            "backup restored": lambda: shared.restore_backup(size),
            "last second lost": lambda: shared.lose_last(size),
            "store clock step": lambda: shared.step_clock(size),
            "broker": lambda: broker.run(fault.at, fault.at + 3 * size, recreates=False),
            "broker recreates": lambda: broker.run(fault.at, fault.at + 3 * size, recreates=True),
        }[fault.kind]

    def _freeze(self, fault: Fault, life: Life) -> None:
        life.machine.freeze(fault.size)
        if life.who:
            self.history.add(life.who, Did.FROZEN, since=self.world.now, at=life.machine.frozen_until)


def _call_fault(fault: Fault, attempt_timeout: float) -> CallFault:
    """Seconds after the request was sent; `fault.size` is some part or multiple of a lease."""
    soon, size = 0.01, fault.size
    return {
        "error before commit": CallFault(fault.kind, None, soon, error=True),
        "error after commit": CallFault(fault.kind, soon, 2 * soon, error=True),
        "hangs": CallFault(fault.kind, None, None),
        "hangs uncut": CallFault(fault.kind, soon, max(size, attempt_timeout)),
        "commits and answers late": CallFault(
            fault.kind, max(size, attempt_timeout), soon + max(size, attempt_timeout)
        ),
        "slow answer": CallFault(fault.kind, soon, min(size, 0.99 * attempt_timeout)),
        "slow commit": CallFault(fault.kind, min(size, 0.99 * attempt_timeout), min(size, 0.99 * attempt_timeout)),
        "commits after the error": CallFault(fault.kind, attempt_timeout + size, None),
    }[fault.kind]
