"""`@task.leased`: a callable with a SparkSession of its own, in the Python of another environment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spark_lease.system.processes import kill, tree
from tests.airflow.firing import fire, new_day
from tests.airflow.support import FOLDER, ROOT, holder_of
from tests.support.drivers import until

pytestmark = pytest.mark.timeout(180)


def test_a_callable_runs_once_under_its_lease(master: Callable[..., subprocess.Popen[str]]) -> None:
    day = new_day()
    ended = fire("callable", day)["count"]
    assert (ended.state, ended.value["rows"]) == ("success", 7)
    assert ended.value["epoch"] > 0
    again = fire("callable", day)["count"]
    assert (again.state, again.value) == ("success", None)
    master("callable", "sleep", "60")
    assert fire("callable")["count"].state == "skipped"


def test_a_callable_ends_with_its_task() -> None:
    command = [sys.executable, "-m", "tests.airflow.firing", "sleeps", "0"]
    with (FOLDER / "sleeps.log").open("w") as log:
        task = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: holder_of("sleeps"), 120)
        task.kill()
        killed = time.monotonic()
        until(lambda: holder_of("sleeps") is None, 10)
        assert time.monotonic() - killed < 4, "not released, it ran out"
    finally:
        kill(tree(task.pid))
        task.wait(10)


def test_a_callable_ends_when_its_time_is_over() -> None:
    assert fire("runs_late")["late"].state == "failed"
    assert (FOLDER / "late.begun").exists() and not (FOLDER / "late.worked").exists()
    assert holder_of("late") is None


def test_what_was_done_before_is_skipped_where_a_standby_would_fail(
    master: Callable[..., subprocess.Popen[str]],
) -> None:
    day = new_day()
    assert [fire("runs_once", day)["once"].state for _ in range(2)] == ["success", "skipped"]
    master("done", "sleep", "60")
    assert fire("runs_once")["once"].state == "failed"


def test_a_callable_may_have_exit_codes_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert fire("runs_off")["leave"].state == "skipped"
    assert "pendulum" not in "".join(capfd.readouterr())  # which is not expected there
