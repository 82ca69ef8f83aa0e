"""`SparkLeaseSubmitOperator` in an Airflow, with a real spark-submit of another environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_lease.system.processes import kill, tree
from tests.airflow.firing import fire, link_of, new_day
from tests.airflow.support import FOLDER, ROOT, alive, holder_of
from tests.support.drivers import until

Master = Callable[..., subprocess.Popen[str]]

pytestmark = pytest.mark.timeout(180)


def test_a_run_is_done_once_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    day = new_day()
    ended = fire("finishes", day)["finishes"]
    assert ended.state == "success"
    key = f"finishes.finishes {day.isoformat()}"
    assert {each: ended.told[each] for each in ("lease", "outcome", "exit_code", "run_key", "reason")} == {
        "lease": "finishes",
        "outcome": "finished",
        "exit_code": 0,
        "run_key": key,
        "reason": "",
    }
    assert ended.told["acquired"] < ended.told["released"]
    assert ended.told["epoch"]
    assert holder_of("finishes") is None
    assert ended.link.startswith("spark-lease/status?dag_id=finishes&run_id=")
    told = json.loads((FOLDER / "finishes.json").read_text())
    assert told["environ"]["SPARK_LEASE_PASSWORD"] == "hunter22"
    assert told["environ"]["GREETING"] == "hello"
    assert "hunter22" not in "".join(told["command_lines"])
    (FOLDER / "finishes.json").unlink()
    again = fire("finishes", day)["finishes"]
    assert (again.state, again.told["outcome"], again.told["run_key"]) == ("success", "already done", key)
    assert not (FOLDER / "finishes.json").exists()
    assert "hunter22" not in "".join(capfd.readouterr())


def test_a_script_that_fails_fails_its_task_with_its_exit_code() -> None:
    ended = fire("fails")["fails"]
    assert ended.state == "failed"
    assert (ended.told["outcome"], ended.told["exit_code"]) == ("failed", 3)
    assert holder_of("fails") is None


def test_a_standby_skips_or_fails_without_a_jvm(master: Master) -> None:
    master("taken", "sleep", "60")
    ended = fire("stands_by")
    assert {task: each.state for task, each in ended.items()} == {"skips": "skipped", "fails": "failed"}
    for each in ended.values():
        assert (each.told["outcome"], each.told["epoch"]) == ("standby", 0)
        assert "other:" in each.told["reason"]
    assert not (FOLDER / "taken.json").exists()


def test_a_retry_is_not_skipped_while_its_earlier_attempt_may_be_master(master: Master) -> None:
    master("retried", "sleep", "100")
    states = {task: each.state for task, each in fire("retries").items()}
    assert states == {
        "submission": "failed",
        "submission_of_paris": "failed",
        "submission_of_lyon": "skipped",
        "callable": "failed",
        "callable_of_paris": "failed",
        "callable_of_lyon": "skipped",
    }


def test_a_paused_lease_is_a_standby_with_its_reason(store: str) -> None:
    ours = [sys.executable, "-m", "spark_lease"]
    subprocess.run([*ours, "run", "--lease=paused", f"--url={store}", "--", "true"], check=True)
    subprocess.run([*ours, "pause", "paused", f"--url={store}", "--reason=schema change"], check=True)
    ended = fire("paused")
    assert {task: each.state for task, each in ended.items()} == {"skips": "skipped", "fails": "failed"}
    for each in ended.values():
        assert each.told["reason"].endswith(": schema change"), each.told


def test_a_deferred_standby_comes_back_when_the_lease_is_free(master: Master) -> None:
    first = master("defers", "sleep", "2")
    ended = fire("defers")["defers"]
    assert first.wait(20) == 0
    assert (ended.state, ended.told["outcome"]) == ("success", "finished")
    assert (FOLDER / "defers.json").exists()


def test_a_warm_standby_waits_in_its_worker(master: Master) -> None:
    first = master("waits_warm", "sleep", "15")
    ended = fire("waits_warm")["waits_warm"]
    assert first.wait(20) == 0
    assert (ended.state, ended.told["outcome"]) == ("success", "finished")
    assert json.loads((FOLDER / "waits_warm.json").read_text())["environ"]["SPARK_LEASE_NAME"] == "waits_warm"


def test_a_warm_standby_is_skipped_once_it_has_waited_long_enough(master: Master) -> None:
    master("waits_in_vain", "sleep", "120")
    ended = fire("waits_in_vain")["waits_in_vain"]
    assert (ended.state, ended.told["outcome"]) == ("skipped", "standby")
    assert not (FOLDER / "waits_in_vain.json").exists()


def test_a_submission_whose_time_is_over_says_what_became_of_it() -> None:
    ended = fire("overtime")["overtime"]
    assert (ended.state, ended.told["outcome"]) == ("failed", "interrupted")
    assert ended.told["epoch"] and ended.told["released"]


def test_what_is_deferred_again_and_again_waits_no_longer_than_it_may() -> None:
    from airflow.exceptions import TaskDeferred

    from spark_lease.airflow.operator import SparkLeaseSubmitOperator
    from spark_lease.config.sources import configure
    from spark_lease.outcome import Outcome

    task = SparkLeaseSubmitOperator(
        task_id="t", lease="n", application="a.py", on_standby="defer", standby_timeout=60.0
    )
    told, config = Outcome("n", "standby", 99, reason="another is master"), configure(name="n", site="paris")
    with pytest.raises(TaskDeferred) as first:
        task._stand_by({}, told, config, None)
    until = (first.value.kwargs or {})["until"]
    assert first.value.trigger.lease_settings == {"site": "paris", "preferred_site": "", "run_key": ""}
    with pytest.raises(TaskDeferred) as second:
        task._stand_by({}, told, config, until - 30)
    assert second.value.timeout.total_seconds() <= 30 < first.value.timeout.total_seconds() <= 60
    with pytest.raises(Exception, match="another is master; standby_timeout is over"):
        task._stand_by({}, told, config, until - 61)


def test_a_wait_that_was_too_long_says_which_and_how_long() -> None:
    from airflow.sdk.bases.operator import TriggerFailureReason
    from airflow.sdk.exceptions import AirflowException, TaskDeferralError

    from spark_lease.airflow.operator import SparkLeaseSubmitOperator

    task = SparkLeaseSubmitOperator(
        task_id="t", lease="n", application="a.py", on_standby="defer", standby_timeout=60.0
    )
    with pytest.raises(AirflowException, match=r"^n: was not free before standby_timeout \(60\.0 s\) was over$"):
        task.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_TIMEOUT}, {})
    with pytest.raises(TaskDeferralError):
        task.resume_execution("__fail__", {"error": TriggerFailureReason.TRIGGER_FAILURE}, {})
    with pytest.raises(AirflowException, match=r"^wrong$"):
        task.resume_execution("resume", {"event": {"problem": "wrong"}}, {})


def test_a_mistake_is_one_sentence_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    before = (FOLDER / "lease.db").read_bytes() if (FOLDER / "lease.db").exists() else None
    ended = fire("mistakes")
    assert {each.state for each in ended.values()} == {"failed"}
    assert not any(each.told for each in ended.values())
    assert before == ((FOLDER / "lease.db").read_bytes() if (FOLDER / "lease.db").exists() else None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lease": "n", "on_standby": "wait"}, "on_standby: 'wait' is none of skip, fail, defer"),
        (
            {"lease": "n", "on_standby": "defer", "lease_settings": {"standby": "warm"}},
            "on_standby: defer does not work with standby = 'warm'",
        ),
        ({"lease": "n", "lease_settings": {"password": "x"}}, "password: is a secret: put it into the connection"),
        ({"lease": "n", "lease_settings": {"url": "postgresql://u:p@h/d"}}, "url: carries a password"),
        (
            {"lease": "n", "lease_settings": {"if_held": "wait"}},
            "if_held in lease_settings: on_standby and standby_timeout",
        ),
        ({"lease": "n", "lease_settings": {"acquire_timeout": 30}}, "acquire_timeout in lease_settings: on_standby"),
    ],
)
def test_what_can_be_refused_is_refused_with_the_dag(arguments: dict[str, object], says: str) -> None:
    from spark_lease.airflow.operator import SparkLeaseSubmitOperator

    with pytest.raises(Exception, match=says) as raised:
        SparkLeaseSubmitOperator(task_id="t", application="a.py", **arguments)
    assert "\n" not in str(raised.value)


def test_what_would_run_where_nobody_can_end_it_is_refused() -> None:
    ended = fire("clusters")
    assert {task: each.state for task, each in ended.items()} == dict.fromkeys(("script", "jar", "setting"), "failed")
    assert {each.told["epoch"] for each in ended.values()} == {0}
    assert {each.told["released"] for each in ended.values()} == {""}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_task_that_is_killed_leaves_no_driver_and_no_lease(number: int) -> None:
    """SIGTERM is Airflow's own way to end a task, which calls `on_kill`; SIGKILL is what the kernel does to it."""
    marks = FOLDER / "works"
    marks.unlink(missing_ok=True)
    task = subprocess.Popen(
        [sys.executable, "-m", "tests.airflow.firing", "works", str(int(number))],
        cwd=ROOT,
        stdout=(FOLDER / "works.log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        until(lambda: marks.exists() or task.poll() is not None, 150)
        work = [each for each in tree(task.pid) if each.pid != task.pid]
        assert any("java" in each.name for each in work), (FOLDER / "works.log").read_text()[-5000:]
        assert "task_id=works" in link_of("works")  # for whoever wants to see it now
        os.kill(task.pid, number)
        killed = time.monotonic()
        until(lambda: not alive(work), 10)
        until(lambda: holder_of("works") is None, 10)
        assert time.monotonic() - killed < 4, "not released, it ran out"
        assert task.wait(60) == (0 if number == signal.SIGTERM else -number)
    finally:
        kill(tree(task.pid))


def test_whatever_is_no_script_of_this_machine_is_run_as_a_command(tmp_path: Path) -> None:
    from spark_lease.airflow.submission import around

    settings = {"name": "n"}
    jar = ["spark-submit", "--class", "a.B", "s3://lake/app.jar"]
    words = around(settings, jar, jar[-1])
    assert words[words.index("--") + 1 :] == jar
    assert words[3:5] == ["run", "--lease=n"]
    (tmp_path / "app.py").touch()
    words = around(settings, ["spark3-submit", "--master", "local", f"{tmp_path}/app.py"], f"{tmp_path}/app.py")
    assert words[3] == "submit"
    assert "--spark-submit=spark3-submit" in words
    there = ["spark-submit", "--conf", "spark.submit.deployMode=cluster", "local:///opt/app.py"]
    assert around(settings, there, there[-1])[3] == "submit"
    assert around(settings, ["spark-submit", there[-1]], there[-1])[3] == "run"
