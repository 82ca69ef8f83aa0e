"""Work that runs on other machines, or in a server that is not ours: nothing is handed over early."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.holds import open_contender
from spark_lease.system.processes import kill, processes, tree
from tests.services.proxy import Proxy
from tests.support.command import COMMAND, spark_lease
from tests.support.drivers import Driver, command_line, row, standby, until
from tests.support.frames import ask, tell, there
from tests.support.guarded import engine_for
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(180)]
BIN, ROOT = Path(sys.executable).parent, Path(__file__).parents[2]
Start = Callable[..., Driver]
Launch = Callable[..., tuple[int, Path]]


def free_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return int(door.getsockname()[1])


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """Start one of Spark's own servers; its pid and its log."""
    folder, started = tmp_path_factory.mktemp("servers"), []
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable, "PATH": f"{BIN}:{os.environ['PATH']}"}
    environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}

    def run(command: str, *words: str) -> tuple[int, Path]:
        log = folder / f"{len(started)}.log"
        with log.open("w") as out:
            started.append(
                subprocess.Popen(
                    [str(BIN / command), *words],
                    stdout=out,
                    stderr=out,
                    env=environ,
                    cwd=folder,
                    start_new_session=True,
                )
            )
        return started[-1].pid, log

    yield run
    for process in started:
        kill(tree(process.pid))
        process.wait(10)


# A standalone cluster with two workers


@pytest.fixture(scope="module")
def cluster(launch: Launch) -> str:
    return standalone(launch)[0]


def standalone(launch: Launch) -> tuple[str, list[int]]:
    """Its URL; the pids of master and workers."""
    ports = [str(free_port()) for _ in range(4)]
    deploy = "org.apache.spark.deploy"
    where = ["-h", "localhost", "-p", ports[0], "--webui-port", ports[1]]
    pid, log = launch("spark-class", f"{deploy}.master.Master", *where)
    master, pids = f"spark://localhost:{ports[0]}", [pid]
    for host, port in zip(("127.0.0.1", "127.0.0.2"), ports[2:], strict=True):  # no twin of a task runs on its own host
        size = ["-h", host, "-c", "1", "-m", "600m", "--webui-port", port]
        pids.append(launch("spark-class", f"{deploy}.worker.Worker", *size, master)[0])
    until(lambda: log.read_text().count("Registering worker") == 2, timeout=60)
    return master, pids


@pytest.mark.fault
def test_a_warm_standby_gives_its_executors_back(start: Start, cluster: str, url: str, table: str) -> None:
    config = configure(name="n", url=url, table=table, create_table=True, lease_duration=300)
    with closing(open_contender(config, BootClock())) as master:
        master.acquire()
        driver = start(
            f"""
    from pyspark.sql import SparkSession
    CONF = {{
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "500m",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }}

    def warm_up():
        session = SparkSession.builder.master({cluster!r}).config(map=CONF).getOrCreate()
        say(f"application {{session.sparkContext.applicationId}} is there")

    with hold_lease("n", **SETTINGS, warm_up=warm_up):
        say(f"counts {{SparkSession.builder.getOrCreate().range(7).count()}}")
    """
        )
        application = driver.until("is there").split("application ")[1].split()[0]

        def executors() -> list[int]:
            lines = {pid: command_line(pid) for pid in processes()}
            return [pid for pid, line in lines.items() if application in line and "ExecutorBackend" in line]

        until(executors, timeout=60)
        driver.until("standby (warm): Spark is ready", timeout=90)
        until(lambda: not executors(), timeout=60)
        master.release()
        driver.until("counts 7", timeout=60)
        assert driver.end() == 0


ON_CLUSTER = """
with hold_lease("n", **SETTINGS | {}):
    from pyspark.sql import SparkSession
    conf = {{"spark.ui.enabled": "false", "spark.executor.memory": "500m", "spark.driver.host": "localhost"}}
    spark = SparkSession.builder.master("{}").config(map=conf).getOrCreate()
    write(spark)
"""


