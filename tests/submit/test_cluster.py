"""Drivers that a cluster runs: the guard travels with them, nothing is handed over early, the outcome comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from spark_lease import hold_lease
from spark_lease.submit.bundle import write_bundle
from spark_lease.submit.command_line import conf_of, is_for_cluster
from spark_lease.system.processes import kill, tree
from tests.services.yarn import FOLDER, MISSING, SPARKS
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.postgres,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not FOLDER.exists() and "CI" not in os.environ, reason=MISSING),
]

SCRIPT = """
import json, os, pathlib, sys, time
import psycopg2
import spark_lease
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
here, name, code = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
assert name != "first" or spark.range(100).selectExpr("sum(id)").first()[0] == 4950
told = {"pids": [os.getpid(), os.getppid()], "guard": spark_lease.__file__, "script": __file__, "main": __name__}
told |= {"argv": sys.argv, "epoch": int(os.environ["SPARK_LEASE_EPOCH"]), "at": time.time()}
database = psycopg2.connect(os.environ["TEST_PG"])
database.autocommit = True
while not (here / "go").exists():
    database.cursor().execute("INSERT INTO written VALUES (%s, clock_timestamp())", [told["epoch"]])
    if not (here / name).exists():
        (here / "new").write_text(json.dumps(told))
        (here / "new").rename(here / name)
    time.sleep(0.02)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("yarn")
    command = [sys.executable, "-m", "tests.services.yarn", "--serve", folder]
    serving = subprocess.Popen(command, cwd=FOLDER.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert serving.stdin and serving.stdout
    conf = serving.stdout.readline().strip()
    assert conf, serving.wait()
    yield Path(conf)
    serving.stdin.close()
    serving.wait(60)
    serving.stdout.close()


@pytest.fixture
def written(pg_url: str, table: str) -> Iterator[Any]:
    with closing(psycopg2.connect(pg_url)) as database:
        database.autocommit = True
        cursor = database.cursor()
        cursor.execute("CREATE TABLE written (epoch bigint, at timestamptz)")
        yield cursor
        cursor.execute(f"DROP TABLE IF EXISTS written, {table}, {table}_notes")


@pytest.fixture
def store(pg_url: str, table: str) -> list[str]:
    return ["--url", pg_url, "--table", table]


@pytest.fixture
def submit(yarn: Path, store: list[str], pg_url: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Submit the script; its Python has psycopg2, and nothing of ours."""
    bare, started = tmp_path / "bare", []
    bare.mkdir()
    for name in ("psycopg2", "psycopg2_binary.libs"):
        (bare / name).symlink_to(Path(psycopg2.__file__).parents[1] / name)
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    conf = {
        "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
        "spark.yarn.jars": f"local:{SPARKS}/*",
        "spark.yarn.maxAppAttempts": "1",
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys._base_executable,  # type: ignore[attr-defined]
        "spark.yarn.appMasterEnv.PYTHONPATH": str(bare),
        "spark.yarn.appMasterEnv.TEST_PG": pg_url,
        "spark.executor.instances": "1",
        "spark.executor.cores": "1",
        "spark.ui.enabled": "false",
        "spark.yarn.report.interval": "200ms",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    given = ["--master", "yarn", "--driver-memory", "512m", "--executor-memory", "512m"]
    given += [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]

    def run(name: str, *words: str, code: int = 0, mode: str = "cluster") -> subprocess.Popen[str]:
        settings = ["--lease", "n", *store, "--create-table", "true", *words]
        line = [COMMAND, "submit", *settings, "--", "--deploy-mode", mode, *given]
        with (tmp_path / f"{name}.log").open("w") as errors:
            started.append(
                subprocess.Popen(
                    [*line, str(script), str(tmp_path), name, str(code)],
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=os.environ
                    | {"HADOOP_CONF_DIR": str(yarn), "SPARK_LOCAL_HOSTNAME": "localhost", "TEST_PG": pg_url},
                )
            )
        return started[-1]

    yield run
    (tmp_path / "go").touch()
    for each in started:
        kill(tree(each.pid))
        each.communicate()


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=120)
    return dict(json.loads(out.splitlines()[-1])) | {"code": process.returncode}


def status(store: list[str]) -> list[dict[str, Any]]:
    return list(json.loads(spark_lease("status", "n", *store, "--json").stdout))


def told_by(folder: Path, name: str) -> dict[str, Any]:
    log = folder / f"{name}.log"
    until((folder / name).exists, 90, lambda: log.read_text()[-4000:])
    return dict(json.loads((folder / name).read_text()))


def refuse_overlap(written: Any, first: int, second: int) -> None:
    """Both epochs wrote, and the first had ended when the second was granted."""
    written.execute("SELECT epoch, extract(epoch FROM max(at))::float FROM written GROUP BY 1 ORDER BY 1")
    (old, last), (new, _) = written.fetchall()
    assert (old, new) == (first, second) and last < second / 1000


def test_the_guard_travels_with_the_job_and_its_outcome_comes_back(
    submit: Callable[..., subprocess.Popen[str]], store: list[str], written: Any, tmp_path: Path
) -> None:
    first = submit("first", "--run-key", "monday", code=3)
    told = told_by(tmp_path, "first")
    assert "spark_lease.zip" in told["guard"]
    assert (told["main"], told["argv"][1:]) == ("__main__", [str(tmp_path), "first", "3"])
    assert Path(told["script"]).is_absolute() and Path(told["script"]).name == "job.py"
    skipped = submit("second", "--if-held", "skip")
    said = outcome(skipped)
    assert (said["code"], said["outcome"], " is master" in said["reason"]) == (99, "standby", True)
    assert "Submitting application" not in (tmp_path / "second.log").read_text()  # which takes nothing of the cluster
    (tmp_path / "go").touch()
    said = outcome(first)
    assert (said["code"], said["outcome"], said["epoch"]) == (3, "failed", told["epoch"])
    assert said["released"] and said["run_key"] == "monday"
    (run,) = json.loads(spark_lease("runs", "n", *store, "--json").stdout)
    assert (run["key"], run["outcome"], run["epoch"]) == ("monday", "failed", told["epoch"])
    (hold,) = json.loads(spark_lease("history", "n", *store, "--json").stdout)["holds"]
    assert (hold["ended_by"], hold["detail"], hold["epoch"]) == ("failed", "exit 3", told["epoch"])
    assert hold["applications"] and hold["applications"][0].startswith("application_")


@pytest.mark.fault
@pytest.mark.parametrize("kind", ["killed", "frozen"])
def test_what_a_cluster_runs_is_not_taken_for_dead_and_its_end_is_read_from_beside_the_lease(
    submit: Callable[..., subprocess.Popen[str]], store: list[str], written: Any, tmp_path: Path, kind: str
) -> None:
    settings = ["--lease-duration", "12", *(["--keeper", "thread"] if kind == "frozen" else [])]
    if kind == "frozen":
        spark_lease("init", *store)
        assert spark_lease("fence", "add", "--lease", "n", "--on", "written", *store).returncode == 0
    master = submit("master", *settings)
    told = told_by(tmp_path, "master")
    standby = submit("standby", *settings, "--site", "lyon", "--holder", "scheduler-b")
    until(lambda: "standby, " in (tmp_path / "standby.log").read_text())
    (row,) = until(lambda: [each for each in status(store) if each["standbys"]])
    assert [(each["site"], each["holder"].split(":")[0]) for each in row["standbys"]] == [("lyon", "scheduler-b")]
    ended = time.time()
    for pid in reversed(told["pids"]):
        os.kill(pid, signal.SIGKILL if kind == "killed" else signal.SIGSTOP)
    try:
        after = told_by(tmp_path, "standby")
        assert (
            after["epoch"] / 1000 - ended > 6
        )  # not released: a renewal is a retry_period old, and may have been late
    finally:
        for pid in told["pids"] if kind == "frozen" else ():
            os.kill(pid, signal.SIGCONT)
    said = outcome(master)
    assert said["code"] not in (0, 3), said
    if kind == "killed":
        assert said["outcome"] == "unknown", said
    (tmp_path / "go").touch()
    said = outcome(standby)
    assert (said["code"], said["outcome"], said["epoch"]) == (0, "finished", after["epoch"])
    refuse_overlap(written, told["epoch"], after["epoch"])
    holds = json.loads(spark_lease("history", "n", *store, "--json").stdout)["holds"]
    assert [hold["epoch"] for hold in holds] == [told["epoch"], after["epoch"]]
    assert holds[1]["holder"].startswith("scheduler-b:")
    assert (holds[0]["ended_by"], holds[1]["ended_by"]) == ("ran out", "finished")


@pytest.mark.fault
def test_a_driver_here_whose_executors_are_yarns_hands_nothing_over_early(
    submit: Callable[..., subprocess.Popen[str]], store: list[str], written: Any, tmp_path: Path
) -> None:
    settings = ["--lease-duration", "12"]
    master = submit("first", *settings, mode="client")  # which has run tasks on an executor by then
    told = told_by(tmp_path, "first")
    standby = submit("standby", *settings, mode="client")
    until(lambda: "standby, " in (tmp_path / "standby.log").read_text())
    ended = time.time()
    kill([each for each in tree(master.pid) if each.name == "java"])
    after = told_by(tmp_path, "standby")
    assert after["epoch"] / 1000 - ended > 6, "a killed driver proves nothing of executors elsewhere: it runs out"
    assert outcome(master)["outcome"] == "crashed"
    (tmp_path / "go").touch()
    said = outcome(standby)
    assert (said["code"], said["outcome"], said["epoch"]) == (0, "finished", after["epoch"])
    refuse_overlap(written, told["epoch"], after["epoch"])


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        ([], ["--master", "spark://h:7077"], "a standalone cluster runs no Python driver: use --deploy-mode client"),
        (["--url", "sqlite:////tmp/x.db"], [], "is a file of this machine, and the driver runs on another"),
        (["--url", "postgresql://u:hunter2@h/d"], [], "password: is known here and does not travel with the job"),
        (["--url", "postgresql://u@h/d?password=hunter2"], [], "carries a password as a parameter"),
    ],
)
def test_what_a_cluster_cannot_run_is_refused_before_anything_is_sent(
    words: list[str], options: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "job.py").touch()
    where = [] if "--url" in words else ["--url", "postgresql://u@127.0.0.1:1/d"]
    done = spark_lease(
        "submit",
        "--lease",
        "n",
        *where,
        *words,
        "--",
        "--master",
        "yarn",
        "--deploy-mode=cluster",
        *options,
        "job.py",
        cwd=tmp_path,
    )
    assert (done.returncode, last_line(done)["outcome"]) == (78, "misconfigured"), done.stderr
    assert says in done.stderr and "hunter2" not in done.stderr + done.stdout and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--if-held", "fail"], 1, "standby"),
        (["--if-held", "skip", "--standby-exit-code", "42"], 42, "standby"),
        (["--run-key", "monday", "--if-done", "skip"], 99, "already done"),
        (["--run-key", "monday"], 0, "already done"),
    ],
)
def test_what_is_known_before_is_said_and_nothing_is_sent(
    words: list[str], code: int, what: str, pg_url: str, store: list[str], table: str, tmp_path: Path
) -> None:
    (tmp_path / "job.py").touch()
    cluster = ["--", "--master", "yarn", "--deploy-mode", "cluster", "job.py"]
    with hold_lease("n", url=pg_url, table=table, create_table=True, keeper="thread", fence_delta="off") as lease:
        lease.complete("monday")
        done = spark_lease("submit", "--lease", "n", *store, *words, *cluster, cwd=tmp_path)
    with closing(psycopg2.connect(pg_url)) as database, database, database.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table}, {table}_notes")
    assert (done.returncode, last_line(done)["exit_code"], last_line(done)["outcome"]) == (code, code, what), (
        done.stderr
    )


def test_what_stands_in_a_properties_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.write_text("# ours\nspark.master  yarn\nspark.submit.deployMode=cluster\nspark.app.name: nightly\n\n")
    options = ["--properties-file", str(file), "--conf", "spark.app.name=other"]
    wanted = {"spark.master": "yarn", "spark.submit.deployMode": "cluster", "spark.app.name": "other"}
    assert conf_of(options) == wanted
    assert is_for_cluster(options) and not is_for_cluster([*options, "--deploy-mode", "client"])


def test_the_zip_is_all_that_a_driver_needs(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "guard.zip")
    inside = f"""
import sys
sys.path.insert(0, {str(bundle)!r})
from spark_lease import hold_lease
with hold_lease("n", url="sqlite:///{tmp_path}/l.db") as lease:
    print(lease.epoch, lease.protection)"""
    bare = [sys._base_executable, "-S", "-E", "-c", inside]  # type: ignore[attr-defined]
    done = subprocess.run(bare, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    epoch, protection = done.stdout.split() or [done.stderr, ""]
    assert epoch.isdecimal() and protection == "kernel", epoch
