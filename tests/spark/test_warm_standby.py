"""A warm standby: its Spark is ready before the grant, writes nothing until then, and is left behind by no end."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake

from spark_lease.clock import BootClock, wall_time
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.fencing.delta.tables import note_table
from spark_lease.holds import LocalHold, open_contender
from spark_lease.journal.standbys import standbys_of
from spark_lease.stores.registry import open_notes
from spark_lease.system.processes import look
from tests.support.command import COMMAND
from tests.support.drivers import DELTA, Driver, command_line, standby, until
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
Start = Callable[..., Driver]
WARMING, READY = "standby (warming up)", "standby (warm): Spark is ready"

WRITES = """
    from pyspark.sql import functions as F
    from spark_lease import NotMaster, current_lease

    def writes(spark):
        rows, table = spark.range(3), f"delta.`{TABLE}`"
        flow = lambda: spark.readStream.format("rate").load().select(F.col("value").alias("id")).writeStream
        def stream(write):
            write.option("checkpointLocation", f"{FOLDER}/{time.monotonic_ns()}").start().awaitTermination()
        merge = f"MERGE INTO {table} t USING (SELECT id FROM range(9)) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
        return {
            "append": lambda: rows.write.format("delta").mode("append").save(TABLE),
            "overwrite": lambda: rows.write.format("delta").mode("overwrite").save(TABLE),
            "a new table": lambda: rows.write.format("delta").save(f"{FOLDER}/new"),
            "create": lambda: spark.sql(f"CREATE TABLE delta.`{FOLDER}/new` USING delta AS SELECT * FROM range(3)"),
            "insert": lambda: spark.sql(f"INSERT INTO {table} SELECT * FROM range(3)"),
            "update": lambda: spark.sql(f"UPDATE {table} SET id = id + 1"),
            "delete": lambda: spark.sql(f"DELETE FROM {table} WHERE id = 1"),
            "merge": lambda: spark.sql(merge),
            "alter": lambda: spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = 'b')"),
            "optimize": lambda: spark.sql(f"OPTIMIZE {table}"),
            "restore": lambda: spark.sql(f"RESTORE {table} TO VERSION AS OF 0"),
            "stream": lambda: stream(flow().format("delta").option("path", TABLE)),
            "foreachBatch": lambda: stream(flow().foreachBatch(
                lambda batch, number: batch.write.format("delta").mode("append").save(TABLE))),
        }

    def try_all(spark):
        for name, write in writes(spark).items():
            try:
                write()
                say(f"WRITTEN: {name}")
            except Exception as error:
                say(f"refused {name}: {type(error).__name__}: {error}")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/lease.db"


@pytest.fixture
def config(url: str, table: str) -> Config:
    return configure(name="n", url=url, table=table, create_table=True, lease_duration=300)


@pytest.fixture
def master(config: Config) -> Iterator[LocalHold]:
    """Another contender, which has the lease for as long as a test needs."""
    hold = open_contender(config, BootClock())
    hold.acquire()
    yield hold
    hold.close()


@pytest.fixture
def flights(tmp_path: Path) -> DeltaTable:
    """The table that is guarded, of two versions."""
    for first in (0, 10):
        ids = Array([first, first + 1], type=DataType.int64())
        write_deltalake(str(tmp_path / "flights"), Table.from_pydict({"id": ids}), mode="append")
    return DeltaTable(str(tmp_path / "flights"))


def append(table: DeltaTable, versions: int) -> None:
    for number in range(versions):
        write_deltalake(table, Table.from_pydict({"id": Array([number], type=DataType.int64())}), mode="overwrite")
    table.create_checkpoint()


def jvm_of(driver: Driver) -> int:
    return driver.find("org.apache.spark.deploy.SparkSubmit").pid


