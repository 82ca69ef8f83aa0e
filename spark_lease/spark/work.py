"""Finds and ends Spark's work in the driver's JVM. Each call may hang, and Py4J may raise anything."""

import contextlib
import logging
import threading
from typing import Any

from .connect import interrupt_all
from .jvm import context_class, ended_jvm, live_context, spark_context

log = logging.getLogger(__name__)

_LOOK_AGAIN, _LOOKS = 0.05, 6
_TASK, _STREAM = "Executor task launch worker for task", "stream execution thread for"
"""Prefixes of the names of threads that run a task, or a stream."""
_CALLED, _CALL, _OUTERMOST = "Thread-", "py4j.commands.", 6
"""Prefix of Java's default name for Py4J's threads; prefix of a class in so many outermost frames of one in a call."""


def is_busy() -> bool:
    """True if Spark still runs a job, a task or a stream; interrupts the work on a server by asking.

    May hang, or raise whatever Py4J raises.
    """
    context = live_context()
    if context is None:
        return interrupt_all() or _active_in_jvm() is not None or bool(_working_threads())
    tracker = context._jsc.sc().statusTracker()
    if list(tracker.getActiveJobIds()) or any(each.numRunningTasks() for each in tracker.getExecutorInfos()):
        return True
    return bool(_working_threads(_STREAM))


def stopped() -> bool:
    """Stop the context; True if the JVM reports afterwards that no Spark work runs. May hang."""
    try:
        context = spark_context()
        if context is not None:
            _cancel(context)
            context.stop()
        # It only warns if the JVM is gone or the connection was cut: Py4J cuts all connections when one thread is
        # interrupted. It returns at once if the JVM is already stopping by itself.
        active = _active_in_jvm()
        if active is not None:
            active.stop()
        return _active_in_jvm() is None and not _is_ending() and not _interrupt_work()
    except Exception as error:  # Py4J may raise anything once the JVM is on its way out
        log.debug("SparkContext.stop: %s", error)
        return False


def _cancel(context: Any) -> None:
    """Mark all tasks as killed: in local mode `stop()` ends no thread of a task that runs in the JVM."""
    with contextlib.suppress(Exception):  # Py4J may raise anything
        context.cancelAllJobs()
        tracker, never = context._jsc.sc().statusTracker(), threading.Event()
        for _ in range(_LOOKS):  # it returns before the jobs learn of it, and a stopped context tells them no more
            if not list(tracker.getActiveJobIds()):
                break
            never.wait(_LOOK_AGAIN)


def may_be_busy() -> bool:
    try:
        return is_busy()
    except Exception as error:  # Py4J may raise anything
        log.debug("cannot ask Spark what it does: %s", error)
        return True


def _interrupt_work() -> bool:
    """Interrupt threads that still work in a JVM whose context was stopped; True if there are any.

    A task's thread without work ends with its context, a stream's with its query. A call from Python that was cut off,
    by Ctrl-C for example, goes on: it may be moving the files of a job to where they belong.
    """
    working = [*_working_threads(), *_called_threads()]
    for each in working:
        each.interrupt()
    return bool(working)


def _working_threads(*kinds: str) -> list[Any]:
    """The JVM's threads that run a task or a stream, of all sessions. May hang, or raise anything.

    Executor.TaskRunner and StreamExecution name them so in Spark 3.5 to 4.2.
    """
    jvm = getattr(context_class(), "_jvm", None)
    if jvm is None or ended_jvm() is not None:
        return []
    threads = jvm.java.lang.Thread.getAllStackTraces().keySet()
    if not any(kind in threads.toString() for kind in kinds or (_TASK, _STREAM)):
        return []
    return [each for each in threads.toArray() if each.getName().startswith(kinds or (_TASK, _STREAM))]


def _called_threads() -> list[Any]:
    """The JVM's threads that work for a call from Python, except this call. May hang, or raise anything."""
    jvm = getattr(context_class(), "_jvm", None)
    if jvm is None or ended_jvm() is not None:
        return []
    thread = jvm.java.lang.Thread
    me, threads = thread.currentThread().getId(), thread.getAllStackTraces().keySet().toArray()
    others = [each for each in threads if each.getName().startswith(_CALLED) and each.getId() != me]
    return [each for each in others if _is_called(each.getStackTrace())]


def _is_called(stack: Any) -> bool:
    outermost = range(max(len(stack) - _OUTERMOST, 0), len(stack))  # each frame takes two calls to the JVM
    return any(stack[each].getClassName().startswith(_CALL) for each in outermost)


def working_streams() -> set[str]:
    """The names of the running streams, all different. May hang, or raise anything."""
    return {each.getName() for each in _working_threads(_STREAM)}


def runs_here(context: Any) -> bool:
    """True if all tasks run on this machine, in the driver's JVM and its workers."""
    return str(context.master).startswith("local")


def _active_in_jvm() -> Any:
    """The JVM's own SparkContext, until its end is complete; None if there is none. May hang, or raise anything."""
    jvm = getattr(context_class(), "_jvm", None)
    active = jvm and getattr(getattr(jvm.org.apache.spark, "SparkContext$"), "MODULE$").getActive()
    return active.get() if active and active.isDefined() else None


def _is_ending() -> bool:
    """True if the JVM is stopping by itself."""
    jvm = getattr(context_class(), "_jvm", None)
    return bool(jvm and jvm.org.apache.spark.util.ShutdownHookManager.inShutdown())
