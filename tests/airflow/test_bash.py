"""Airflow as it comes: a BashOperator around `spark-lease run`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spark_lease.system.processes import kill, tree
from tests.airflow.firing import fire
from tests.airflow.support import FOLDER, ROOT, alive, holder_of
from tests.support.drivers import until

pytestmark = pytest.mark.timeout(120)


def test_exit_codes_are_states_and_the_last_line_is_the_xcom(master: Callable[..., subprocess.Popen[str]]) -> None:
    master("taken", "sleep", "60")
    ended = fire("shell")
    states = {task: each.state for task, each in ended.items()}
    assert states == {"finished": "success", "failed": "failed", "taken": "skipped"}
    told = ended["finished"].value
    assert told["outcome"] == "finished"
    (file,) = FOLDER.glob("finished *.json")
    assert json.loads(file.read_text()) == told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_ends_with_its_task(number: int) -> None:
    command = [sys.executable, "-m", "tests.airflow.firing", "shell_sleeps", str(int(number))]
    with (FOLDER / "shell_sleeps.log").open("w") as log:
        task = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: any(each.name == "sleep" for each in tree(task.pid)), 100)
        work = [each for each in tree(task.pid) if each.pid != task.pid]
        assert holder_of("shell_sleeps")
        os.kill(task.pid, number)
        killed = time.monotonic()
        until(lambda: not alive(work) and holder_of("shell_sleeps") is None, 15)
        assert time.monotonic() - killed < 15, "not released, it ran out"
    finally:
        kill(tree(task.pid))
        task.wait(10)