@pytest.mark.shows("P7")
def test_it_reads_and_is_refused_every_write_until_it_is_master(
    start: Start, master: LocalHold, flights: DeltaTable, config: Config, tmp_path: Path
) -> None:
    driver = start(
        DELTA
        + WRITES
        + """
    def warm_up():
        spark = delta_session()
        say(f"read {spark.read.format('delta').load(TABLE).count()}, lease {current_lease()}")
        try_all(spark)

    with hold_lease("n", **SETTINGS, warm_up=warm_up) as lease:
        delta_session(**{"spark.executor.cores": "1"})
        spark = delta_session(**{"spark.sql.shuffle.partitions": "3", "spark.executor.cores": "1"})
        spark.sql(f"INSERT INTO delta.`{TABLE}` SELECT * FROM range(3)")
        say(f"wrote under {lease.epoch} with {spark.conf.get('spark.sql.shuffle.partitions')} partitions")
        while list(Path(spark.sparkContext._temp_dir).glob("spark_lease-*")):
            time.sleep(0.05)
    say("done")
    """
    )
    said = driver.until(READY, timeout=120)
    assert "read 4, lease None" in said
    assert "WRITTEN" not in said
    refused = re.findall(r"refused (.+): NotMaster: n: file:\S+ was not written", said)
    assert len(refused) == said.count("refused ") == 13
    assert "is not complete" not in said
    assert flights.version() == 1
    assert not (tmp_path / "new" / "_delta_log").exists()
    with closing(open_notes(config)) as notes:
        until(lambda: [each.state for each in standbys_of(notes, "n", wall_time())] == ["warm"], timeout=40)
    master.release()
    said = driver.until("done")
    assert driver.end() == 0
    assert "with 3 partitions" in said
    assert said.count("the script sets spark.executor.cores, but the warm standby has already started Spark") == 1
    flights.update_incremental()
    assert flights.version() == 2
    with closing(open_notes(config)) as notes:  # and nothing of the scratch folder
        assert list(notes.all("n", "table")) == [f"file:{tmp_path}/flights"]


def wait_warm(start: Start, script: str = "", **more: str) -> Driver:
    """A driver whose Spark is ready, and that says so once it is master; `script` is its `warm_up` and settings."""
    driver = start(
        (script or "def warm_up():\n    session()\n")
        + """
with hold_lease("n", **SETTINGS | globals().get("MORE", {}), warm_up=warm_up) as lease:
    spark = session()
    say(f"counts {spark.range(7).count()} under {lease.epoch}")
say("done")
"""
    )
    driver.until(READY, timeout=120)
    driver.tree()
    return driver


@pytest.mark.fault
def test_kept_by_threads_its_jvm_ends_with_it(start: Start, master: LocalHold) -> None:
    driver = wait_warm(start, "MORE = {'keeper': 'thread'}\ndef warm_up():\n    session()\n")
    driver.send(signal.SIGKILL)
    driver.end()
    until(lambda: not driver.leftovers())


@pytest.mark.parametrize("victim", ["Python", once_more("its keeper"), once_more("all of it")])
def test_killed_as_it_waits_it_leaves_nothing_behind(start: Start, master: LocalHold, victim: str) -> None:
    driver = wait_warm(start)
    jvm, keeper = jvm_of(driver), driver.find("spark_lease.keeper").pid
    victims = {"Python": [driver.process.pid], "its keeper": [keeper], "all of it": [driver.process.pid, keeper, jvm]}
    for pid in victims[victim]:
        os.kill(pid, signal.SIGKILL)
    driver.end()
    until(lambda: not driver.leftovers())


@pytest.mark.fault
@pytest.mark.parametrize("victim", ["Python", once_more("all of it")])
def test_frozen_as_it_waits_it_is_killed_once_its_lease_has_run_out(
    start: Start, master: LocalHold, url: str, table: str, victim: str
) -> None:
    driver = wait_warm(start)
    if victim == "Python":
        driver.stop()
    else:
        driver.freeze()
    master.release()
    granted = standby(url, table)
    if victim == "Python":  # its keeper took the lease, and ended what could not work
        until(lambda: not driver.leftovers())
    driver.send(signal.SIGCONT)
    for each in driver.leftovers():
        os.kill(each.pid, signal.SIGCONT)
    said = driver.log.read_text()
    assert "counts" not in said or driver.epoch() / 1000 > granted


