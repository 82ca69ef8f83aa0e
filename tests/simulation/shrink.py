"""Make a scenario that breaks a promise as small as it gets: one that a person can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from spark_lease.errors import ConfigError

from .scenario import Contender, Scenario
from .simulate import Simulator

PLAIN = {"rate": 1.0, "wall": 0.0, "start": 0.0, "stops_in": 0.1, "careless": False, "patience": 1e9, "dies_in": 0.0}
ROUNDS = 20


def shrink(simulator: Simulator, scenario: Scenario, promise: str) -> Scenario:
    """A scenario that breaks the same promise, and that no single simplification leaves doing so."""
    for _ in range(ROUNDS):
        for candidate in _simpler(scenario):
            if _breaks(simulator, candidate, promise):
                scenario = candidate
                break
        else:
            break
    return scenario


def _breaks(simulator: Simulator, scenario: Scenario, promise: str) -> bool:
    try:
        return any(each.promise == promise for each in simulator.run(scenario).violations)
    except ConfigError:  # simpler timings, which do not fit together
        return False


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Everything that is one step simpler, the big steps first."""
    faults = scenario.faults
    half = len(faults) // 2
    if half:
        yield replace(scenario, faults=faults[:half])
        yield replace(scenario, faults=faults[half:])
    for number in range(len(faults)):
        yield replace(scenario, faults=faults[:number] + faults[number + 1 :])
    if len(scenario.contenders) > 1:
        last = len(scenario.contenders) - 1
        if not any(fault.who == last for fault in faults):
            yield replace(scenario, contenders=scenario.contenders[:-1])
    if scenario.horizon > 2:
        yield replace(scenario, horizon=round(scenario.horizon * 0.7, 1))
    for number, contender in enumerate(scenario.contenders):
        for simpler in _plainer(contender):
            contenders = (*scenario.contenders[:number], simpler, *scenario.contenders[number + 1 :])
            yield replace(scenario, contenders=contenders)
    for number, fault in enumerate(faults):
        for plainer in (replace(fault, at=float(round(fault.at))), replace(fault, size=float(round(fault.size)))):
            if plainer != fault:
                yield replace(scenario, faults=(*faults[:number], plainer, *faults[number + 1 :]))


def _plainer(contender: Contender) -> Iterator[Contender]:
    for key, plain in PLAIN.items():
        if getattr(contender, key) != plain:
            yield replace(contender, **{key: plain})  # type: ignore[arg-type]
    if len(contender.timings) > 2:
        yield replace(contender, timings={key: contender.timings[key] for key in ("lease_duration", "poll_period")})
    rounded = {key: float(round(value)) for key, value in contender.timings.items()}
    if rounded != contender.timings and all(rounded.values()):
        yield replace(contender, timings=rounded)
