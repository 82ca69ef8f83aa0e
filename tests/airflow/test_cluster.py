"""`SparkLeaseSubmitOperator` and drivers that a real YARN runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from spark_lease.airflow.operator import SparkLeaseSubmitOperator
from spark_lease.system.processes import kill, tree
from tests.airflow.firing import fire
from tests.airflow.support import FOLDER, ROOT
from tests.support.drivers import until

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not (ROOT / ".yarn").exists() and "CI" not in os.environ, reason="YARN is not there: make yarn"),
]


def spark_lease(command: str, *words: str) -> subprocess.CompletedProcess[str]:
    ours = [sys.executable, "-m", "spark_lease", command, f"--url=file://{FOLDER}/leases", *words]
    return subprocess.run(ours, capture_output=True, text=True, check=False)


def state_of(lease: str) -> str:
    (row,) = json.loads(spark_lease("status", lease, "--json").stdout)
    return str(row["state"])


def test_the_outcome_of_a_driver_elsewhere_is_the_tasks(yarn: None) -> None:
    ended = fire("counts_on_yarn")["counts_on_yarn"]
    assert (ended.state, ended.told["outcome"], ended.told["exit_code"]) == ("success", "finished", 0)
    assert ended.told["epoch"] and ended.told["holder"]
    assert state_of("counts_on_yarn") == "free"


def test_a_task_that_is_killed_ends_its_driver_elsewhere(yarn: None) -> None:
    marks = FOLDER / "works"
    marks.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.airflow.firing", "works_on_yarn", "77"]
    with (FOLDER / "works_on_yarn.log").open("w") as log:
        task = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        until(lambda: marks.exists() or task.poll() is not None, 120)
        assert state_of("works_on_yarn") == "held"
        os.kill(task.pid, signal.SIGTERM)
        task.wait(90)
        until(lambda: time.time() - marks.stat().st_mtime > 2, 30)  # of files there is only the wall's time
        assert spark_lease("run", "--lease=works_on_yarn", "--acquire-timeout=30", "--", "true").returncode == 0
    finally:
        kill(tree(task.pid))


@pytest.mark.parametrize("argument", ["durable", "yarn_track_via_rm_api", "track_driver_via_k8s_api"])
def test_what_would_leave_its_driver_alone_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}: a retry depends on the lease and the run key alone"):
        SparkLeaseSubmitOperator(task_id="t", application="a.py", lease="n", **{argument: True})
