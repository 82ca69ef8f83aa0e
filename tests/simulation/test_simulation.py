"""The simulator itself: that it is deterministic, that it finds what is put in, and that what it found stays mended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from spark_lease.config.sources import configure
from spark_lease.errors import ConfigError

from .__main__ import REGRESSIONS
from .model import Contender as InModel
from .model import Model, Request, State, _with, search
from .mutations import MUTATIONS, try_mutation
from .policy import DoesNotApply, Edit, load
from .scenario import Contender, Fault, Scenario, random_scenario
from .shrink import shrink
from .simulate import Simulator

KEPT = {
    "p2-row-deleted.json": "epochs are a plain counter",
    "p3-slow-clock.json": "clocks are thought to run alike",
    "p6-lost-take.json": "lost answer to a take never found again",
    "p10-lost-renewal.json": "lost answer taken for a loss",
}
"""Scenarios that once broke a promise, or would: each with the mutation that takes its remedy away again."""


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator()


def test_every_promise_holds_in_some_schedules(simulator: Simulator) -> None:
    for seed in range(200):
        outcome = simulator.run(random_scenario(seed, configure))
        assert [str(each) for each in outcome.violations] == [], f"seed {seed}"


def test_a_seed_is_the_same_schedule_every_time(simulator: Simulator) -> None:
    for seed in range(5):
        one, two = (runner.run(random_scenario(seed, configure)) for runner in (simulator, Simulator()))
        assert [(each.at, each.who, each.did) for each in one.events] == [
            (each.at, each.who, each.did) for each in two.events
        ]
        assert one.steps == two.steps > 0


def test_all_kept_scenarios_are_tested() -> None:
    assert sorted(file.name for file in REGRESSIONS.iterdir()) == sorted(KEPT)


@pytest.mark.parametrize("name", KEPT)
def test_what_broke_once_holds_now_and_would_break_again_without_its_remedy(simulator: Simulator, name: str) -> None:
    scenario = Scenario.from_json((REGRESSIONS / name).read_text())
    assert Scenario.from_json(scenario.to_json()) == scenario
    with contextlib.suppress(ConfigError):  # timings that are refused now hold as well
        assert [str(each) for each in simulator.run(scenario).violations] == []
    without = Simulator(MUTATIONS[KEPT[name]].edits).run(scenario).violations
    assert name.partition("-")[0].upper() in {each.promise for each in without}


def test_a_schedule_that_breaks_a_promise_is_shrunk_to_what_matters() -> None:
    broken = Simulator(MUTATIONS["lost answer taken for a loss"].edits)
    seed, promise = next(
        (seed, each.promise)
        for seed in range(2000)
        for each in broken.run(random_scenario(seed, configure)).violations
        if each.promise == "P10"
    )
    small = shrink(broken, random_scenario(seed, configure), promise)
    assert len(small.faults) == 1
    assert promise in {each.promise for each in broken.run(small).violations}
    assert str(small).splitlines()[-1].startswith(f"{small.faults[0].kind} of contender ")


def test_a_mutation_whose_source_has_changed_does_not_apply() -> None:
    for old in ("no such line", "def "):
        with pytest.raises(DoesNotApply, match="not once"):
            load(lambda: None, [Edit("election.hold", old, "")])


def test_a_mutation_that_does_no_harm_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = MUTATIONS["deadline never checked"].__class__(
        "P1", (Edit("election.locker", "_TRIES = 3", "_TRIES = 4"),)
    )
    monkeypatch.setitem(MUTATIONS, "harmless", harmless)
    verdict = try_mutation("harmless", seeds=20)
    assert (verdict.ok, verdict.words) == (False, "SURVIVED 20 seeds as to P1")


def test_the_policy_that_is_imported_is_left_alone() -> None:
    import spark_lease.election.hold

    before = spark_lease.election.hold.Hold
    Simulator(MUTATIONS["deadline never checked"].edits)
    assert spark_lease.election.hold.Hold is before
    assert "step__" not in vars(spark_lease.election.hold)


def test_a_frozen_machine_does_nothing_and_its_clock_goes_on(simulator: Simulator) -> None:
    timings = {"lease_duration": 2.0, "poll_period": 0.1}
    pair = (Contender("a", timings, work=100), Contender("b", timings, start=0.5, work=100))
    outcome = simulator.run(Scenario(pair, (Fault("frozen", 0, 3.0, 5.0),), horizon=12))
    assert outcome.hit == {"frozen": 1}
    first = [each for each in outcome.events if each.who == "a0.1"]
    assert not [each for each in first if 3.0 < each.at < 8.0]
    assert any(each.did == "lost" and each.at < 8.2 for each in first)
    assert any(each.who == "b1.1" and each.did == "granted" and each.at < 5.5 for each in outcome.events)


@pytest.mark.shows("P6")
@pytest.mark.parametrize("back", [0.5, 1.9, 2.5, 3600.0])
def test_a_store_whose_clock_is_set_back_does_not_keep_the_lease_of_a_dead_master(
    simulator: Simulator, back: float
) -> None:
    timings = {"lease_duration": 2.0, "poll_period": 0.1}
    pair = (Contender("a", timings, work=100), Contender("b", timings, start=0.5, work=100))
    accident = (Fault("store clock step", 0, 3.0, -back), Fault("crash", 0, 3.01))
    outcome = simulator.run(Scenario(pair, accident, horizon=12))
    assert outcome.violations == []
    granted = [each for each in outcome.events if each.did == "granted"]
    assert granted[1].at < 3.01 + 2 * 2.0 + 0.2


# The model


@pytest.mark.slow
@pytest.mark.fault
def test_the_model_holds_if_every_clock_has_run_out_before_the_stores() -> None:
    states, broken, _ = search(Model(lease=4, deadline=1, budget=1))
    assert not broken
    assert states > 10_000


@pytest.mark.parametrize(
    ("wrong", "timings"),
    [
        ("the stop budget is forgotten", Model(lease=3, deadline=2, budget=1)),
        ("clocks are thought to run alike", Model(lease=4, deadline=2, budget=1)),
        ("there is no room at all", Model(lease=2, deadline=2, budget=1)),
    ],
)
def test_a_wrong_inequality_has_a_counterexample(wrong: str, timings: Model) -> None:
    _, broken, way = search(timings)
    assert broken in ("P1", "P3"), wrong
    assert way[0] == "0 sends a take"
    assert way[-1] == "1 is granted epoch 2"


class _SameEpoch(Model):
    """A take that does not raise the epoch."""

    def _acts(self, state: State, who: int, it: InModel) -> Iterator[tuple[str, State]]:
        for words, new in super()._acts(state, who, it):
            taking = new.contenders[who].request
            if "sends a take" in words and taking:
                same = new.contenders[who]._replace(request=taking._replace(epoch=max(state.epoch, 1)))
                new = _with(new, who, same)
            yield words, new


class _ReleasesEarly(Model):
    """A release that does not wait for the work."""

    def _acts(self, state: State, who: int, it: InModel) -> Iterator[tuple[str, State]]:
        yield from super()._acts(state, who, it)
        if it.mode == "master" and not it.request:
            yield f"{who} releases early", _with(state, who, it._replace(request=Request("release", it.epoch)))


@pytest.mark.parametrize(("rules", "promise"), [(_SameEpoch, "P2"), (_ReleasesEarly, "P5")])
def test_a_wrong_rule_has_a_counterexample(rules: type[Model], promise: str) -> None:
    _, broken, way = search(rules(lease=4, deadline=1, budget=1))
    assert broken == promise
    assert len(way) < 15
