"""How a benchmark says what it measured, and whether that is within its limits."""

from __future__ import annotations

from collections.abc import Sequence


def report(title: str, rows: Sequence[tuple[str, float, float, str]]) -> int:
    """Print (what, median, limit, unit) as a table; the exit code: 1 if one is over its limit."""
    print(f"{title:<42}{'MEDIAN':>9}{'LIMIT':>9}")
    for what, value, limit, unit in rows:
        print(f"{what:<42}{value:>9.3g}{limit:>9.3g}  {unit}")
    return int(any(value > limit for _, value, limit, _ in rows))
