"""Firing a DAG of the tests for one logical date, as a scheduler would, and seeing what became of its tasks.

python -m tests.airflow.firing DAG DAY      in a process of its own, to be killed
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_days = count()


@dataclass(frozen=True)
class Ended:
    """One task. `told` is its XCom `spark_lease`, `value` what it returned."""

    state: str
    told: dict[str, Any]
    value: Any
    link: str


def new_day() -> datetime:
    """A logical date that no DAG was fired for."""
    return FIRST + timedelta(days=next(_days))


def fire(name: str, day: datetime | None = None) -> dict[str, Ended]:
    """Run the DAG for `day`; its tasks by their ids, mapped ones as `task[0]`."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    from tests.airflow.dags.guarded import DAGS

    run = DAGS[name].test(logical_date=day or new_day())
    ended = {}
    with create_session() as session:
        for task in run.get_task_instances(session=session):
            found = XComModel.get_many(
                run_id=run.run_id, dag_ids=name, task_ids=task.task_id, map_indexes=task.map_index
            )
            values = {row.key: XComModel.deserialize_value(row) for row in session.scalars(found)}
            link = values.get("_link_LeaseLink", "")
            mapped = f"[{task.map_index}]" if task.map_index >= 0 else ""
            ended[task.task_id + mapped] = Ended(
                str(task.state), values.get("spark_lease") or {}, values.get("return_value"), link
            )
    return ended


def link_of(name: str) -> str:
    """The link of the DAG's task in its newest run, which may be another process's that goes on."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    words = XComModel.dag_id == name, XComModel.key == "_link_LeaseLink"
    with create_session() as session:
        found = session.scalars(select(XComModel).where(*words).order_by(XComModel.timestamp.desc())).first()
        return str(XComModel.deserialize_value(found)) if found else ""


if __name__ == "__main__":
    fire(sys.argv[1], FIRST + timedelta(days=1000 + int(sys.argv[2])))
