"""Pages of Airflow's web server for whoever may see a task's XComs: `status` and `history` of its lease, now.

What lease it is, and by which connection, is what Airflow keeps of the task's arguments, never what a browser asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstancekey import TaskInstanceKey
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from ..cli.history import all_holds
from ..cli.look import HELD, cell
from ..cli.store import leases
from ..clock import wall_time
from ..config import Config, redacted
from ..errors import SparkLeaseError
from ..history import overlaps
from ..history_page import page
from .hook import SparkLeaseHook

_AGAIN = 10
"""Seconds until the browser looks again."""

app = FastAPI(
    title="Spark lease",
    openapi_url=None,
    default_response_class=HTMLResponse,
    dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.XCOM))],
)


class _NotKnown(Exception):
    """The sentence to be shown instead."""


def lease_of(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Config:
    """The settings of the task's lease. Raises _NotKnown, ConfigError."""
    key = TaskInstanceKey(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index)
    fields = RenderedTaskInstanceFields.get_templated_fields(key) or {}
    if not fields.get("lease") or not fields.get("lease_conn_id"):
        raise _NotKnown(f"nothing is known of a lease of {dag_id}.{task_id} in {run_id}")
    settings = fields.get("lease_settings")
    given = settings if isinstance(settings, Mapping) else {}
    config: Config = SparkLeaseHook(fields["lease_conn_id"]).config(str(fields["lease"]), given)
    return config


LeaseOf = Depends(lease_of)


@app.get("/status")  # type: ignore[untyped-decorator]
def status(dag_id: str, run_id: str, task_id: str, map_index: int = -1, config: Config = LeaseOf) -> str:
    (row,) = leases(config, [config.name])
    shown = [(key.replace("_", " "), cell(row[key])) for key in ("state", *HELD) if row[key] != ""]
    said = str(row.get("problem", row.get("note", "")))
    where = urlencode({"dag_id": dag_id, "run_id": run_id, "task_id": task_id, "map_index": map_index})
    return _PAGE.format(
        name=escape(config.name),
        again=f'<meta http-equiv="refresh" content="{_AGAIN}">',
        rows="".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in shown),
        said=escape(said),
        more=f'<a href="history?{escape(where)}">history</a> · {escape(redacted(config.url))}',
    )


@app.get("/history")  # type: ignore[untyped-decorator]
def history(config: Config = LeaseOf) -> str:
    holds, now = all_holds(config, config.name), round(wall_time() * 1000)
    if not holds:
        raise _NotKnown(f"{config.name}: there is no such lease")
    return page(config.name, holds, overlaps(holds), earliest=0, now=now, where=redacted(config.url))


@app.exception_handler(_NotKnown)  # type: ignore[untyped-decorator]
def _not_known(request: Any, error: Exception) -> HTMLResponse:
    return _problem(404, error)


@app.exception_handler(SparkLeaseError)  # type: ignore[untyped-decorator]
def _nobody_can_tell(request: Any, error: Exception) -> HTMLResponse:
    return _problem(503, error)


def _problem(code: int, error: Exception) -> HTMLResponse:
    said = escape(str(error))
    return HTMLResponse(_PAGE.format(name="Spark lease", again="", rows="", said=said, more=""), status_code=code)


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
