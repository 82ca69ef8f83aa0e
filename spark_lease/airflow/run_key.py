"""The run key of a task that was given none, and the tasks that need one of their own. Looks at no lease."""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

RUN_KEY = (
    "{{ dag.dag_id }}.{{ ti.task_id }}"
    " {{ logical_date.isoformat() if logical_date is defined and logical_date else run_id }}"
)
"""One for each task and logical date, the same on all sites."""


def refuse_default(context: Any, example: str) -> None:
    """Raise AirflowFailException where RUN_KEY is not the same on all sites for the same work.

    `example`: a key that is, for a mapped task.
    """
    if context["ti"].map_index >= 0:
        raise AirflowFailException(
            "run_key: this task is mapped, and its number says nothing about what it does: give a key that does, as "
            f'"{example}", or "" to run whenever the lease is free'
        )
