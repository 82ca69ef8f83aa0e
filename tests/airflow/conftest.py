"""An Airflow home of the tests' own, made before anything of Airflow is imported; its DAGs are in `dags`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.jars import start_options
from tests.airflow.support import FOLDER, ROOT
from tests.support.supervisor import supervise

_LEASE = {"conn_type": "spark_lease", "host": f"sqlite:///{FOLDER}/lease.db", "password": "hunter22"}
os.environ |= {
    "AIRFLOW_HOME": str(FOLDER),
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{FOLDER}/airflow.db",
    "AIRFLOW_CONN_CLUSTER": '{"conn_type": "spark", "host": "yarn"}',
    "AIRFLOW_CONN_LOCAL_SPARK": '{"conn_type": "spark", "host": "local[2]"}',
    "AIRFLOW_CONN_LEASE": json.dumps(_LEASE),
    "AIRFLOW_CONN_FOLDER": json.dumps({"conn_type": "spark_lease", "host": f"file://{FOLDER}/leases"}),
    "AIRFLOW_CONN_NO_URL": '{"conn_type": "http", "host": "example.org"}',
    "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT),
    "SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 {start_options()}",
    "TEST_FOLDER": str(FOLDER),
}


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    supervise()


@pytest.fixture(scope="session", autouse=True)
def _database() -> Iterator[None]:
    airflow = str(Path(sys.executable).with_name("airflow"))
    subprocess.run([airflow, "db", "migrate"], check=True, capture_output=True, timeout=120)
    yield
    shutil.rmtree(FOLDER, ignore_errors=True)


@pytest.fixture(scope="module")
def yarn() -> Iterator[None]:
    """A real YARN, which submissions of this process find."""
    folder = FOLDER / "yarn"
    folder.mkdir()
    command = [ROOT / ".venv" / "bin" / "python", "-m", "tests.services.yarn", "--serve", folder]
    serving = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert serving.stdin and serving.stdout
    conf = serving.stdout.readline().strip()
    assert conf, serving.wait()
    told = {"HADOOP_CONF_DIR": conf, "SPARK_LOCAL_HOSTNAME": "localhost", "PATH": f"{folder}:{os.environ['PATH']}"}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in told.items():
            patch.setenv(key, value)
        yield
    serving.stdin.close()
    serving.wait(60)


@pytest.fixture
def store() -> str:
    return f"sqlite:///{FOLDER}/lease.db"


@pytest.fixture
def master(store: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another master, under a label, for as long as its command takes."""
    started: list[subprocess.Popen[str]] = []

    def start(lease: str, *command: str, run_key: str = "") -> subprocess.Popen[str]:
        words = ["run", f"--lease={lease}", f"--url={store}", "--lease-duration=6", "--holder=other", "--site=paris"]
        words += [*([f"--run-key={run_key}"] if run_key else []), "--", *command]
        ours = [sys.executable, "-m", "spark_lease", *words]
        started.append(subprocess.Popen(ours, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True))
        stderr = started[-1].stderr
        assert stderr is not None
        while "acquired" not in (line := stderr.readline()):
            assert line, "it never became master"
        return started[-1]

    yield start
    for each in started:
        each.terminate()
        each.communicate(timeout=20)
