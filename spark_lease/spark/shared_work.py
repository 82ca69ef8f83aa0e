"""The Spark of a process that holds several leases: it goes on, for the others, when one of their blocks is left.

Spark does not say for which lease a job runs. So a block that is left waits for the jobs that run then, but not for
those that ran before it began; and for tasks of no job any more, which a failed one leaves behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from typing import Any

from ..clock import Clock
from .jvm import spark_context
from .session import working_streams

log = logging.getLogger(__name__)

_LOOK_AGAIN, _TOLD_AFTER = 0.05, 1.0


class SharedWork:
    """What of Spark's work may be that of one block."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs_before, self._streams_before = set[int](), set[str]()

    def begin(self) -> None:
        """The block begins, beside another: what runs now is not its work. Raises whatever Py4J raises."""
        if (context := _context()) is not None:
            self._jobs_before, self._streams_before = _jobs(context), working_streams()

    def see_out(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Wait until nothing runs that may be the block's; False if that cannot be said, or not `is_wanted` any more.

        A stream never ends, so one that began during the block is not waited for. May hang as long as the JVM does.
        """
        try:
            return self._see_out(name, is_wanted)
        except Exception as error:  # Py4J raises anything
            log.debug("cannot ask Spark what it does: %s", error)
            return False

    def _see_out(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        if (context := _context()) is None or working_streams() - self._streams_before:
            return False
        jobs, never, tell_at = _jobs(context) - self._jobs_before, Event(), self._clock.now() + _TOLD_AFTER
        while (jobs := jobs & _jobs(context)) or _has_tasks_of_no_job(context):
            if not is_wanted():
                return False
            if self._clock.now() >= tell_at:
                log.info("%s: waits for what Spark runs now: it may be of this block, or of another lease's", name)
                tell_at = float("inf")
            self._clock.wait(never, _LOOK_AGAIN)
        return True


def _context() -> Any:
    context = spark_context()
    return context if context is not None and context._jsc is not None else None


def _jobs(context: Any) -> set[int]:
    return set(context.statusTracker().getActiveJobsIds())


def _has_tasks_of_no_job(context: Any) -> bool:
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    running = sum(each.numRunningTasks() for each in context._jsc.sc().statusTracker().getExecutorInfos())
    return bool(running > sum(each.numActiveTasks for each in stages if each))
