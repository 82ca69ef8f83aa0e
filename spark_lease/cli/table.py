"""Prints tables for people."""

import re
import shutil
import sys
from collections.abc import Sequence

_NARROW = 8
"""A column is not cut below so many characters."""
_TIME = re.compile(r"((?:≤ )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z")


def print_table(rows: Sequence[Sequence[str]], *, whole: Sequence[str] = (), spare: Sequence[str] = ()) -> None:
    """Print a table. In a narrower terminal it is made to fit: columns without values are left out, times lose their
    fraction, then the widest other columns are cut. If that is not enough, the columns in `spare` are left out, the
    first one first; only then are those in `whole` cut. Output for a program is never cut."""
    widths = _widths(rows)
    if sys.stdout.isatty() and _total(widths) > (room := shutil.get_terminal_size().columns):
        columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
        columns = [tuple(_TIME.sub(r"\1Z", cell) for cell in column) for column in columns]
        for left_out in range(len(spare) + 1):
            kept = [column for column in columns if column[0] not in spare[:left_out]]
            widths = _fitted(kept, room, but_not=whole)
            if _total(widths) <= room:
                break
        else:
            widths = _fitted(kept, room)
        rows = list(zip(*kept, strict=True))
    for row in rows:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _fitted(columns: Sequence[Sequence[str]], room: int, *, but_not: Sequence[str] = ()) -> list[int]:
    widths = [max(map(len, column)) for column in columns]
    is_cut = [column[0] not in but_not and not any(map(_TIME.fullmatch, column)) for column in columns]
    others = [number for number, cut in enumerate(is_cut) if cut]
    while others and _total(widths) > room and max(widths[each] for each in others) > _NARROW:
        widths[max(others, key=lambda each: widths[each])] -= 1
    return widths


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
