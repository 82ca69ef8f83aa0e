"""Which tests run side by side: two processes for each core, because many tests wait; Spark in one of them.

Where there is a process for each core and no more (`make test-slow`), each may have a Spark: those tests wait as well.
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
    """Keep each module in one process, so that it starts its session once; and all that needs Spark, if need be.

    What needs Spark comes first, then the larger modules: a long one that began last would run alone.
    """
    modules = Counter(map(_module, items))
    one_spark = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > (os.cpu_count() or 1)
    for item in items:
        is_spark = one_spark and item.get_closest_marker("spark")
        item.add_marker(pytest.mark.xdist_group("spark" if is_spark else _module(item)))
    items.sort(key=lambda item: (item.get_closest_marker("spark") is None, -modules[_module(item)], _module(item)))


def _module(item: pytest.Item) -> str:
    return str(item.path.relative_to(item.config.rootpath))
