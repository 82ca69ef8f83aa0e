"""The link of a task to its lease."""

import logging
from typing import Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

log = logging.getLogger(__name__)

PREFIX = "/spark-lease"
"""The URL path at which `plugin.py` serves its pages."""
_WHERE = ("dag_id", "run_id", "task_id", "map_index")


class LeaseLink(BaseOperatorLink):  # type: ignore[misc]
    """Leads to the current `status` of the task's lease, in Airflow's web server.

    Without `lease_conn_id` only the worker knows the lease store: then it leads to the task's XComs, where
    `spark_lease` has the outcome. The link is relative: Airflow's pages know their own address.
    """

    name = "Lease"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        where = {key: getattr(ti_key, key) for key in _WHERE}
        if operator.lease_conn_id:
            return f"{PREFIX.lstrip('/')}/status?{urlencode(where)}"
        mapped = f"/mapped/{ti_key.map_index}" if ti_key.map_index >= 0 else ""
        dag, run, task = (quote(where[key], safe="") for key in ("dag_id", "run_id", "task_id"))
        return f"dags/{dag}/runs/{run}/tasks/{task}{mapped}/xcom"


def show_link(operator: Any, ti: Any) -> None:
    """Show the link while the task runs: Airflow itself shows it after the task has ended. Never raises, because the
    task's work does not need the link."""
    link = LeaseLink()
    try:
        where = {key: getattr(ti, key) for key in _WHERE}
        BaseXCom._set_xcom_in_db(link.xcom_key, link.get_link(operator, ti_key=ti), **where)
    except Exception as error:
        log.warning("cannot show the link to the lease before the task ends: %s", error)
