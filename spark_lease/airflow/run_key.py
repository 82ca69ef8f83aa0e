"""The default run key of a task, and the tasks that need a key of their own. Reads no lease."""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

RUN_KEY = (
    "{{ dag.dag_id }}.{{ ti.task_id }}"
    " {{ logical_date.isoformat() if logical_date is defined and logical_date else run_id }}"
)
"""One key for each task and logical date, the same on all sites."""
_OR_NONE = 'or "" to run whenever the lease is free'


def refuse_default(context: Any, example: str) -> None:
    """Raise AirflowFailException if RUN_KEY is not the same on all sites for the same work.

    `example`: such a key for a mapped task.
    """
    if context["ti"].map_index >= 0:
        raise AirflowFailException(
            "run_key: this task is mapped, and its number says nothing about what it does: give a key that does, as "
            f'"{example}", {_OR_NONE}'
        )
    dag = context["dag"]
    if context["dag_run"].run_type == "scheduled" and has_own_dates(dag):
        raise AirflowFailException(
            f"run_key: the schedule of this DAG ({type(dag.timetable).__name__}) gives each site dates of its own, so "
            f"that both would do the work: give a key that is the same on all sites, {_OR_NONE}"
        )


def has_own_dates(dag: Any) -> bool:
    """True if a scheduler dates the runs of this DAG by its own first look or last run, or not at all."""
    timetable = getattr(dag.timetable, "timetable", dag.timetable)  # AssetOrTimeSchedule has one in it
    match type(timetable).__name__:  # Airflow has two classes of each name
        case "DeltaTriggerTimetable":
            return not dag.catchup
        case "OnceTimetable":
            return not (dag.start_date or any(task.start_date for task in dag.tasks))
        case "ContinuousTimetable" | "CronPartitionTimetable":  # the runs of the latter have no logical date
            return True
    return False
