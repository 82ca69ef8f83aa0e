"""Lets Spark go on for the other leases of a process when the block of one lease is left.

Spark does not tell for which lease a job runs. So a block that is left waits until Spark is idle, except for work that
ran before the block began. It looks more than once: Spark reports a job a moment after it began, an action may be
several jobs, and the tasks of a failed job run on.
"""

import logging
import math
import re
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from ..clock import Clock
from .jvm import live_context
from .work import working_streams

log = logging.getLogger(__name__)

_LOOK_AGAIN, _LOOKS = 0.05, 8
"""Seconds between two looks, and how many looks in a row must find Spark idle."""
_TOLD_AFTER = 1.0


class SharedWork:
    """Finds the work of Spark that may belong to one block."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs_before, self._streams_before = set[int](), set[str]()

    def begin(self) -> None:
        """The block begins, beside another: what runs now is not its work. Raises whatever Py4J raises."""
        if (context := live_context()) is not None:
            self._jobs_before, self._streams_before = _jobs(context), working_streams()

    def see_out(self, name: str, is_wanted: Callable[[], bool]) -> bool:
        """Wait until no work runs that may be the block's; False if that is unknown, or `is_wanted` becomes false.

        A stream never ends, so one that began during the block is not waited for.
        """
        rests, given_up, tell_at = Event(), Event(), self._clock.now() + _TOLD_AFTER
        # On a thread of its own: a frozen JVM makes it hang.
        looking = Thread(target=self._look_until, args=(rests, given_up), name="wait for Spark", daemon=True)
        with suppress(RuntimeError):  # no thread can be started
            looking.start()
        try:
            while not self._clock.wait(rests, _LOOK_AGAIN) and looking.is_alive() and is_wanted():
                if self._clock.now() >= tell_at:
                    told = "%s: waits until Spark is idle: its jobs may belong to this block, or to another lease"
                    log.info(told, name)
                    tell_at = math.inf
        finally:  # a signal may end this wait
            given_up.set()
        return rests.is_set()

    def _look_until(self, rests: Event, given_up: Event) -> None:
        context, quiet = live_context(), 0
        try:
            if context is None or working_streams() - self._streams_before:
                return
            while quiet < _LOOKS:
                quiet = 0 if self._works(context) else quiet + 1
                if self._clock.wait(given_up, _LOOK_AGAIN):
                    return
            rests.set()
        except Exception as error:  # Py4J may raise anything
            log.debug("cannot ask Spark what it does: %s", error)

    def _works(self, context: Any) -> bool:
        # First the scheduler, which is up to date; the tracker is a little behind.
        running = context._jsc.sc().taskScheduler().runningTasksByExecutors().toString()
        tracker = context.statusTracker()
        # A batch of a stream is a job in the group that has the name of the stream's run.
        runs = re.findall(r"runId = ([\w-]+)", " ".join(self._streams_before))
        batches = {each for run in runs for each in tracker.getJobIdsForGroup(run)}
        if _jobs(context) - self._jobs_before - batches:
            return True
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        known = sum(each.numActiveTasks for each in stages if each)
        return sum(map(int, re.findall(r"-> (\d+)", running))) > int(known)


def _jobs(context: Any) -> set[int]:
    return set(context.statusTracker().getActiveJobsIds())
