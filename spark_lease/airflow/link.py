"""The link of a task to what is known of its lease."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import BaseOperatorLink


class LeaseLink(BaseOperatorLink):  # type: ignore[misc]
    """Leads to the task's XComs, where `spark_lease` says who was master and what became of the task."""

    name = "Lease"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        where = [quote(each, safe="") for each in (ti_key.dag_id, ti_key.run_id, ti_key.task_id)]
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        return "/dags/{}/runs/{}/tasks/{}".format(*where) + f"{mapped}/xcom"
