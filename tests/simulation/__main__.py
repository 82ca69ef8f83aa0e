"""Run scenarios by the thousand on the policy and judge them.

    python -m tests.simulation [--seeds 10000] [--first 0] [--jobs 2] [--keep]      (make simulate SEEDS=10000)
    python -m tests.simulation --show 17 | --show FILE     tell one scenario and all that happened in it

A scenario that breaks a promise is shrunk and printed, and with --keep written to regressions/. Fails also if a kind of
fault was never hit. The same seed is the same scenario, on any machine.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from .checker import line
from .scenario import KINDS, TRAITS, Scenario, random_scenario
from .shrink import shrink
from .simulate import Simulator

REGRESSIONS = Path(__file__).parent / "regressions"
CHUNK = 100
SHOWN = 3
"""How many broken scenarios are shrunk and shown."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=10_000, help="how many scenarios")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--keep", action="store_true", help="keep what broke as a regression test")
    parser.add_argument("--show", metavar="SEED|FILE", help="tell one scenario")
    options = parser.parse_args(arguments)
    return show(options.show) if options.show else explore(options)


def show(which: str) -> int:
    simulator = Simulator()
    if which.isdigit():
        scenario = random_scenario(int(which), simulator.policy.sources.configure)
    else:
        scenario = Scenario.from_json(Path(which).read_text())
    outcome = simulator.run(scenario)
    print(scenario, end="\n\n")
    for event in sorted(outcome.events, key=lambda each: each.at):
        print(line(event))
    print(*(f"\n{violation}" for violation in outcome.violations), sep="\n")
    return 1 if outcome.violations else 0


def explore(options: argparse.Namespace) -> int:
    start, end = time.monotonic(), options.first + options.seeds
    counts: Counter[str] = Counter()
    broken: list[int] = []
    chunks = [range(first, min(first + CHUNK, end)) for first in range(options.first, end, CHUNK)]
    with ProcessPoolExecutor(options.jobs) as pool:
        for number, (found, some) in enumerate(pool.map(_run_chunk, chunks), start=1):
            counts += found
            broken += some
            if sys.stderr.isatty():
                print(f"\r{number * CHUNK:>7} of {options.seeds}, {len(broken)} broken", end="", file=sys.stderr)
    took = time.monotonic() - start
    print(f"\n{'FAULT OR TRAIT':<28}{'TIMES':>9}")
    for kind in (*KINDS, *TRAITS):
        print(f"{kind:<28}{counts[kind]:>9}")
    print(
        f"\n{options.seeds} schedules, {counts['events']} events, {counts['steps']} steps, {counts['grants']} grants, "
        f"{counts['losses']} losses, {took:.0f} s"
    )
    simulator = Simulator()
    for seed in broken[:SHOWN]:
        _explain(simulator, seed, keep=options.keep)
    missed = [kind for kind in (*KINDS, *TRAITS) if not counts[kind]]
    if missed:
        print(f"never hit: {', '.join(missed)}: run more seeds, or mend the generator")
    if broken:
        print(f"BROKEN by {len(broken)} seeds: {' '.join(map(str, broken[:20]))}")
    else:
        print("every promise held in every schedule")
    return 1 if broken or missed else 0


def _run_chunk(seeds: range) -> tuple[Counter[str], list[int]]:
    simulator, counts, broken = Simulator(), Counter[str](), []
    for seed in seeds:
        scenario = random_scenario(seed, simulator.policy.sources.configure)
        outcome = simulator.run(scenario)
        counts += outcome.hit
        counts.update(scenario.traits())
        did = Counter(each.did for each in outcome.events)
        counts.update(events=len(outcome.events), steps=outcome.steps, grants=did["granted"], losses=did["lost"])
        if outcome.violations:
            broken.append(seed)
    return counts, broken


def _explain(simulator: Simulator, seed: int, *, keep: bool) -> None:
    scenario = random_scenario(seed, simulator.policy.sources.configure)
    promise = simulator.run(scenario).violations[0].promise
    small = shrink(simulator, scenario, promise)
    shown = next(each for each in simulator.run(small).violations if each.promise == promise)
    print(f"\nseed {seed} breaks {promise}; its smallest form:\n\n{small}\n\n{shown}\n")
    if keep:
        text = small.to_json()
        file = REGRESSIONS / f"{promise.lower()}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
        file.write_text(text + "\n")
        print(f"kept as {file}")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
