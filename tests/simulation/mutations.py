"""Faults put into the policy on purpose: the simulator has to find each of them, and say which promise it breaks.

    python -m tests.simulation.mutations [--seeds 2000] [NAME …]     (make mutate)

A mutation is a piece of the policy's source and what stands there instead. It fails the run if it survives its seeds,
if what it breaks is another promise than expected, and if its piece of source is not there any more.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from .policy import DoesNotApply, Edit
from .scenario import random_scenario
from .simulate import Simulator

_CHECK = Edit(
    "election.hold", "if not self._lost and self._clock.now() < self._deadline.instant:", "if not self._lost:"
)
_NEVER_FOUND = Edit("election.locker", "mine, held = is_grant_of(seen.record, self._holder), ", "mine, held = False, ")
_NAME_ALONE = Edit(
    "election.record", "{label or os.uname().nodename}:{os.getpid()}:{wall_time():.0f}:{os.urandom(4).hex()}", "{label}"
)


@dataclass(frozen=True)
class Mutation:
    """`breaks`: the promises of which at least one must be found broken. `like`: whose rule it is."""

    breaks: str
    edits: tuple[Edit, ...]
    like: str = ""


def _mutation(breaks: str, *edits: Edit, like: str = "") -> Mutation:
    return Mutation(breaks, edits, like)


MUTATIONS = {
    "deadline counted from the answer": _mutation(
        "P1 P3",
        Edit(
            "election.contender",
            "        self._still_mine()\n        self._deadline.publish(sent + self._good_for, ahead)",
            "        self._still_mine()\n        self._deadline.publish(self._clock.now() + self._good_for, ahead)",
        ),
        Edit(
            "election.contender",
            "            deadline = sent + self._good_for\n",
            "            deadline = self._clock.now() + self._good_for\n",
        ),
        like="client-go, Patroni",
    ),
    "deadline never checked": _mutation("P1 P3", _CHECK, like="ActiveMQ, tooz, sqlalchemy-dlock, kazoo, pglease"),
    "one failed renewal ends the renewing, and nobody looks at the deadline": _mutation(
        "P1 P3",
        _CHECK,
        Edit(
            "election.keepalive",
            "lease.name, lease.remaining(), error)\n",
            "lease.name, lease.remaining(), error)\n        return None\n",
        ),
        like="ShedLock's keep-alive",
    ),
    "nobody watches the deadline": _mutation(
        "P3", Edit("election.keepalive", "    return lease.loss()\n", "    return None\n"), like="DynamoDB lock client"
    ),
    "epoch not raised at take-over": _mutation("P2", Edit("election.record", "record.epoch + 1", "record.epoch")),
    "epochs are a plain counter": _mutation(
        "P2", Edit("testing.store", "epoch = max(new.epoch, self._store_ms())", "epoch = new.epoch")
    ),
    "holder not unique": _mutation("P1 P2 P3", _NAME_ALONE, like="ActiveMQ with equal broker names"),
    "epoch predicate dropped from renew, names alike": _mutation(
        "P1 P2 P3",
        _NAME_ALONE,
        _NEVER_FOUND,
        Edit(
            "election.locker",
            "is_grant_of(seen.record, self._holder, mine.epoch)",
            "is_grant_of(seen.record, self._holder)",
        ),
        like="ActiveMQ's keep-alive statement",
    ),
    "renew accepts an expired row of mine after another's": _mutation(
        "P1 P2",
        Edit(
            "election.locker",
            "return Denied(seen.record.holder, epoch=seen.record.epoch) if seen.record else Denied(None)\n",
            "if seen.record is None or seen.record.holder is not None:\n"
            "                    return Denied(seen.record.holder if seen.record else None)\n"
            "                again = LeaseRecord(self._holder, mine.epoch, self._duration)\n"
            "                if self._keep(self._store.swap(self._name, seen.record, again)):\n"
            "                    return Grant(mine.epoch)\n",
        ),
        like="ActiveMQ's keep-alive statement",
    ),
    "release without comparing": _mutation(
        "P1 P3 P10",
        Edit("election.locker", "if mine is None or not is_grant_of(mine, self._holder):", "if mine is None:"),
        like="ShedLock's unlock",
    ),
    "lost answer taken for a loss": _mutation(
        "P10",
        Edit(
            "election.locker",
            "            seen = self._store.read(self._name)\n            if not",
            "            seen = Snapshot(None)\n            if not",
        ),
        like="DynamoDB lock client",
    ),
    "lost answer to a take never found again": _mutation("P6", _NEVER_FOUND),
    "lost answer taken for a success": _mutation(
        "P1 P3",
        Edit(
            "election.contender",
            "            answer = self._locker.renew()\n",
            "            try:\n                answer = self._locker.renew()\n"
            "            except StoreError:\n                answer = Grant(self._epoch)\n",
        ),
        like="ActiveMQ with stopOnError = false",
    ),
    "own wall clock used for expiry": _mutation(
        "P1 P3 P6",
        Edit(
            "election.record",
            "        return seen.left\n",
            "        return (seen.record.stamp or 0) / 1000 - wall_time()\n",
        ),
        like="pglease, ActiveMQ",
    ),
    "contender uses its own duration instead of the stored one": _mutation(
        "P1 P3 P6",
        Edit(
            "election.locker",
            "still_for=self._still_for(seen.record))\n",
            "still_for=self._still_for(seen.record) + (seen.record.duration - self._duration if seen.record else 0))\n",
        ),
        like="fabric8's Kubernetes client",
    ),
    "a store's clock that was set back is believed": _mutation(
        "P6",
        Edit("election.record", "return left > record.duration and", "return False and"),
    ),
    "a broker is believed to have the duration that a contender left": _mutation(
        "P1",
        Edit(
            "election.record",
            "left > record.duration and _OURS.search(record.holder) is not None",
            "left > record.duration",
        ),
    ),
    "standing still counted from before the answer": _mutation(
        "P1 P3",
        Edit(
            "election.locker",
            "            seen = Snapshot(freed, 0.0) if freed",
            "            self._before = self._clock.now()\n            seen = Snapshot(freed, 0.0) if freed",
        ),
        Edit(
            "election.locker",
            "self._standstill.still_for(record, self._clock.now())",
            "self._standstill.still_for(record, self._before)",
        ),
    ),
    "stop budget ignored by the inequality": _mutation(
        "P3",
        Edit("config.settings", "work = self.renew_deadline + self.stop_budget", "work = self.renew_deadline"),
        like="pglease, which compares no timings at all",
    ),
    "stop budget ignored by the end": _mutation(
        "P3", Edit("election.hold", "+ self._config.stop_budget\n", "+ self._config.lease_duration\n")
    ),
    "clocks are thought to run alike": _mutation("P3", Edit("config.settings", " * (1 + CLOCK_RATE_ERROR) >=", " >=")),
    "released before the work has ended": _mutation(
        "P5",
        Edit(
            "election.lifecycle",
            "        over = _see_out(lease, work, clock, stop_budget, dying)\n",
            "        lease.give_back()\n        over = _see_out(lease, work, clock, stop_budget, dying)\n",
        ),
        like="client-go with ReleaseOnCancel",
    ),
    "released although the work may still run": _mutation(
        "P5", Edit("election.lifecycle", "if lost is None and over and answered:", "if lost is None and answered:")
    ),
    "what an operator took is released although the work may still run": _mutation(
        "P5", Edit("election.lifecycle", "    elif over and answered:\n", "    elif answered:\n")
    ),
    "the end of a hold does not heed the loss": _mutation(
        "P3", Edit("election.lifecycle", "(until := min(end, lease.stop_by()))", "(until := end)")
    ),
    "work is never killed": _mutation("P3", Edit("election.lifecycle", "        work.kill()\n", "        pass\n")),
    "a no leaves time to be polite": _mutation(
        "P3",
        Edit("election.hold", "if reason in (Loss.TAKEN, Loss.FENCED, Loss.UNREADABLE) and not by_force:", "if False:"),
    ),
    "a renewal is sent after the deadline": _mutation(
        "P3",
        Edit("election.contender", "ahead()\n        self._still_mine()\n", "ahead()\n"),
    ),
    "an unreachable store looks like standby": _mutation(
        "P10",
        Edit(
            "election.contender",
            "                problem = error\n",
            "                problem = LeaseHeldByOther(self.name, '', 0.0)\n",
        ),
    ),
    "compare and swap does not compare": _mutation(
        "P1 P2 P3", Edit("testing.store", "if self.records.get(name) != old:", "if False:")
    ),
}


@dataclass(frozen=True)
class Verdict:
    name: str
    ok: bool
    words: str


def try_mutation(name: str, *, seeds: int) -> Verdict:
    """Run scenarios on the mutant until one breaks a promise that it is expected to break."""
    mutation = MUTATIONS[name]
    try:
        simulator = Simulator(mutation.edits)
    except DoesNotApply as error:
        return Verdict(name, False, f"DOES NOT APPLY: {error}")
    others: set[str] = set()
    for seed in range(seeds):
        violations = simulator.run(random_scenario(seed, simulator.policy.sources.configure)).violations
        found = {each.promise for each in violations}
        if found & set(mutation.breaks.split()):
            return Verdict(name, True, f"{' '.join(sorted(found)):<12} by seed {seed}")
        others |= found
    broke = f", broke only {' '.join(sorted(others))}" if others else ""
    return Verdict(name, False, f"SURVIVED {seeds} seeds as to {mutation.breaks}{broke}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutation; default: all")
    parser.add_argument(
        "--seeds", type=int, default=2000, help="how many scenarios each has to survive to fail the run"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    names = options.names or list(MUTATIONS)
    if unknown := [name for name in names if name not in MUTATIONS]:
        parser.error(f"no such mutation: {', '.join(unknown)}; there are: {'; '.join(MUTATIONS)}")
    bad = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for verdict in pool.map(partial(try_mutation, seeds=options.seeds), names):
            like = MUTATIONS[verdict.name].like
            print(f"{verdict.name:<72} {verdict.words}" + (f"   (like {like})" if like else ""), flush=True)
            bad += not verdict.ok
    print(f"\n{len(names) - bad} of {len(names)} mutations caught")
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
