"""A scenario: who contends, on what clocks, and what goes wrong when. Data, so that it can be shrunk, kept and read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from spark_lease.config.settings import CLOCK_RATE_ERROR
from spark_lease.errors import ConfigError

CALLS = (
    "error before commit",
    "error after commit",
    "hangs",
    "hangs uncut",
    "commits and answers late",
    "slow answer",
    "slow commit",
    "commits after the error",
)
"""Kinds of faults of one request."""
TIMES = ("frozen", "crash", "outage", "wall clock step", "paused now")
"""Kinds of faults at a time."""
STEPS = ("frozen at a step", "starved at a step", "crash at a step")
"""Kinds of faults between two statements."""
DAMAGES = ("row deleted", "backup restored", "last second lost", "store clock step", "broker", "broker recreates")
"""Kinds of faults of the store itself, after which it does not know what it had confirmed."""
KINDS = (*CALLS, *TIMES, *STEPS, *DAMAGES)
TRAITS = (
    "clock rate off",
    "equal labels",
    "other durations",
    "store without a clock",
    "tight timings",
    "careless work",
    "work that is slow to die",
    "runner",
)
"""What a scenario may have beside its faults."""


@dataclass(frozen=True)
class Contender:
    """`rate`: seconds of its clock per true second. `careless` work does not ask before it writes."""

    label: str
    timings: dict[str, float]
    rate: float = 1.0
    wall: float = 0.0
    start: float = 0.0
    work: float = 5.0
    stops_in: float = 0.1
    careless: bool = False
    patience: float = 1e9
    """Seconds that it waits for the lease before it gives up and starts again."""
    dies_in: float = 0.0
    """Seconds that its work takes to be gone once it was killed."""
    runner: bool = False


@dataclass(frozen=True)
class Fault:
    """`who` is the number of a contender. `at`: true seconds, or the number of its request or step. `size`: seconds."""

    kind: str
    who: int = 0
    at: float = 0.0
    size: float = 0.0
    writes: bool = False
    """True: of its requests only those are counted that write."""


@dataclass(frozen=True)
class Scenario:
    contenders: tuple[Contender, ...]
    faults: tuple[Fault, ...] = ()
    has_clock: bool = True
    horizon: float = 40.0
    chance: int = 0
    """Seed of what is left to chance: the latency of each request and the pace of the work."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Scenario:
        words = json.loads(text)
        contenders = tuple(Contender(**each) for each in words.pop("contenders"))
        faults = tuple(Fault(**each) for each in words.pop("faults"))
        return Scenario(contenders, faults, **words)

    def __str__(self) -> str:
        lines = [f"a store with{'' if self.has_clock else 'out'} a clock, {self.horizon:g} s"]
        for number, each in enumerate(self.contenders):
            timings = ", ".join(f"{key} {value:g}" for key, value in each.timings.items())
            lines.append(
                f"contender {number} ({each.label}): {timings}; from {each.start:g} s on, works {each.work:g} s at a "
                f"time, stops in {each.stops_in:g} s, clock {100 * (each.rate - 1):+.2f} %"
                + (", careless" if each.careless else "")
                + (f", takes {each.dies_in:g} s to die" if each.dies_in else "")
                + (", a runner" if each.runner else "")
                + (f", waits {each.patience:g} s" if each.patience < 1e9 else "")
            )
        for fault in self.faults:
            counted = f"{'write' if fault.writes else 'request' if fault.kind in CALLS else 'step'} {fault.at:g}"
            where = f"at {fault.at:g} s" if fault.kind in (*TIMES, *DAMAGES) else counted
            whose = "" if fault.kind in DAMAGES else f" of contender {fault.who}"
            lines.append(f"{fault.kind}{whose}, {where}" + (f", {fault.size:g} s" if fault.size else ""))
        return "\n".join(lines)

    def traits(self) -> set[str]:
        labels = [each.label for each in self.contenders]
        found = {
            "clock rate off": any(each.rate != 1 for each in self.contenders),
            "equal labels": len(set(labels)) < len(labels),
            "other durations": len({each.timings["lease_duration"] for each in self.contenders}) > 1,
            "store without a clock": not self.has_clock,
            "tight timings": any("renew_deadline" in each.timings for each in self.contenders),
            "careless work": any(each.careless for each in self.contenders),
            "work that is slow to die": any(each.dies_in for each in self.contenders),
            "runner": any(each.runner for each in self.contenders),
        }
        return {name for name, there in found.items() if there}


Configure = Callable[..., Any]
"""`spark_lease.config.sources.configure`, or a mutant of it."""