@pytest.mark.parametrize("grace", [pytest.param("local", id="runs out"), once_more(1.5, id="after a grace")])
def test_executors_of_a_cluster_are_not_taken_for_dead(
    start: Start, cluster: str, url: str, table: str, grace: str | float
) -> None:
    settings = {"lease_duration": 5, "release_on_death": grace}
    driver = start(ON_CLUSTER.format(settings, cluster))
    driver.until("writing")
    until(lambda: len(list(driver.folder.glob("task-*"))) == 2, timeout=60)
    driver.until("its tasks run outside the driver")
    os.kill(driver.process.pid, signal.SIGKILL)
    killed = time.time()
    granted = standby(url, table)
    if grace == "local":
        assert granted - killed > 3.5  # not released: a renewal is at most 0.8 s old when the driver dies
    else:
        assert 1.5 <= granted - killed < 3.5
    assert driver.last_write() < granted


BLOCK_ON_CLUSTER = """
with hold_lease("n", **SETTINGS | {}):
    from pyspark.sql import SparkSession
    conf = {{"spark.ui.enabled": "false", "spark.executor.memory": "500m", "spark.driver.host": "localhost"}}
    spark = SparkSession.builder.master("{}").config(map=conf).getOrCreate()
    spark.sparkContext.parallelize([0, 1], 2).map(lambda x: x).collect()
    if {}:
        threading.Thread(target=write, args=(spark,), daemon=True).start()
        while not (FOLDER / "task-0").exists():
            time.sleep(0.01)
    say("ends")
    raise ValueError("a bug")
"""


@pytest.mark.parametrize(
    ("busy", "grace"),
    [
        pytest.param(True, "local", id="at work"),
        once_more(True, 1.5, id="at work, with a grace"),
        once_more(False, "local", id="idle"),
    ],
)
def test_a_block_that_fails_is_released_if_its_executors_were_idle_or_their_grace_is_known(
    start: Start, cluster: str, url: str, table: str, grace: str | float, busy: bool
) -> None:
    """`SparkContext.stop()` tells executors elsewhere to end, and returns before they have."""
    settings = {"lease_duration": 6, "release_on_death": grace}
    driver = start(BLOCK_ON_CLUSTER.format(settings, cluster, busy))
    driver.until("ends", 90)
    ended = time.time()
    granted = standby(url, table)
    assert (granted - ended > 4.5) == (busy and grace == "local"), driver.log.read_text()
    if busy:
        assert driver.last_write() < granted
        assert ("nothing proves that it has ended" in driver.log.read_text()) == (grace == "local")


SUBMITTED = """
from pyspark.sql import SparkSession
write(SparkSession.builder.getOrCreate())
"""


@pytest.mark.fault
def test_executors_of_a_submission_to_a_cluster_are_not_taken_for_dead(
    start: Start, cluster: str, url: str, table: str
) -> None:
    flags = ["--lease", "n", "--url", url, "--table", table, "--create-table", "true", "--lease-duration", "5"]
    conf = ["spark.ui.enabled=false", "spark.executor.memory=500m", "spark.driver.host=localhost"]
    spark = ["--master", cluster, *(word for each in conf for word in ("--conf", each))]
    driver = start(SUBMITTED, command=[COMMAND, "submit", *flags, "--", *spark])
    driver.until("writing")
    until(lambda: len(list(driver.folder.glob("task-*"))) == 2, timeout=60)
    kill(driver.tree())
    killed = time.time()
    granted = standby(url, table)
    assert granted - killed > 3.5  # as above
    assert driver.last_write() < granted


OUTLIVES = """
def task(part):
    import time
    while not (FOLDER / "go").exists():
        with open(FOLDER / f"task-{part}", "a") as file:
            file.write(f"{time.time()}\\n")
        time.sleep(0.01)
    return part

with hold_lease("n", **SETTINGS):
    from pyspark.sql import SparkSession
    conf = {"spark.ui.enabled": "false", "spark.executor.memory": "500m", "spark.driver.host": "localhost"}
    spark = SparkSession.builder.master("MASTER").config(map=conf).getOrCreate()
    assert spark.sparkContext.parallelize([0, 1], 2).map(task).collect() == [0, 1]
"""


