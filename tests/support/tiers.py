"""Which tests run when: `make check` (a minute), `make test` (minutes), `make test-all` (everything).

A test's tier is found from its markers and parameters, so that a new test is in the right one without a list to keep:
- `matrix`: the same test once more, with another driver, a twin of PostgreSQL, a row lock besides the lease, or an
  object store.
- `cluster`: YARN, a standalone cluster, Spark Connect.
- `fault`: a variant of another test, with another victim, store, ending or Spark; or a fault that is rare and takes a
  minute. Only `make test-variants` runs it.
- `slow`: takes long. A test that needs Spark is slow unless it shows a promise. One that needs a browser is slow.
- `shows("P3", …)`: the test of `make test` for these promises (ARCHITECTURE.md, "What is promised").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

LATER = ("matrix", "cluster", "slow")
"""Markers of the tests that `make test` leaves to `make test-all`."""

PROMISES = tuple(f"P{number}" for number in range(1, 11))


def once_more(*values: object, id: str | None = None) -> ParameterSet:
    """Parameters whose test only `make test-variants` runs."""
    return pytest.param(*values, marks=pytest.mark.fault, id=id)


_TWIN = re.compile(r"\[.*(psycopg|mariadb|mysql|objects|object store|(postgresql|sqlite) database|session that locks)")


def sort_into_tiers(items: Iterable[pytest.Item]) -> None:
    """Give each test the markers that follow from what it needs, and note which promises it shows."""
    for item in items:
        shown = promises_of(item)
        if _TWIN.search(item.name) or (item.get_closest_marker("mariadb") and not shown):
            item.add_marker(pytest.mark.matrix)
        if "objects" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.matrix)
        if not shown and (item.get_closest_marker("spark") or "browser" in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        item.user_properties += [("shows", promise) for promise in shown]


def promises_of(item: pytest.Item) -> list[str]:
    return [promise for marker in item.iter_markers("shows") for promise in marker.args]


def promises_line(reports: Iterable[pytest.TestReport]) -> str:
    """How many of these tests show each promise; empty if none does."""
    shown = Counter(value for each in reports for name, value in each.user_properties if name == "shows")
    return "shown here: " + ", ".join(f"{each} by {shown[each]}" for each in PROMISES if shown[each]) if shown else ""


def left_out_lines(reports: Iterable[pytest.TestReport]) -> list[str]:
    """What was skipped, a line for each reason."""
    reasons: Counter[str] = Counter()
    for each in reports:
        reason = each.longrepr[2] if isinstance(each.longrepr, tuple) else str(each.longrepr)
        reasons[reason.removeprefix("Skipped: ")] += 1
    return [f"left out: {number} tests: {reason}" for reason, number in reasons.most_common()]
