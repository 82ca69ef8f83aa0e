"""Random faults on small data centres, for hours: two sites, a database, and a checker that knows nothing of the code.

    make campaign                                        ten minutes, all stores in turn
    make campaign ARGS='--minutes 120 --store MariaDB'
    make campaign ARGS='--store MariaDB --seed 17 --shrink'
    make campaign ARGS='--door submit --side-by-side 2'  Spark jobs; --door airflow: Airflow's tasks

Each round starts the same guarded work on both sites, strikes with one to three faults, and is judged. Verdicts are
kept in out/campaign.jsonl, a line for each round, and a run goes on where the last one of the same code ended. `--seed`
plays one round again; `--shrink` leaves out its faults one by one, as long as it is still violated. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.campaign.airflow_home import AIRFLOW_PYTHON, migrate
from tests.faults.campaign.machine import build_kernel, not_here, remove_groups
from tests.faults.campaign.round import AIRFLOW, CONTROLS, DOORS, LACKING, NO_KERNEL, SPARK
from tests.faults.campaign.schedule import Kind, schedule
from tests.faults.campaign.stores import STORES, kinds_of
from tests.services import bindfs, minio, pgbouncer

ROOT = Path(__file__).parents[3]
RESULTS, EVIDENCE = ROOT / "out" / "campaign.jsonl", ROOT / "out" / "campaign"
_BATCH, _A_FEW = 10, 3
"""Rounds of one data centre, before it is built anew; fewer in a short campaign, so that each store has its turn."""
_SHORT = 10.0
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "ss": "iproute2", "unshare": "util-linux"}
"""And the packages that have them."""
_APART = ["--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
"""When its first process ends, the kernel ends all others and removes the network."""


class DataCentre:
    """One `worker`, in network namespaces of its own."""

    def __init__(self, store: str) -> None:
        EVIDENCE.mkdir(parents=True, exist_ok=True)
        self._name = f"spark-lease-campaign-{secrets.token_hex(4)}"
        words = [sys.executable, "-m", "tests.faults.campaign.worker", store, self._name, str(EVIDENCE)]
        self._process = subprocess.Popen(
            ["unshare", *_APART, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def play(self, seed: int, door: str, without: tuple[int, ...] = ()) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        order = {"seed": seed, "door": door, "without": without}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, f"seed {seed}: the data centre broke down"
        verdict: dict[str, Any] = json.loads(line)
        return verdict

    def close(self) -> None:
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        remove_groups(self._name)


def results() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def batches(stores: list[str], door: str, code: str, batch: int) -> Iterator[tuple[str, list[int]]]:
    """Every store in turn, with the next seeds that it has not seen with this code."""
    mine = [each for each in results() if each["door"] in ([door] if door else DOORS) and each["code"] == code]
    before = {(each["store"], each["seed"]) for each in mine}
    for first in itertools.count(0, batch):
        for store in stores:
            if seeds := [seed for seed in range(first, first + batch) if (store, seed) not in before]:
                yield store, seeds


class Campaign:
    def __init__(self, stores: list[str], door: str, minutes: float, side_by_side: int) -> None:
        self._door, self._side_by_side = door, side_by_side
        self._code = code()
        batch = _A_FEW if minutes < _SHORT else _BATCH
        self._batches = batches(stores, door, self._code, batch)
        self._end = time.monotonic() + 60 * minutes
        self._lock = threading.Lock()
        self._centres = set[DataCentre]()
        self.rounds = self.violated = 0

    def run(self) -> None:
        working = [threading.Thread(target=self._work, daemon=True) for _ in range(self._side_by_side)]
        for each in working:
            each.start()
        try:
            for each in working:
                each.join()
        finally:  # interrupted: what a control group has frozen would stay for good
            for number in (signal.SIGINT, signal.SIGTERM):  # nor may a second one leave a half of it
                signal.signal(number, signal.SIG_IGN)
            with self._lock:
                self._end = 0.0
                for centre in [*self._centres]:
                    centre.close()

    def _work(self) -> None:
        while time.monotonic() < self._end:
            with self._lock:
                store, seeds = next(self._batches)
                centre = DataCentre(store)
                self._centres.add(centre)
            try:
                for seed in seeds:
                    if time.monotonic() >= self._end:
                        break
                    self._note(centre.play(seed, self._door))
            except AssertionError as error:
                if self._end:  # else that is why
                    broken = {"store": store, "door": self._door, "seed": seeds[0], "violations": [str(error)]}
                    self._note(broken | {"faults": []})
            finally:
                centre.close()
                self._centres.discard(centre)

    def _note(self, verdict: dict[str, Any]) -> None:
        with self._lock:
            self.rounds += 1
            self.violated += bool(verdict["violations"])
            with RESULTS.open("a") as file:
                file.write(json.dumps(verdict | {"code": self._code}) + "\n")
            print(f"{self.rounds}: {told(verdict)}", flush=True)


def missing() -> str:
    """What this machine lacks for it; empty if nothing."""
    if os.geteuid():
        return "a campaign needs root: it makes network namespaces, and freezes what others run"
    lacking = [f"{tool} ({package})" for tool, package in _TOOLS.items() if not shutil.which(tool)]
    return f"a campaign needs {', '.join(lacking)}" if lacking else ""


def lacks(store: str) -> str:
    """What this machine lacks for that store; empty if nothing."""
    if "file server" in store and not bindfs.found():
        return bindfs.MISSING
    if "PgBouncer" in store and not pgbouncer.found():
        return pgbouncer.MISSING
    return minio.MISSING if "MinIO" in store and not minio.found() else ""


def code() -> str:
    """Which code is judged: the tree of the package, as git names it."""
    changed = subprocess.run(["git", "status", "--porcelain", "spark_lease"], cwd=ROOT, capture_output=True, check=True)
    tree = subprocess.run(
        ["git", "rev-parse", "HEAD:spark_lease"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    return tree.stdout.strip()[:12] + "+" * bool(changed.stdout)


def told(verdict: dict[str, Any]) -> str:
    struck = ", ".join(f"{each['kind']} ({each['site']})" for each in verdict["faults"])
    found = "".join(f"\n    {each}" for each in verdict["violations"])
    return f"{verdict['store']}, seed {verdict['seed']}: {struck}: {'VIOLATED' + found if found else 'ok'}"


def again(store: str, seed: int, door: str, *, shrink: bool) -> bool:
    """Play one round once more; whether it was violated."""
    centre, without = DataCentre(store), list[int]()
    verdict = centre.play(seed, door)
    print(told(verdict))
    if shrink and verdict["violations"]:
        for number in range(len(schedule(seed, kinds_of(store)))):
            fewer = centre.play(seed, door, (*without, number))
            if fewer["violations"]:
                without.append(number)
                print(told(fewer))
    centre.close()
    return bool(verdict["violations"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.campaign")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--side-by-side", type=int, default=4, metavar="N", help="data centres at a time")
    parser.add_argument("--store", choices=STORES)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--door", choices=[*DOORS, SPARK, AIRFLOW, *CONTROLS], default="", help="how work is guarded")
    asked = parser.parse_args()
    if why := missing():
        parser.error(why)
    if asked.door == AIRFLOW:
        if not AIRFLOW_PYTHON.exists():
            parser.error("Airflow is not here: make airflow")
        migrate()
    if asked.door == NO_KERNEL and Kind.CLOCK in not_here():
        parser.error("this control needs cc (gcc)")
    build_kernel()
    if lacking := not_here():
        print(f"left out: {', '.join(lacking)} (these need cc, and control groups of version 1)")
    if asked.seed is not None:
        return int(again(asked.store or "PostgreSQL", asked.seed, asked.door, shrink=asked.shrink))
    of_control = ["PostgreSQL and its replica" if asked.door == LACKING else "PostgreSQL"]
    stores = [asked.store] if asked.store else of_control if asked.door in CONTROLS else [*STORES]
    for store, why in [(each, why) for each in stores if (why := lacks(each))]:
        print(f"left out: {store} ({why})")
        stores.remove(store)
    campaign = Campaign(stores, asked.door, asked.minutes, asked.side_by_side)
    campaign.run()
    print(f"{campaign.rounds} rounds, {campaign.violated} violated; all of them: {RESULTS.relative_to(ROOT)}")
    return int(bool(campaign.violated) != (asked.door in CONTROLS))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