@pytest.mark.fault
def test_a_job_outlives_a_worker_and_the_master_and_keeps_its_lease(
    start: Start, launch: Launch, url: str, table: str, tmp_path: Path
) -> None:
    master, (pid, worker, _) = standalone(launch)
    driver = start(OUTLIVES.replace("MASTER", master))
    until(lambda: len(list(tmp_path.glob("task-*"))) == 2, timeout=60)
    holder, epoch = row(url, table)
    assert epoch == driver.epoch()
    for each in (worker, pid):
        kill(tree(each))
    time.sleep(4)  # nothing to wait for: a lease_duration in which it has to go on
    assert row(url, table) == (holder, epoch)
    (tmp_path / "go").touch()
    assert driver.end(60) == 0, driver.log.read_text()
    done = spark_lease("history", "n", "--url", url, "--table", table, "--json")
    (hold,) = json.loads(done.stdout)["holds"]
    assert (hold["epoch"], hold["ended_by"]) == (epoch, "finished")
    assert hold["applications"][0].startswith("app-")


SPECULATES = """
import sys
sys.path.insert(0, os.environ["TEST_ROOT"])
from tests.support.guarded import engine_for
from tests.support.frames import meeting
from pyspark.sql import SparkSession
conf = {"spark.ui.enabled": "false", "spark.executor.memory": "500m", "spark.driver.host": "localhost",
    "spark.speculation": "true", "spark.speculation.interval": "50ms", "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.01", "spark.speculation.minTaskRuntime": "50ms"}
with hold_lease("n", **SETTINGS) as lease:
    spark = SparkSession.builder.master("MASTER").config(map=conf).getOrCreate()
    frame = spark.range(0, 2000, 1, 2).selectExpr("id AS epoch")
    frame = frame.mapInArrow(meeting(FOLDER, tries=2, parts=1), "epoch bigint")
    say(f"wrote {lease.write_sql(frame, engine_for(os.environ['TEST_PG']), 'guarded', through='executors')}")
"""


