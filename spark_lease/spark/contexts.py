"""Notices each SparkContext of this process as soon as it exists, whichever code makes it."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ..system.signals import keep_sigint
from .connect import is_connected
from .jvm import live_context
from .pyspark_import import ask_numpy_late

OnContext = Callable[[Any | None], None]
OnSession = Callable[[Any, dict[str, str]], None]
_PATIENCE = 60.0
_watchers: list[OnContext] = []
_on_session: list[OnSession] = []
_applications: list[str] = []


def application_id() -> str:
    """The id of the last Spark application that was watched; empty if there was none. Asks no JVM."""
    return _applications[-1] if _applications else ""


def watch_contexts(seen: OnContext) -> None:
    """Call `seen` with the existing context and with each new one until `unwatch_contexts`, before any code can use it;
    with None for a session on a Spark Connect server. If `seen` raises, the new context or session cannot be used.
    Imports pyspark, if it is installed."""
    if is_watchable():
        _watchers.append(seen)
        with _nobody_makes_one():
            context = live_context()
        if context is not None:  # one that is half made still will be told
            _tell(context, [seen])


@contextlib.contextmanager
def _nobody_makes_one() -> Iterator[None]:
    """Keep other threads from making a context, by the lock of `getOrCreate`: one may be half made."""
    from pyspark import SparkContext

    locked = SparkContext._lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if locked:
            SparkContext._lock.release()


def unwatch_contexts(seen: OnContext) -> None:
    if seen in _watchers:
        _watchers.remove(seen)


def watch_sessions(seen: OnSession) -> None:
    """Call `seen` with each session that a builder returns from now on, and with the builder's options.

    Imports pyspark, if it is installed."""
    if is_watchable():
        _on_session.append(seen)


def unwatch_sessions(seen: OnSession) -> None:
    if seen in _on_session:
        _on_session.remove(seen)


def is_watchable() -> bool:
    """Import pyspark and prepare to watch it; False if it is missing, or only the client of Spark Connect."""
    try:
        from pyspark import SparkContext  # heavy; the job will import it, or has already
    except ImportError:  # none, or the client of Spark Connect, which has no contexts
        return False
    made = SparkContext._do_init
    if hasattr(made, "tells_spark_lease"):
        return True
    _watch_builder()
    ask_numpy_late()

    @functools.wraps(made)
    def do_init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        keep_sigint()
        _tell(self, list(_watchers))

    do_init.tells_spark_lease = True  # type: ignore[attr-defined]
    SparkContext._do_init = do_init
    return True


def _watch_builder() -> None:
    """Watch the builder too: a Spark Connect session has no context, and a builder may return an existing session."""
    from pyspark.sql import SparkSession  # imported with pyspark

    for made in (SparkSession.Builder.getOrCreate, SparkSession.Builder.create):
        setattr(SparkSession.Builder, made.__name__, _watched(made))


def _watched(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(made)
    def make(self: Any) -> Any:
        session = made(self)
        if is_connected():
            try:
                for seen in list(_watchers):
                    seen(None)
            except BaseException:
                session.stop()
                raise
        for watcher in list(_on_session):
            watcher(session, dict(self._options))
        return session

    return make


def _tell(context: Any, watchers: list[OnContext]) -> None:
    if watchers:
        _applications.append(str(context.applicationId))
    for seen in watchers:
        seen(context)
