"""Which tests run side by side: two processes for each core, because many tests wait; Spark in one of them.

Two Spark drivers beside each other keep more than two cores busy, and take as long as one after the other.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

_A_WORKER = 1.5
"""Gigabytes of memory that a process with its servers needs."""


def number_of_workers() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return max(1, min(2 * (os.cpu_count() or 1), int(memory / _A_WORKER)))


def group(items: list[pytest.Item]) -> None:
    """Keep each module in one process, so that it starts its session once; and all that needs Spark.

    What needs Spark comes first, then the larger modules: a long one that began last would run alone.
    """
    modules = Counter(map(_module, items))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("spark" if item.get_closest_marker("spark") else _module(item)))
    items.sort(key=lambda item: (item.get_closest_marker("spark") is None, -modules[_module(item)], _module(item)))


def _module(item: pytest.Item) -> str:
    return str(item.path.relative_to(item.config.rootpath))