@pytest.mark.fault
@pytest.mark.postgres
def test_a_speculative_twin_of_a_task_doubles_no_row(
    start: Start, cluster: str, pg_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_for(pg_url)
    tell(engine, "DROP TABLE IF EXISTS guarded", "CREATE TABLE guarded (epoch bigint)")
    monkeypatch.setenv("TEST_ROOT", str(ROOT))
    monkeypatch.setenv("TEST_PG", pg_url)
    driver = start(SPECULATES.replace("MASTER", cluster))
    assert there(tmp_path, "there-0-0") and there(tmp_path, "there-0-1")  # the second is its twin, on the other worker
    (tmp_path / "go").touch()
    driver.until("wrote 2000")
    assert ask(engine, "SELECT count(*), count(DISTINCT epoch) FROM guarded") == [(2000, 2000)]
    tell(engine, "DROP TABLE guarded")
    engine.dispose()


# Spark Connect


def protection(url: str, table: str) -> str:
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as connection:
        return str(connection.execute(f"SELECT protection FROM {table}").fetchone()[0])


@pytest.fixture(scope="module")
def connect(launch: Launch) -> str:
    port = free_port()
    options = ["--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.ui.enabled=false"]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    launch("spark-submit", "--master", "local[2]", "--class", server, *options)

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    until(answers, timeout=60)
    return f"sc://127.0.0.1:{port}"


CONNECTED = """
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

# A Python worker on the server writes on for 4 s after it was interrupted: the lease has to leave that time.
with hold_lease("n", on_lost={}, **SETTINGS | {{"lease_duration": 12}}) as lease:
    spark = SparkSession.builder.remote("{}").getOrCreate()
    assert spark.range(5).count() == 5
    say("connected")
    {}
"""
WRITE = """
    def append(part):
        import time
        with open(f"{FOLDER}/task-0", "a") as file:
            for _ in range(10_000):
                file.write(f"{time.time()}\\n")
                file.flush()
                time.sleep(0.005)
        return part
    FOLDER = str(FOLDER)
    spark.range(1).select(udf(append, "long")("id")).collect()
"""


@pytest.mark.postgres
@pytest.mark.parametrize("on_lost", ["exit", once_more("stop")])
def test_work_on_a_connect_server_is_interrupted_before_another_may_start(
    start: Start, connect: str, proxy: Proxy, pg_url: str, table: str, on_lost: str
) -> None:
    driver = start(CONNECTED.format(repr(on_lost), connect, WRITE), proxy.url)
    driver.until("connected")
    until(lambda: any(driver.folder.glob("task-0")))
    proxy.stall()
    granted = standby(pg_url, table)
    assert driver.end() in (1, 75), driver.log.read_text()
    assert driver.last_write() < granted
    assert re.search(r"lease lost \(expired\)", driver.log.read_text())


def test_an_idle_connect_session_is_no_reason_to_keep_the_lease(
    start: Start, connect: str, url: str, table: str
) -> None:
    wait = "while lease.protection != 'server': time.sleep(0.01)"  # nothing more to wait for: it says no word
    driver = start(CONNECTED.format("'exit'", connect, wait))
    assert driver.end() == 0, driver.log.read_text()
    assert row(url, table)[0] is None


def test_a_connect_session_ends_a_block_that_requires_more_protection(start: Start, connect: str) -> None:
    driver = start(CONNECTED.format("'exit', require_protection='kernel'", connect, "time.sleep(60)"))
    assert driver.end(60) == 1
    assert "require_protection: kernel is required: a Spark Connect server runs the work" in driver.log.read_text()


AFTER_A_FAILURE = """
from pyspark.sql import SparkSession
connect = SparkSession.builder.remote("{}")
try:
    with hold_lease("n", on_lost="stop", **SETTINGS):
        connect.getOrCreate()
        raise ValueError("a bug")
except ValueError:
    say("failed")
with hold_lease("other", on_lost="stop", **SETTINGS) as lease:
    spark = connect.getOrCreate()
    for _ in range(10):
        time.sleep(0.1)  # in which what ended the first one's session would end this one
        assert spark.range(5).count() == 5
    say("counts under the other lease")
"""


def test_a_block_that_failed_ends_no_session_of_a_later_one(start: Start, connect: str) -> None:
    driver = start(AFTER_A_FAILURE.format(connect))
    assert driver.end(90) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "counts under the other lease" in said
    assert said.count("Spark Connect session stopped") == 1
    assert "nothing proves that it has ended" in said


FENCED = """
from pyspark.sql import SparkSession
from spark_lease import ConfigError
for level, how in (("auto", "getOrCreate"), ("required", "getOrCreate"), ("required", "create")):
    with hold_lease("n", **SETTINGS | {{"lease_duration": 60, "fence_delta": level}}, keeper="thread") as lease:
        try:
            getattr(SparkSession.builder.remote("{}"), how)().stop()
            say(f"{{level}}: {{lease.fences}}")
        except ConfigError as error:
            say(f"{{level}} {{how}}: {{error}}")
"""


def test_where_a_server_runs_the_work_the_delta_fence_is_claims_alone(start: Start, connect: str) -> None:
    driver = start(FENCED.format(connect))
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "not refused; missing: a Spark of this process (it is a Spark Connect server's)" in said
    assert "auto: delta claims, sql none" in said
    for how in ("getOrCreate", "create"):
        assert f"required {how}: fence_delta: is required, but needs a Spark of this process" in said


STREAM = """
    folder = f"{FOLDER}/stream"
    stream = spark.readStream.format("rate").load().writeStream.trigger(processingTime="200 milliseconds")
    stream.format("parquet").option("path", folder).option("checkpointLocation", f"{FOLDER}/checkpoint").start()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, once_more(signal.SIGSTOP)])
def test_a_crash_beside_a_connect_server_is_not_handed_over_and_ends_its_work_there(
    start: Start, connect: str, url: str, table: str, number: signal.Signals
) -> None:
    driver = start(CONNECTED.format("'exit'", connect, STREAM + WRITE))
    driver.until("protection server")
    until(lambda: protection(url, table) == "server")  # with the next renewal
    stream = driver.folder / "stream"
    until(lambda: any(driver.folder.glob("task-0")) and any(stream.glob("*.parquet")), timeout=60)
    os.kill(driver.process.pid, number)
    driver.end()
    assert row(url, table)[0] is not None, "a server is asked, and proves nothing"
    until(lambda: "the driver has left on its Spark Connect server" in driver.log.read_text(), timeout=60)
    assert "n: ended the session" in driver.log.read_text()
    until(lambda: time.time() - driver.last_write() > 3)  # a worker writes on for a few seconds
    written = set(stream.glob("*.parquet"))
    time.sleep(2)  # in which ten batches would come: nothing tells that none does
    assert set(stream.glob("*.parquet")) == written
