"""Liveness checks of a driver: what started it, and its JVM. A driver without them would hold its lease for ever."""

from __future__ import annotations

from ..election.keepalive import LivenessCheck
from ..errors import Loss
from .jvm import jvm_is_gone, under_spark_submit
from .session import Spark


def liveness_checks(submitter: int, spark: Spark) -> list[LivenessCheck]:
    """The signs to watch in this process; `submitter` is the JVM of spark-submit that started it, or 0.

    Once that was killed, by Airflow's on_kill for instance, Python lives on and no process waits for it.
    """
    reason = Loss.ORPHANED if under_spark_submit() else Loss.SPARK_GONE

    def jvm_lives() -> tuple[Loss, str] | None:
        if spark.has_an_idle_jvm():
            return None  # an earlier block has killed it, say, and it dies only now
        why = jvm_is_gone(submitter)
        return (reason, why) if why else None

    return [jvm_lives]
