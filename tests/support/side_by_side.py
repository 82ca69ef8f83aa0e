"""Which tests run side by side: twice as many processes as cores, because most tests wait, and Spark in two of them."""

from __future__ import annotations

import os
from collections import Counter

import pytest

_A_WORKER, _TWO_SPARKS = 1.5, 8.0
"""Gigabytes that a worker with its servers needs; those that two Spark drivers beside each other need."""


def memory() -> float:
    """Gigabytes of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def number_of_workers() -> int:
    return max(1, min(2 * (os.cpu_count() or 1), int(memory() / _A_WORKER)))


def group(items: list[pytest.Item]) -> None:
    """Keep each module in one process, so that it starts its session once; and all that needs Spark in two.

    What needs Spark comes first, then the larger modules: a long one that began last would run alone.
    """
    modules = Counter(map(_module, items))
    spark = sorted({_module(item) for item in items if item.get_closest_marker("spark")})
    lanes = 2 if memory() >= _TWO_SPARKS else 1
    for item in items:
        name = _module(item)
        is_spark = item.get_closest_marker("spark")
        item.add_marker(pytest.mark.xdist_group(f"spark {spark.index(name) % lanes}" if is_spark else name))
    items.sort(key=lambda item: (item.get_closest_marker("spark") is None, -modules[_module(item)], _module(item)))


def _module(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]
