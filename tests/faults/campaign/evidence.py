"""What a round has left behind: lines, fenced rows, commits of a Delta table, run keys that are done."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sqlalchemy import Engine

from tests.simulation.history import Did, Event

_OURS = re.compile(r"(\d+) (\d+)")
Written = list[tuple[int, int]]
"""(number, epoch), in the order in which the store has them."""


def lines_of(files: Iterable[Path]) -> Iterator[Event]:
    """A last line that was cut off by a kill is left out."""
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                fields = json.loads(line)
                yield Event(**fields | {"did": Did(fields["did"])})


def holds_of(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Who wrote which lines."""
    holds = defaultdict(list)
    for each in sorted(events, key=lambda each: each.at):
        holds[each.who].append(each)
    return holds


def ends_of(holds: dict[str, list[Event]]) -> Iterator[Event]:
    """The work of each hold ended with its last line."""
    for who, mine in holds.items():
        yield Event(mine[-1].at, who, Did.ENDED, epoch=mine[0].epoch)


def rows_in(engine: Engine) -> list[tuple[int, int, str]]:
    """(number, epoch, run key); a Spark job has its own number in place of the key."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql("SELECT n, epoch, run FROM witness ORDER BY n")
        return [(n, epoch, run) for n, epoch, run in found]


def done_in(folder: Path) -> dict[str, float]:
    """When each run key was first reported as done."""
    files = folder.glob("done-*")
    return {each.name.removeprefix("done-"): float(each.read_text().split("\n")[0]) for each in files}


def commits_in(table: Path) -> Written:
    """Of a Delta table: each commit of a witness names its number and epoch (userMetadata). A claim has number 0."""
    found = []
    for file in sorted(table.glob("_delta_log/*.json")):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        info = next((each["commitInfo"] for each in actions if "commitInfo" in each), {})
        if info.get("engineInfo") == "spark_lease":
            claimed = json.loads(info["operationParameters"]["properties"])
            found.append((0, max(map(int, claimed.values()))))
        elif ours := _OURS.fullmatch(info.get("userMetadata") or ""):
            found.append((int(ours[1]), int(ours[2])))
    return found


def judge_written(written: Written, events: Sequence[Event]) -> Iterator[str]:
    """What was reported as committed and is not there; an earlier epoch behind a later one."""
    there = {n for n, _ in written}
    lost = [each for each in events if each.did is Did.ACCEPTED and int(each.detail) not in there]
    if lost:
        yield f"lost: {len(lost)} that were reported as committed, {lost[0].detail} the first"
    newest = 0
    for n, epoch in written:
        if epoch < newest:
            yield f"P4: {n} of epoch {epoch} was written after one of {newest}"
            return
        newest = epoch


def judge_runs(done: dict[str, float], completed: Sequence[str], events: Sequence[Event]) -> Iterator[str]:
    """A run key that was done again, or whose rows were committed twice."""
    for each in events:
        if each.did is Did.BEGAN and each.at > done.get(each.detail, each.at):
            yield f"P8: {each.who} began run {each.detail} {each.at - done[each.detail]:.3f} s after it was done"
    for run, times in Counter(completed).items():
        if times > 1:
            yield f"P8: run {run} was committed {times} times"
