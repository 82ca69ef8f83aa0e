"""The link of a task to its lease."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import BaseOperatorLink, conf

PREFIX = "/spark-lease"
"""Where `plugin.py` serves its pages."""


class LeaseLink(BaseOperatorLink):  # type: ignore[misc]
    """Leads to `status` of the task's lease as it is now, in Airflow's web server.

    Without `lease_conn_id` only the worker knows the lease store: then to the task's XComs, where `spark_lease` says
    what became of it.
    """

    name = "Lease"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        root = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
        where = {key: getattr(ti_key, key) for key in ("dag_id", "run_id", "task_id", "map_index")}
        if getattr(operator, "lease_conn_id", None):
            return f"{root}{PREFIX}/status?{urlencode(where)}"
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        dag, run, task = (quote(where[key], safe="") for key in ("dag_id", "run_id", "task_id"))
        return f"{root}/dags/{dag}/runs/{run}/tasks/{task}{mapped}/xcom"
