"""Prints tables for people."""

import re
import shutil
import sys
from collections.abc import Sequence

_NARROW = 5
"""A column is not cut below so many characters."""
_TIME = re.compile(r"((?:≤ )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print a table. In a narrower terminal it is made to fit: columns without values are left out, times lose their
    fraction, then the widest other columns are cut. Output for a program is never cut."""
    widths = _widths(rows)
    if sys.stdout.isatty() and _total(widths) > (room := shutil.get_terminal_size().columns):
        used = [number for number, column in enumerate(zip(*rows, strict=True)) if any(column[1:])]
        rows = [[_TIME.sub(r"\1Z", row[number]) for number in used] for row in rows]
        widths = _widths(rows)
        times = {number for row in rows for number, cell in enumerate(row) if _TIME.fullmatch(cell)}
        others = sorted(set(range(len(used))) - times)
        while others and _total(widths) > room and max(widths[each] for each in others) > _NARROW:
            widths[max(others, key=lambda each: widths[each])] -= 1
    for row in rows:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