def random_scenario(seed: int, configure: Configure) -> Scenario:
    """The scenario of a seed: the same one for ever, as long as this function does not change."""
    chance = Random(seed)
    kind = chance.random()
    if kind < 0.1:
        return _to_the_limit(chance, seed, configure)
    if kind < 0.15:
        return _short_work_after_an_accident(chance, seed)
    labels = ["a", "b", "c", "d"] if chance.random() < 0.7 else ["a", "a", "a", "a"]
    timings = _timings(chance, configure, tight=0.5)
    # No two clocks, the store's (rate 1) among them, are further apart than the bound.
    slowest, fastest = chance.choice(((1.0, 1 + CLOCK_RATE_ERROR), (1 / (1 + CLOCK_RATE_ERROR), 1.0)))
    contenders = []
    for label in labels[: chance.choice((2, 2, 3, 4))]:
        if chance.random() < 0.3:
            timings = _timings(chance, configure, tight=0.5)
        contenders.append(
            Contender(
                label,
                timings,
                rate=chance.choice((1, slowest, fastest, chance.uniform(slowest, fastest))),
                wall=chance.choice((0, 0, chance.uniform(-100, 100))),
                start=round(chance.choice((0, 0, chance.uniform(0, 5))), 2),
                work=round(chance.choice((0.5, 3, 10, 40)) * chance.uniform(0.5, 1), 2),
                stops_in=round(chance.choice((0.05, 0.5, 100)) * chance.uniform(0.5, 1), 2),
                careless=chance.random() < 0.3,
                patience=chance.choice((1e9, 1e9, round(chance.uniform(0, 10), 1))),
                runner=(runner := chance.random() < 0.3),
                dies_in=0.0 if runner else chance.choice((0.0, 0.3, 1.5)),
            )
        )
    horizon = round(chance.uniform(10, 40), 1)
    scenario = Scenario(tuple(contenders), has_clock=chance.random() < 0.7, horizon=horizon, chance=seed)
    kinds = [each for each in KINDS if each not in DAMAGES] + ["outage"] * 3
    if scenario.has_clock and chance.random() < 0.35:
        # A store without a clock cannot count on from a record that is gone: what it does then is its own promise.
        # Nor does anybody count on from a record that is gone by a clock that went back: one accident at a time.
        accidents = ["store clock step"] if chance.random() < 0.2 else [each for each in DAMAGES if "clock" not in each]
        kinds = accidents if chance.random() < 0.3 else [*kinds, *accidents]
    faults = tuple(_fault(chance, chance.choice(kinds), scenario) for _ in range(chance.choice((0, 1, 2, 4, 8, 16))))
    return replace(scenario, faults=faults)


def _to_the_limit(chance: Random, seed: int, configure: Configure) -> Scenario:
    """A slow clock, work that has to be killed, a store that goes away: every margin is used up. Or a crash,
    and a store whose clock is set back."""
    timings = _timings(chance, configure, tight=1)
    runner = chance.random() < 0.5
    slow = Contender("a", timings, rate=1 / (1 + CLOCK_RATE_ERROR), work=100, stops_in=100, runner=runner)
    standby = Contender("b", timings, start=1)
    outage = Fault("outage", 0, round(chance.uniform(1, 10), 2), 100)
    has_clock, faults = chance.random() < 0.7, [outage]
    if has_clock and chance.random() < 0.3:
        faults = [Fault("crash", 0, outage.at), Fault("store clock step", 0, outage.at, -1000)]
    return Scenario((slow, standby), tuple(faults), has_clock, horizon=30, chance=seed)


def _short_work_after_an_accident(chance: Random, seed: int) -> Scenario:
    """The store forgets a master, and another has come and gone before the first renews."""
    duration = round(chance.uniform(6, 12), 2)
    master = Contender("a", {"lease_duration": duration, "poll_period": 1.0}, work=100)
    quick = Contender("b", {"lease_duration": duration, "poll_period": 0.1}, start=0.5, work=0.2, stops_in=0.05)
    accident = Fault(chance.choice(("row deleted", "backup restored")), 0, round(chance.uniform(1, 8), 2), 20.0)
    return Scenario((master, quick), (accident,), horizon=15, chance=seed)


def _timings(chance: Random, configure: Configure, *, tight: float) -> dict[str, float]:
    """Timings that the configuration accepts, often only just."""
    while True:
        duration = round(chance.choice((1, 2, 4, 8)) * chance.uniform(1, 1.5), 2)
        timings = {"lease_duration": duration, "poll_period": round(chance.choice((0.1, 0.5, 1)), 2)}
        if chance.random() < tight:
            deadline = chance.uniform(0.2, 0.8)
            limit = chance.choice((1, 1 / (1 + CLOCK_RATE_ERROR)))
            budget = chance.choice((chance.random(), 0.998 * (limit - deadline), 0.998 * (limit - deadline)))
            retry = chance.uniform(0.1, 0.9)
            shares = {
                "renew_deadline": deadline,
                "stop_budget": budget,
                "kill_budget": 0.0001,
                "retry_period": deadline * retry,
                "attempt_timeout": deadline * (1 - retry) * 0.999,
            }
            timings |= {key: round(share * duration, 4) for key, share in shares.items()}
        try:
            configure(name="nightly", **timings)
        except ConfigError:
            continue
        return timings


def _fault(chance: Random, kind: str, scenario: Scenario) -> Fault:
    who = chance.randrange(len(scenario.contenders))
    duration = scenario.contenders[who].timings["lease_duration"]
    long = round(duration * chance.choice((0.1, 0.5, 1, 1.5, 3)) * chance.uniform(0.8, 1.2), 2)
    moment = round(chance.uniform(0, scenario.horizon), 2)
    if kind in CALLS:
        if chance.random() < 0.5:
            return Fault(kind, who, chance.randint(1, chance.choice((1, 4, 40))), long, writes=True)
        return Fault(kind, who, chance.randint(1, chance.choice((4, 40))), long)
    if kind in STEPS:
        return Fault(kind, who, chance.randint(1, chance.choice((60, 600, 6000))), long)
    if kind == "wall clock step":
        return Fault(kind, who, moment, round(chance.uniform(-1000, 1000), 1))
    if kind == "store clock step":
        return Fault(kind, 0, moment, round(chance.uniform(-2, 2) * duration, 2))
    if kind in ("last second lost", "row deleted"):
        return Fault(kind, 0, moment, 1.0 if kind == "last second lost" else 0.0)
    return Fault(kind, 0 if kind in DAMAGES else who, moment, long)
