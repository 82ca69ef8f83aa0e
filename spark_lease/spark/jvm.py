"""The driver's JVM and its context: found, known to have ended, forgotten, dropped."""

import contextlib
import functools
import os
import subprocess
import sys
from typing import Any

from ..system.processes import add_mark, kill, look, tree
from .connect import forget_a_local_server, has_a_local_server

_GONE_WITHIN = 5.0


def under_spark_submit() -> bool:
    """True if spark-submit started this Python: then the JVM is its parent and not its child."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def mark_of_this_process() -> str:
    """The mark of processes that this process starts from now on. A fork has a mark of its own: its end is not ours."""
    return _mark_of(os.getpid())


@functools.cache
def _mark_of(pid: int) -> str:
    return add_mark(os.environ)


def spark_context() -> Any:
    """The active classic SparkContext of any thread, None if there is none. Never imports pyspark."""
    return getattr(context_class(), "_active_spark_context", None)


def live_context() -> Any:
    """The same, unless it was stopped, or is half made still."""
    context = spark_context()
    return None if getattr(context, "_jsc", None) is None else context


def context_class() -> Any:
    return getattr(sys.modules.get("pyspark"), "SparkContext", None)


def submitting_jvm() -> int:
    """The JVM of spark-submit, which started this Python or its wrapper; 0 if there is none among our ancestors."""
    ancestor = look(os.getppid())
    while ancestor and ancestor.name != "java":
        ancestor = look(ancestor.parent)
    return ancestor.pid if ancestor else 0


def jvm_pid(submitter: int) -> int | None:
    """The driver's JVM: `submitter` under spark-submit, else our child; None if there is none."""
    if under_spark_submit():
        return submitter or None
    process = gateway_process()
    return None if process is None else int(process.pid)


def gateway_process() -> Any:
    """The Popen of a JVM that this Python started, None if it started none."""
    return getattr(getattr(context_class(), "_gateway", None), "proc", None)


def jvm_is_gone(submitter: int) -> str:
    """Why the JVM is gone, for people; empty if it lives, or if there never was one."""
    if under_spark_submit():
        jvm = look(submitter)
        return "" if jvm and jvm.name == "java" else f"spark-submit (pid {submitter}) is gone"
    process = ended_jvm()
    return "" if process is None else f"the JVM (pid {process.pid}) ended"


def ended_jvm() -> Any:
    """The Popen of a JVM that this Python started, if it has ended with all its threads; else None."""
    process = gateway_process()
    return None if process is None or process.poll() is None else process


def forget_a_jvm_that_ended() -> None:
    """Make PySpark forget a JVM that has ended: else a process that lives on could never make a session again.

    Call it only while no lease is held: a hold must end when its JVM ends.
    """
    if ended := ended_jvm():
        _forget(ended)


def drop_jvm() -> None:
    """Kill the JVM that this Python started, if any, with its descendants. Waits a moment for its end.

    PySpark forgets the JVM first: so its end does not count as ours. Call it only while no block works.
    """
    if jvm := gateway_process():
        family = tree(jvm.pid)
        _forget(jvm)
        kill(family)
        with contextlib.suppress(subprocess.TimeoutExpired):
            jvm.wait(_GONE_WITHIN)


def drop_local_server() -> None:
    """`drop_jvm`, if a Spark Connect server runs in it: a call to a server that is being killed takes minutes."""
    if has_a_local_server():
        drop_jvm()


def _forget(jvm: Any) -> None:
    made = context_class()
    if made._active_spark_context is not None:
        made._active_spark_context._jsc = None  # so that its sessions count as stopped
    made._active_spark_context = made._gateway = made._jvm = None  # as before the first session
    if jvm.stdin:
        jvm.stdin.close()
    forget_a_local_server()


def submitted_conf() -> dict[str, str]:
    """The Spark settings of this driver, also before there is a session; empty where asking would start a JVM."""
    context = spark_context()
    if context is not None and ended_jvm() is None:
        return dict(context.getConf().getAll())
    if not under_spark_submit():
        return {}
    from pyspark import SparkConf, SparkContext  # heavy, and there for certain: spark-submit runs us

    # Connects to the JVM that runs us, and makes no context. SparkConf() sees spark-submit's settings only after it.
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())
