"""Airflow as it comes: a BashOperator around `spark-lease run`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.airflow.firing import fire

pytestmark = pytest.mark.timeout(120)


def test_exit_codes_are_states_and_the_last_line_is_the_xcom(master: Callable[..., subprocess.Popen[str]]) -> None:
    master("taken", "sleep", "60")
    ended = fire("shell")
    states = {task: each.state for task, each in ended.items()}
    assert states == {"finished": "success", "failed": "failed", "taken": "skipped"}
    assert ended["finished"].value["outcome"] == "finished"
