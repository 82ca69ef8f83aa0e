"""The pages that a task's link leads to, in Airflow's own web server with its own users."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.airflow.firing import fire

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def web() -> Iterator[Any]:
    """A browser that nobody has logged in with."""
    from airflow.api_fastapi.app import create_app
    from starlette.testclient import TestClient

    with TestClient(create_app(apps="core")) as client:
        yield client


@pytest.fixture(scope="module")
def anna(web: Any) -> dict[str, str]:
    """What the browser sends of one who may look."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="anna", role="viewer"))
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def link() -> str:
    return f"/{fire('finishes')['finishes'].link}"


def test_the_link_shows_the_lease_as_it_is_now(
    web: Any, anna: dict[str, str], link: str, master: Callable[..., subprocess.Popen[str]]
) -> None:
    free = web.get(link, headers=anna)
    assert (free.status_code, "<td>free</td>" in free.text) == (200, True), free.text
    master("finishes", "sleep", "60")
    held = web.get(link, headers=anna).text
    assert "<td>held</td>" in held and "<td>other:" in held
    assert "hunter22" not in held
    history = web.get(link.replace("/status?", "/history?"), headers=anna)
    assert history.status_code == 200 and "<svg" in history.text


def test_nobody_sees_it_who_may_not_see_the_task(web: Any, link: str) -> None:
    assert web.get(link).status_code == 401
    assert web.get(link.replace("/status?", "/history?")).status_code == 401


def test_a_task_without_a_lease_and_a_store_that_is_down_are_one_sentence(
    web: Any, anna: dict[str, str], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = web.get(f"{urlsplit(link).path}?dag_id=a&run_id=b&task_id=%3Cc%3E", headers=anna)
    assert nothing.status_code == 404
    assert "Airflow has no lease on record for a.&lt;c&gt; in b" in nothing.text
    away = {"conn_type": "spark_lease", "host": "postgresql://anna@127.0.0.1:1/ops", "password": "hunter22"}
    monkeypatch.setenv("AIRFLOW_CONN_LEASE", json.dumps(away))
    down = web.get(link, headers=anna)
    assert (down.status_code, "the lease store cannot be read" in down.text) == (503, True), down.text
    assert "127.0.0.1" not in down.text and "Traceback" not in down.text
    monkeypatch.delenv("AIRFLOW_CONN_LEASE")
    unknown = web.get(link, headers=anna)
    assert (unknown.status_code, "it is known to the workers only" in unknown.text) == (404, True), unknown.text


def test_a_store_that_hangs_holds_nobody_up_for_long(
    web: Any, anna: dict[str, str], link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:  # connections are made, and nothing is said
        away = {"conn_type": "spark_lease", "host": f"postgresql://anna@127.0.0.1:{silent.getsockname()[1]}/ops"}
        monkeypatch.setenv("AIRFLOW_CONN_LEASE", json.dumps(away))
        began = time.monotonic()
        for page in (link, link.replace("/status?", "/history?")):
            hanging = web.get(page, headers=anna)
            assert (hanging.status_code, "cannot be read" in hanging.text) == (503, True), hanging.text
        assert time.monotonic() - began < 12


def test_where_a_lease_is_says_the_connection_and_nobody_who_writes_a_dag(web: Any, anna: dict[str, str]) -> None:
    elsewhere = fire("elsewhere")["elsewhere"].link
    shown = web.get(f"/{elsewhere}", headers=anna)
    assert (shown.status_code, "only workers can read it" in shown.text) == (404, True), shown.text


def test_a_task_of_taskflow_and_a_sensor_have_the_link_as_well(web: Any, anna: dict[str, str]) -> None:
    for dag, task in (("callable", "count"), ("looks", "looks")):
        shown = web.get(f"/{fire(dag)[task].link}", headers=anna)
        assert shown.status_code == 200, shown.text