@pytest.mark.fault
def test_it_goes_on_cold_where_its_jvm_was_killed(start: Start, master: LocalHold) -> None:
    driver = wait_warm(start)
    os.kill(jvm_of(driver), signal.SIGKILL)
    driver.until("the Spark of this standby ended while it waited: it is cold from now on")
    master.release()
    assert "counts 7 under" in driver.until("done", timeout=90)
    assert driver.end() == 0


@pytest.mark.fault
def test_it_goes_on_cold_where_its_jvm_had_not_enough_memory(
    start: Start, master: LocalHold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:+ExitOnOutOfMemoryError")  # it would end all the same, and say less
    driver = start(
        """
    def warm_up():
        session().range(1).selectExpr("size(sequence(id, 2000000000L))").collect()

    with hold_lease("n", **SETTINGS, warm_up=warm_up) as lease:
        say(f"counts {session().range(7).count()}")
    say("done")
    """
    )
    said = driver.until("the Spark of this standby ended while it waited: it is cold from now on", timeout=120)
    assert "Terminating due to java.lang.OutOfMemoryError" in said
    master.release()
    assert "counts 7" in driver.until("done", timeout=90)
    assert driver.end() == 0


@pytest.mark.fault
def test_a_stream_goes_on_where_the_killed_master_left_it(start: Start, tmp_path: Path) -> None:
    script = (
        DELTA
        + """
    def warm_up():
        delta_session()

    with hold_lease("n", **SETTINGS, warm_up=warm_up) as lease:
        flow = delta_session().readStream.format("rate").option("rowsPerSecond", 20).load()
        sink = flow.selectExpr("value", f"{lease.epoch} AS epoch").writeStream.format("delta")
        query = sink.option("checkpointLocation", f"{FOLDER}/checkpoint").option("path", TABLE).start()
        while True:
            query.awaitTermination(0.1)
            if query.lastProgress:
                say(f"batch {query.lastProgress['batchId']}")
    """
    )
    master = start(script)
    master.until("batch 2", timeout=120)
    standby = start(script)
    standby.until(READY, timeout=120)
    assert "batch" not in standby.log.read_text()
    master.send(signal.SIGKILL)
    first = int(standby.until("batch ", timeout=60).partition("batch ")[2].split()[0])
    standby.until(f"batch {first + 3}")
    found = DeltaTable(str(tmp_path / "flights")).to_pyarrow_dataset().to_table().to_pydict()
    assert sorted(found["value"]) == list(range(len(found["value"])))
    assert set(found["epoch"]) == {master.epoch(), standby.epoch()}


@pytest.mark.fault
def test_it_begins_cold_where_its_jvm_hangs(start: Start, master: LocalHold) -> None:
    driver = wait_warm(start, "MORE = {'lease_duration': 30}\ndef warm_up():\n    session()\n")
    jvm = jvm_of(driver)
    os.kill(jvm, signal.SIGSTOP)
    master.release()
    driver.until("the warm JVM does not answer: it is killed, and Spark starts cold")
    assert "counts 7 under" in driver.until("done", timeout=90)
    assert not look(jvm)
    assert driver.end() == 0


def test_granted_while_it_warms_up_it_begins_at_once(start: Start, master: LocalHold) -> None:
    driver = start(
        """
    def warm_up():
        session()
        say("warming")
        threading.Event().wait(600)

    with hold_lease("n", **SETTINGS, warm_up=warm_up) as lease:
        say(f"counts {session().range(7).count()}")
    """
    )
    driver.until("warming", timeout=90)
    master.release()
    driver.until("counts 7")
    assert driver.end() == 0


def test_it_warms_up_again_where_its_tables_have_moved_on(
    start: Start, master: LocalHold, flights: DeltaTable, config: Config
) -> None:
    flights.create_checkpoint()
    note_table(config, flights.table_uri.removesuffix("/"))
    driver = start(
        DELTA
        + """
    from spark_lease.spark import warm_standby
    warm_standby._LOOK_AT_TABLES = 0.2
    with hold_lease("n", **SETTINGS, warm_up=delta_session):
        pass
    """
    )
    driver.until(READY, timeout=120)
    append(flights, 60)
    time.sleep(1)  # for a warm-up that must not come: that was half of what it takes
    assert driver.log.read_text().count(WARMING) == 1
    append(flights, 60)
    until(lambda: driver.log.read_text().count(READY) == 2, timeout=60)


def test_a_free_lease_is_granted_without_a_warm_up(start: Start) -> None:
    driver = start(
        """
    with hold_lease("n", **SETTINGS, warm_up=lambda: say("warmed")) as lease:
        say("master")
    """
    )
    driver.until("master")
    assert driver.end() == 0
    assert "warm" not in driver.log.read_text()


WRONG = {
    "raises": "the warm-up has failed: ValueError: no such broadcast",
    "exits": "the warm-up has failed: SystemExit: I am done",
    "stops": r"the Spark of this standby ended while it waited|has stopped the Spark",
    "streams": "warm_up started the stream mine: it is stopped",
}


@pytest.mark.parametrize("wrong", ["raises", *map(once_more, ("exits", "stops", "streams"))])
def test_what_a_warm_up_does_wrong_is_said_and_the_wait_goes_on(start: Start, master: LocalHold, wrong: str) -> None:
    driver = start(
        f"""
    from spark_lease import LeaseHeldByOther
    from spark_lease.spark.jvm import spark_context

    def raises():
        session()
        raise ValueError("no such broadcast")

    def exits():
        sys.exit("I am done")

    def stops(spark):
        spark.stop()

    def streams(spark):
        spark.readStream.format("rate").load().writeStream.format("memory").queryName("mine").start()

    os.environ["PYSPARK_SUBMIT_ARGS"] = "--master local[1] pyspark-shell"
    try:
        with hold_lease("n", **SETTINGS, acquire_timeout=20, warm_up={wrong}):
            say("never")
    except LeaseHeldByOther:
        say(f"waited, and has {{spark_context()}}")
    """
    )
    assert driver.end(timeout=90) == 0
    said = driver.log.read_text()
    assert re.search(WRONG[wrong], said)
    assert re.findall("never|waited, and has .*", said) == ["waited, and has None"]


def test_a_lease_inside_another_does_not_warm_up_what_is_in_use(start: Start, master: LocalHold) -> None:
    driver = start(
        """
    with hold_lease("outer", **SETTINGS, warm_up=lambda: say("never")):
        spark = session()
        with hold_lease("n", **SETTINGS, warm_up=lambda: say("never")):
            say(f"counts {spark.range(7).count()}")
    """
    )
    driver.until("standby, ")
    master.release()
    assert "never" not in driver.until("counts 7", timeout=90)
    assert driver.end() == 0


def submitted(start: Start, url: str, table: str, script: str, *more: str) -> Driver:
    words = [COMMAND, "submit", "--lease", "n", "--url", url, "--table", table, "--lease-duration", "6", *more]
    driver = start(script, command=[*words, "--standby", "warm", "--", "--master", "local[2]"])
    driver.until(READY, timeout=120)
    driver.tree()
    return driver


SCRIPT = """
    from pyspark.sql import SparkSession
    spark = SparkSession.builder.appName("mine").config("spark.driver.memory", "3g").getOrCreate()
    say(f"counts {spark.range(7).count()}")
"""


@pytest.mark.parametrize("contain", ["required", once_more("off")])
def test_a_submitted_script_finds_the_spark_that_is_ready(
    start: Start, master: LocalHold, url: str, table: str, contain: str
) -> None:
    driver = submitted(start, url, table, SCRIPT, "--contain", contain)
    master.release()
    said = driver.until('"outcome": "finished"', timeout=60)
    assert "counts 7" in said
    assert "the script sets spark.driver.memory, but the warm standby has already started Spark" in said
    assert driver.end() == 0


@pytest.mark.fault
@pytest.mark.parametrize("contain", ["required", once_more("off")])
def test_a_submitted_script_whose_jvm_hangs_is_not_begun(
    start: Start, master: LocalHold, url: str, table: str, contain: str
) -> None:
    driver = submitted(start, url, table, SCRIPT, "--contain", contain)
    os.kill(jvm_of(driver), signal.SIGSTOP)
    master.release()
    assert driver.end(60) in (75, 137, -signal.SIGKILL), driver.log.read_text()
    # What Python says goes through its parent, the JVM; a front door says it itself.
    assert contain == "off" or "does not answer" in driver.log.read_text()
    assert "counts" not in driver.log.read_text()
    until(lambda: not driver.leftovers())
    assert standby(url, table)


@pytest.mark.parametrize("contain", ["required", once_more("off")])
def test_a_submission_that_is_killed_as_it_waits_leaves_nothing_behind(
    start: Start, master: LocalHold, url: str, table: str, contain: str
) -> None:
    driver = submitted(start, url, table, SCRIPT, "--contain", contain)
    jvm = jvm_of(driver)
    (script,) = [each.pid for each in driver.tree() if each.parent == jvm and ".py" in command_line(each.pid)]
    os.kill(script, signal.SIGKILL)
    assert driver.end(60) in (137, -signal.SIGKILL), driver.log.read_text()
    assert contain == "off" or "spark-submit ended, while its script waited for the lease" in driver.log.read_text()
    until(lambda: not driver.leftovers())


def test_a_warm_up_that_goes_on_disturbs_no_block_and_writes_nothing(
    start: Start, master: LocalHold, flights: DeltaTable
) -> None:
    driver = start(
        DELTA
        + WRITES
        + """
    GO, DONE = threading.Event(), threading.Event()

    def append(who):
        try:
            delta_session().range(1).write.format("delta").mode("append").save(TABLE)
            say(f"{who}: written")
        except NotMaster:
            say(f"{who}: refused")

    def warm_up():
        spark = delta_session()
        say("warming")
        GO.wait(100)
        append("warm-up in the block")
        DONE.set()
        try:
            spark.sparkContext.parallelize([0], 1).map(lambda _: time.sleep(60)).collect()
        except Exception as error:
            say(f"its job ended: {type(error).__name__}")
        append("warm-up after the block")
        DONE.set()

    with hold_lease("n", run_key="monday", **SETTINGS, warm_up=warm_up) as lease:
        spark = delta_session()
        say(f"active {type(spark).getActiveSession() is not None}")
        query = spark.readStream.format("rate").load().writeStream.format("memory").queryName("mine").start()
        GO.set()
        DONE.wait(60)
        DONE.clear()
        append("the block")
        say(f"its stream is active: {query.isActive}")
        query.stop()
    DONE.wait(60)
    append("after the block")
    """
    )
    driver.until("warming", timeout=90)
    master.release()
    said = driver.until("after the block: written", timeout=90)
    assert driver.end() == 0
    assert "active True" in said
    assert "its stream is active: True" in said
    assert re.findall(r"^(.+): (written|refused)$", said, re.M) == [
        ("warm-up in the block", "refused"),
        ("the block", "written"),
        ("warm-up after the block", "refused"),
        ("after the block", "written"),
    ]
    assert "the block was left while Spark still worked" not in said


@pytest.mark.fault
def test_a_warm_up_that_goes_on_after_the_wait_writes_nothing(
    start: Start, master: LocalHold, flights: DeltaTable
) -> None:
    driver = start(
        DELTA
        + WRITES
        + """
    from spark_lease import LeaseHeldByOther
    GO, DONE = threading.Event(), threading.Event()

    def warm_up():
        delta_session()
        say("warming")
        GO.wait(100)
        try:
            writes(delta_session())["append"]()
            say("written")
        except Exception as error:
            say(f"refused: {type(error).__name__}")
        DONE.set()

    try:
        with hold_lease("n", **SETTINGS, acquire_timeout=15, warm_up=warm_up):
            say("never")
    except LeaseHeldByOther:
        say("gave up")
    GO.set()
    DONE.wait(60)
    """
    )
    driver.until("gave up", timeout=120)
    assert driver.end(60) == 0
    said = driver.log.read_text()
    assert "refused: NotMaster" in said
    assert not re.search(r"^written$", said, re.M)
