"""Tables for people to read."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

_NARROW = 8
"""Characters below which no column is cut."""


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """In a terminal the widest columns are cut to its width; what a program reads is whole."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sys.stdout.isatty():
        room = shutil.get_terminal_size().columns - 2 * (len(widths) - 1)
        while sum(widths) > room and max(widths) > _NARROW:
            widths[widths.index(max(widths))] -= 1
    for row in rows:
        cells = (_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """One per line, for the details of one thing."""
    width = max(len(key) for key, _ in pairs)
    for key, value in pairs:
        print(f"{key.ljust(width)}  {value}".rstrip())


def _cut(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
