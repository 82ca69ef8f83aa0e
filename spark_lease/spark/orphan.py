"""Vital signs of a driver: what started it, and its JVM. A driver without them would hold its lease for ever."""

from __future__ import annotations

from ..errors import Loss
from ..keepalive import VitalSign
from .demotion import gateway_process, jvm_is_gone, spark_context, under_spark_submit


def vital_signs(submitter: int) -> list[VitalSign]:
    """The signs to watch in this process; `submitter` is the JVM of spark-submit that started it, or 0.

    Once that was killed, by Airflow's on_kill for instance, Python lives on and no process waits for it.
    """
    reason = Loss.ORPHANED if under_spark_submit() else Loss.SPARK_GONE

    idle = gateway_process() if spark_context() is None else None

    def jvm_lives() -> tuple[Loss, str] | None:
        nonlocal idle
        if spark_context() is not None:
            idle = None  # from now on it works under this lease
        if idle is not None and gateway_process() is idle:
            return None  # an earlier block has killed it, say, and it dies only now
        words = jvm_is_gone(submitter)
        return (reason, words) if words else None

    return [jvm_lives]
