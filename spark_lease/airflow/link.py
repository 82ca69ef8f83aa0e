"""The link of a task to its lease."""

import logging
from typing import Any
from urllib.parse import quote, urlencode

from airflow.providers.common.compat.sdk import BaseOperatorLink
from airflow.sdk.bases.xcom import BaseXCom

log = logging.getLogger(__name__)

PREFIX = "/spark-lease"
"""Where `plugin.py` serves its pages."""
_WHERE = ("dag_id", "run_id", "task_id", "map_index")


class LeaseLink(BaseOperatorLink):  # type: ignore[misc]
    """Leads to `status` of the task's lease as it is now, in Airflow's web server.

    Without `lease_conn_id` only the worker knows the lease store: then to the task's XComs, where `spark_lease` says
    what became of it. It is relative: Airflow's pages say themselves where they are.
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
    """Show the link now, while a user may want to see it: Airflow itself does so when a task has ended. No part of
    what the task is for, so never raises."""
    link = LeaseLink()
    try:
        where = {key: getattr(ti, key) for key in _WHERE}
        BaseXCom._set_xcom_in_db(link.xcom_key, link.get_link(operator, ti_key=ti), **where)
    except Exception as error:
        log.warning("cannot show the link to the lease before the task ends: %s", error)
