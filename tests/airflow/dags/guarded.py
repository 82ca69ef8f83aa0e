"""DAGs of the tests, one for each way to be guarded."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.exceptions import AirflowException
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

from spark_lease.airflow.operator import SparkLeaseSubmitOperator
from spark_lease.airflow.sensor import SparkLeaseSensor

APPS = Path(__file__).parents[1] / "apps"
FOLDER = Path(os.environ["TEST_FOLDER"])
DAGS: dict[str, DAG] = {}
SPARKS = next((Path(__file__).parents[3] / ".venv" / "lib").glob("python*")) / "site-packages" / "pyspark" / "jars"
YARN = {
    "spark.yarn.stagingDir": f"file://{FOLDER}/staging",
    "spark.yarn.jars": f"local:{SPARKS}/*",
    "spark.yarn.maxAppAttempts": "1",
    "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
    "spark.executor.instances": "1",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.yarn.report.interval": "200ms",
    "spark.ui.enabled": "false",
}
_QUIET = {"spark.ui.enabled": "false", "spark.log.level": "ERROR"}


def dag(name: str, **more: Any) -> DAG:
    told = {"schedule": None, "start_date": datetime(2026, 1, 1, tzinfo=UTC)} | more
    DAGS[name] = globals()[name] = DAG(name, **told)
    return DAGS[name]


def submit(task_id: str, app: str, **more: Any) -> SparkLeaseSubmitOperator:
    told: dict[str, Any] = {
        "lease": task_id,
        "lease_conn_id": "lease",
        "lease_settings": {"lease_duration": 6, "create_table": "true"},
        "conn_id": "local_spark",
        "application": str(APPS / app),
        "application_args": [str(FOLDER)],
        "conf": _QUIET,
        "poll_period": 0.2,
    }
    return SparkLeaseSubmitOperator(task_id=task_id, **told | more)


def bash(task_id: str, command: str) -> BashOperator:
    ours = f"{sys.executable} -m spark_lease run --lease={task_id} --url=sqlite:///{FOLDER}/lease.db"
    ours += " --acquire-timeout 1s --run-key '{{ run_id }}'"
    ours += f" --outcome-file '{FOLDER}/{task_id} {{{{ run_id }}}}.json' --ends-with $PPID"
    return BashOperator(task_id=task_id, bash_command=f"{ours} -- {command}", skip_on_exit_code=[99])


with dag("finishes"):
    submit("finishes", "tells.py", env_vars={"GREETING": "hello"})
with dag("fails"):
    submit("fails", "fails.py")
with dag("stands_by"):
    submit("skips", "tells.py", lease="taken", on_standby="skip")
    submit("fails", "tells.py", lease="taken", on_standby="fail")
with dag("paused"):
    submit("skips", "tells.py", lease="paused", on_standby="skip")
    submit("fails", "tells.py", lease="paused", on_standby="fail")
with dag("defers"):
    submit("defers", "tells.py", on_standby="defer")
WARM = {"lease_duration": 6, "create_table": "true", "standby": "warm"}
with dag("waits_warm"):
    submit("waits_warm", "tells.py", lease_settings=WARM, standby_timeout=120)
with dag("waits_in_vain"):
    submit("waits_in_vain", "tells.py", lease_settings=WARM, standby_timeout=2)
with dag("works"):
    submit("works", "works.py")
with dag("overtime"):
    submit("overtime", "works.py", execution_timeout=timedelta(seconds=20))
with dag("mistakes"):
    submit("no_url", "tells.py", lease_conn_id="no_url")
    submit("odd_name", "tells.py", lease="odd\nname")
    submit("no_name", "tells.py", lease=" ")
    submit("unknown_setting", "tells.py", lease_settings={"lease_duratoin": 4})
with dag("clusters"):
    submit("script", "tells.py", deploy_mode="cluster", conn_id="cluster")
    submit("jar", "", application="s3://lake/app.jar", java_class="a.B", deploy_mode="cluster", conn_id="cluster")
    setting = {"spark.submit.deployMode": "cluster"}
    submit("setting", "", application="s3://lake/app.jar", java_class="a.B", conf=setting)
for name, app in (("counts_on_yarn", "counts.py"), ("works_on_yarn", "works.py")):
    with dag(name):
        submit(name, app, deploy_mode="cluster", conn_id="cluster", lease_conn_id="folder", conf=YARN)
with dag("senses"):
    SparkLeaseSensor(task_id="free", lease="nobody", lease_conn_id="lease", poke_interval=0.2)
    SparkLeaseSensor(task_id="poked", lease="nobody", lease_conn_id="lease", poke_interval=0.2, deferrable=False)
    SparkLeaseSensor(task_id="master", lease="taken", holder="other", lease_conn_id="lease", poke_interval=0.2)
    SparkLeaseSensor(task_id="site", lease="taken", site="paris", lease_conn_id="lease", poke_interval=0.2)
    SparkLeaseSensor(task_id="soon_free", lease="soon", lease_conn_id="lease", poke_interval=0.2, timeout=60)
with dag("looks"):
    SparkLeaseSensor(task_id="looks", lease="nobody", lease_conn_id="lease", poke_interval=0.2)
with dag("elsewhere"):
    submit("elsewhere", "tells.py", lease_settings={"url": f"sqlite:///{FOLDER}/elsewhere.db"})
with dag("shell"):
    bash("finished", "echo worked")
    bash("failed", "false")
    bash("taken", "echo worked")
with dag("shell_sleeps"):
    bash("shell_sleeps", "sleep 60")


HOW = {
    "lease_conn_id": "lease",
    "python": str(Path(__file__).parents[3] / ".venv" / "bin" / "python"),
    "lease_settings": {"lease_duration": 6, "create_table": "true"},
}


@task.leased(lease="callable", **HOW)
def count(rows):
    from pyspark.sql import SparkSession

    from spark_lease import current_lease

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    return {"rows": spark.range(rows).count(), "epoch": current_lease().check()}


@task.leased(lease="sleeps", **HOW)
def sleep():
    import time

    time.sleep(60)


@task.leased(lease="late", execution_timeout=timedelta(seconds=6), **HOW)
def late(folder):
    import time
    from pathlib import Path

    Path(folder, "late.begun").touch()
    time.sleep(30)
    Path(folder, "late.worked").touch()


@task.leased(lease="done", on_standby="fail", **HOW | {"lease_settings": HOW["lease_settings"] | {"if_done": "skip"}})
def once():
    return 1


@task.leased(lease="leaves", skip_on_exit_code=[42], **HOW)
def leave():
    raise SystemExit(42)


@task
def files():
    return json.loads((FOLDER / "files.json").read_text())


@task
def as_words(name):
    return [name]


def write(file):
    return file


NOTED = {"lease_conn_id": "lease", "java_class": "a.B", "application": "a.jar", "conn_id": "local_spark"}
NOTED |= {"spark_binary": str(APPS / "spark-submit"), "lease_settings": HOW["lease_settings"], "lease": "maps"}
ONE_EACH = NOTED | {"on_standby": "fail", "retries": 9, "retry_delay": timedelta(seconds=1)}
with dag("maps"):
    words = as_words.expand(name=files())
    key = "{{ ds }} {{ task.application_args[0] }}"
    SparkLeaseSubmitOperator.partial(task_id="keyed", run_key=key, **ONE_EACH).expand(application_args=words)
with dag("maps_callables"):
    task.leased(run_key="{{ ds }} {{ task.op_kwargs.file }}", lease="writes", **HOW)(write).expand(file=files())
with dag("maps_without_a_key"):
    SparkLeaseSubmitOperator.partial(task_id="submission", **NOTED).expand(application_args=[["a"]])
    SparkLeaseSubmitOperator.partial(task_id="always", run_key="", **NOTED).expand(application_args=[["a"]])
    task.leased(lease="writes", **HOW)(write).expand(file=["a"])
with dag("every_day", schedule=timedelta(days=1)):
    SparkLeaseSubmitOperator(task_id="default", **NOTED)
    task.leased(lease="writes", **HOW)(write)("a")
    SparkLeaseSubmitOperator(task_id="keyed", run_key="{{ ds }}", application_args=["a"], **NOTED)
    key = {"lease_settings": NOTED["lease_settings"] | {"run_key": "{{ ds }}"}}
    SparkLeaseSubmitOperator(task_id="keyed_by_setting", application_args=["a"], **NOTED | key)


def fails_first(context):
    if context["ti"].try_number == 1:
        raise AirflowException("the worker was killed, and its job lives on")


with dag("retries"):
    RETRIED = {"lease": "retried", "retries": 1, "retry_delay": timedelta(0), "pre_execute": fails_first}
    for of, site in (("", {}), ("_of_paris", {"site": "paris"}), ("_of_lyon", {"site": "lyon"})):
        settings = {"lease_settings": HOW["lease_settings"] | site}
        SparkLeaseSubmitOperator(task_id="submission" + of, **NOTED | RETRIED | settings)
        task.leased(task_id="callable" + of, **HOW | RETRIED | settings)(write)("a")
with dag("callable"):
    count(7)
with dag("runs_late"):
    late(str(FOLDER))
with dag("runs_once"):
    once()
with dag("runs_off"):
    leave()
with dag("sleeps"):
    sleep()
