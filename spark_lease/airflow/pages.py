"""Pages of Airflow's web server for users who may see a task's XComs: current `status` and `history` of its lease.

The lease and its connection are those that Airflow keeps of the task's arguments, never those that a browser asks for.
The author of a DAG must not make this server connect anywhere: only the connection says where the lease is, neither
`lease_settings` nor the server's own environment.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.providers.common.compat.sdk import AirflowException
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from ..cli.history import all_holds
from ..cli.leases import leases
from ..cli.look import HELD, cell
from ..clock import wall_time
from ..config.settings import Config
from ..config.urls import redacted
from ..errors import SparkLeaseError
from ..monitoring.history import overlaps
from ..monitoring.history_page import page
from .access import PLACES
from .hook import SparkLeaseHook

log = logging.getLogger(__name__)

_AGAIN = 10
"""Seconds until the browser loads the page again."""
_PATIENCE = 3.0
"""Seconds for a request to the store: Airflow's own work waits for the same threads."""
_looking = threading.BoundedSemaphore(4)


class _Instead(Exception):
    """An HTTP status code, and the sentence to show instead of the page."""


@dataclass(frozen=True)
class Asked:
    """The lease of a task. `where`: the parameters of the request. `store`: what users may know of the store."""

    config: Config
    where: Mapping[str, Any]
    store: str


def asked(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Iterator[Asked]:
    """The lease of the task that a request names. Raises _Instead, ConfigError."""
    key = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    fields = RenderedTaskInstanceFields.get_templated_fields(key) or {}
    lease, conn_id, settings = (fields.get(each) for each in ("lease", "lease_conn_id", "lease_settings"))
    if not lease or not conn_id:
        raise _Instead(404, f"Airflow has no lease on record for {dag_id}.{task_id} in {run_id}")
    if not isinstance(settings, Mapping) or "***" in f"{lease} {settings}":
        raise _Instead(404, f"the arguments that Airflow kept of {dag_id}.{task_id} are masked, or lack its lease")
    if PLACES & set(settings):
        raise _Instead(404, f"the lease_settings of {dag_id}.{task_id} name its lease store: only workers can read it")
    try:
        config = SparkLeaseHook(str(conn_id)).seen_from_elsewhere(str(lease), settings)
    except AirflowException as error:
        raise _Instead(404, f"{error}: it is known to the workers only") from None
    if not _looking.acquire(blocking=False):
        raise _Instead(503, "too many look at leases now")
    try:
        config = replace(config, attempt_timeout=min(config.attempt_timeout, _PATIENCE))
        where = {"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index}
        yield Asked(config, where, f"connection {conn_id}, table {config.table}")
    finally:
        _looking.release()


app = FastAPI(
    title="Spark lease",
    openapi_url=None,
    default_response_class=HTMLResponse,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)
OfTheTask = Depends(asked)


@app.get("/status")  # type: ignore[untyped-decorator]
def status(task: Asked = OfTheTask) -> str:
    (row,) = leases(task.config, [task.config.name])
    shown = [(key.replace("_", " "), cell(row[key])) for key in ("state", *HELD) if row[key] != ""]
    said = str(row.get("problem", row.get("note", ""))).replace(redacted(task.config.url), task.store)
    history = f'<a href="history?{escape(urlencode(task.where))}">history</a>'
    return _PAGE.format(
        name=escape(task.config.name),
        again=_REFRESH,
        rows="".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in shown),
        said=escape(said),
        more=f"{history} · {escape(task.store)}",
    )


@app.get("/history")  # type: ignore[untyped-decorator]
def history(task: Asked = OfTheTask) -> str:
    name, now = task.config.name, round(wall_time() * 1000)
    holds = all_holds(task.config, name)
    if holds is None:
        raise _Instead(404, f"{name}: there is no such lease")
    return page(name, holds, overlaps(holds), earliest=0, now=now, where=task.store)


@app.exception_handler(_Instead)  # type: ignore[untyped-decorator]
def _cannot_be_shown(request: Any, error: Exception) -> HTMLResponse:
    return _instead(*error.args)


@app.exception_handler(SparkLeaseError)  # type: ignore[untyped-decorator]
def _nobody_can_tell(request: Any, error: Exception) -> HTMLResponse:
    log.warning("%s", error)  # it may name places that not every reader of XComs may know
    return _instead(503, "the lease store cannot be read: see the log of this web server")


def _instead(code: int, said: str) -> HTMLResponse:
    again = _REFRESH if code == 503 else ""
    words = _PAGE.format(name="Spark lease", again=again, rows="", said=escape(said), more="")
    return HTMLResponse(words, status_code=code)


_REFRESH = f'<meta http-equiv="refresh" content="{_AGAIN}">'
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">{again}
<title>{name}</title>
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
body {{ margin: 2rem auto; max-width: 50rem; padding: 0 1rem }}
th {{ text-align: left; padding-right: 2rem; font-weight: 600; vertical-align: top }}
td {{ overflow-wrap: anywhere }}
footer {{ margin-top: 1rem; opacity: .7; overflow-wrap: anywhere }}
</style></head>
<body><h1>{name}</h1><table>{rows}</table><p>{said}</p><footer>{more}</footer></body></html>
"""
