"""What the Delta table itself says of who wrote what, and the check that this is as it should be."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from deltalake import DeltaTable, QueryBuilder


@dataclass(frozen=True, slots=True)
class Commit:
    """One signed commit. `day` is empty for the claim of the table; `at` is seconds since 1970, the writer's clock."""

    version: int
    at: float
    epoch: int
    holder: str
    day: str


def commits(table: Path) -> list[Commit]:
    """All commits in the order of their versions. Raises ValueError for one that is not signed."""
    found = []
    for entry in reversed(DeltaTable(str(table)).history()):
        signed = json.loads(entry.get("userMetadata") or "{}")
        if "epoch" not in signed:
            raise ValueError(f"version {entry['version']} ({entry['operation']}) is not signed")
        day = signed.get("day", "")
        found.append(Commit(entry["version"], entry["timestamp"] / 1000, signed["epoch"], signed["holder"], day))
    return found


def problems(table: Path, history: Sequence[Commit], days: int) -> list[str]:
    """Everything that is wrong with the table, in words; empty if every day was written by one master, in turn."""
    wrong = []
    for earlier, later in pairwise(history):
        if later.epoch < earlier.epoch:
            wrong.append(f"version {later.version}: epoch {later.epoch} wrote after epoch {earlier.epoch}")
    epochs = defaultdict(set)
    for commit in history:
        if commit.day:
            epochs[commit.day].add(commit.epoch)
    wrong += [f"{day} was written under the epochs {sorted(those)}" for day, those in epochs.items() if len(those) > 1]
    expected = _flights_of(table.parent / "input" / "flights.csv", days) if history else {}
    found = _rows_of(table) if history else {}
    wrong += [f"{day} has no commit" for day in sorted(set(expected) - set(epochs))]
    wrong += [
        f"{day} has {found.get(day, 0)} flights, not {flights}"
        for day, flights in sorted(expected.items())
        if found.get(day, 0) != flights
    ]
    return wrong if history else ["nothing was written"]


def _flights_of(file: Path, days: int) -> dict[str, int]:
    """Flights of each of the first `days` days, counted in the input."""
    counted: dict[str, int] = defaultdict(int)
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            counted[f"{int(row['year'])}-{int(row['month']):02}-{int(row['day']):02}"] += 1
    return {day: counted[day] for day in sorted(counted)[:days]}


def _rows_of(table: Path) -> dict[str, int]:
    """Flights of each day, summed up over the rows of the table."""
    query = "SELECT CAST(day AS VARCHAR) AS day, SUM(flights) AS flights FROM t GROUP BY day"
    rows = QueryBuilder().register("t", DeltaTable(str(table))).execute(query).read_all()
    days, flights = ([value.as_py() for value in rows.column(name)] for name in ("day", "flights"))
    return dict(zip(days, flights, strict=True))


def table_of_epochs(history: Sequence[Commit], protection: Mapping[int, str]) -> str:
    """Who wrote which days under which epoch, with which protection, and how long no one wrote before."""
    lines = [f"{'EPOCH':<15}{'HOLDER':<36}{'PROTECTION':<12}{'DAYS':<26}{'COMMITS':<9}GAP BEFORE"]
    last: Commit | None = None
    for epoch in sorted({commit.epoch for commit in history}):
        mine = [commit for commit in history if commit.epoch == epoch]
        days = [commit.day for commit in mine if commit.day]
        span = f"{days[0]} – {days[-1]}" if days else "none"
        gap = f"{mine[0].at - last.at:.1f} s" if last else "–"
        level = protection.get(epoch, "?")
        lines.append(f"{epoch:<15}{mine[0].holder:<36}{level:<12}{span:<26}{len(mine):<9}{gap}")
        last = mine[-1]
    return "\n".join(lines)
