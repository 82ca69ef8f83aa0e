"""Knowing of every SparkContext of this process at the moment it comes to life, whoever makes it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .demotion import spark_context

Seen = Callable[[Any], None]
_watchers: list[Seen] = []


def watch_contexts(seen: Seen) -> None:
    """Call `seen` with the context that there is, and with each that is made until `unwatch_contexts`, before anybody
    can use it. If `seen` raises, there is no such context. Imports pyspark, if it is installed."""
    if _patch():
        _watchers.append(seen)
        if (context := spark_context()) is not None:
            seen(context)


def unwatch_contexts(seen: Seen) -> None:
    if seen in _watchers:
        _watchers.remove(seen)


def _patch() -> bool:
    try:
        from pyspark import SparkContext  # heavy; the job will import it, most often it has
    except ImportError:  # none, or the client of Spark Connect, which has no contexts
        return False
    made = SparkContext._do_init
    if hasattr(made, "tells_spark_lease"):
        return True

    @functools.wraps(made)
    def do_init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        for seen in list(_watchers):
            seen(self)

    do_init.tells_spark_lease = True  # type: ignore[attr-defined]
    SparkContext._do_init = do_init
    return True
