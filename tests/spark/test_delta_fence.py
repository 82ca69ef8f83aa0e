"""The Delta fence in real drivers: what a former master still sends is refused by the table itself."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake

from jobs.jars import start_options
from spark_lease.clock import BootClock
from spark_lease.fencing.delta.fence import Claim, claim, property_of
from spark_lease.system.processes import kill
from tests.support.drivers import DELTA, Driver, until
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]
Start = Callable[..., Driver]
OLDER = Path(__file__).parents[2] / ".versions/spark-3_5"

EVERY_OPERATION = """
    import json
    from delta.tables import DeltaTable
    from spark_lease import Fenced
    from spark_lease.errors import Loss
    from spark_lease.clock import BootClock
    from spark_lease.config.sources import configure
    from spark_lease.fencing.delta.tables import DeltaFence
    from spark_lease.fencing.delta.fence import Claim, claim
    from spark_lease.spark.delta_observer import DeltaObserver

    class Lease:
        def __init__(self, name, epoch):
            self.name, self.epoch, self.holder = name, epoch, "me"
        def check(self):
            return self.epoch
        wait_certain = check
        def lose(self, *reason):
            pass

    class Fence(DeltaFence):
        def _record(self, table):
            say(f"recorded {table}")

    spark = delta_session(**{
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM's tasks: else 10 000
    })
    hook = DeltaObserver()
    assert hook.install(spark.sparkContext) == "" == hook.install(spark.sparkContext)
    hook.fences = tuple(Fence(Lease(name, 5), configure(name=name), BootClock()) for name in ("mine", "another"))
    rows = spark.range(3).selectExpr("id", "id AS day")
    rows.write.format("delta").partitionBy("day").save(TABLE)
    spark.sql(f"CREATE TABLE flights USING delta LOCATION '{TABLE}'")
    table = DeltaTable.forPath(spark, TABLE)
    rows.createOrReplaceTempView("rows")
    Path(f"{FOLDER}/arriving").mkdir()
    rows.write.parquet(f"{FOLDER}/arriving/1")

    def stream(**how):
        lines = spark.readStream.schema(rows.schema).parquet(f"{FOLDER}/arriving/*")
        return lines.writeStream.option("checkpointLocation", f"{FOLDER}/{len(how)}-{time.monotonic_ns()}")

    def native():
        stream().format("delta").trigger(availableNow=True).start(TABLE).awaitTermination()

    def each_batch():
        def write(batch, number):
            batch.write.format("delta").mode("append").save(TABLE)
        stream().foreachBatch(write).trigger(availableNow=True).start().awaitTermination()

    def in_a_thread():
        errors = []
        def work():
            try:
                append()
            except Exception as error:
                errors.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def append():
        rows.write.format("delta").mode("append").save(TABLE)

    operations = {
        "append": append,
        "overwrite": lambda: rows.write.format("delta").mode("overwrite").save(TABLE),
        "insert": lambda: spark.sql("INSERT INTO flights SELECT * FROM rows"),
        "insert overwrite": lambda: spark.sql("INSERT OVERWRITE flights SELECT * FROM rows"),
        "writeTo": lambda: rows.writeTo("flights").append(),
        "saveAsTable": lambda: rows.write.format("delta").mode("append").saveAsTable("flights"),
        "update": lambda: spark.sql("UPDATE flights SET id = id + 1"),
        "delete": lambda: spark.sql("DELETE FROM flights WHERE id = 1"),
        "merge": lambda: table.alias("t").merge(rows.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute(),
        "DeltaTable.delete": lambda: table.delete("id = 0"),
        "optimize": lambda: table.optimize().executeCompaction(),
        "vacuum": lambda: table.vacuum(),
        "restore": lambda: table.restoreToVersion(0),
        "alter": lambda: spark.sql("ALTER TABLE flights SET TBLPROPERTIES ('a' = 'b')"),
        "native stream": native,
        "foreachBatch": each_batch,
        "thread": in_a_thread,
    }

    def outcome(operation):
        begun = time.monotonic()
        try:
            operation()
            return "done"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            say(f"took {time.monotonic() - begun:.1f} s")

    append()
    before = {name: outcome(operation) for name, operation in operations.items()}
    claim(Claim("mine", 6, "me"), TABLE, clock=BootClock(), timeout=10)
    version = table.history(1).first().version
    after = {name: outcome(operation) for name, operation in operations.items()}
    same = table.history(1).first().version == version
    read = spark.read.format("delta").load(TABLE).count() == spark.sql("SELECT * FROM flights").count()
    unseen = {}  # what goes past the hook, see the README
    for setting, value, name in (("v2.enableMode", "STRICT", "insert"), ("vacuum.logging.enabled", "false", "vacuum")):
        spark.conf.set(f"spark.databricks.delta.{setting}", value)
        unseen[name] = outcome(operations[name])
        spark.conf.unset(f"spark.databricks.delta.{setting}")
    streamed = spark.readStream.format("delta").load(TABLE).writeStream.trigger(availableNow=True).option(
        "checkpointLocation", f"{FOLDER}/readers").foreachBatch(lambda batch, _: say(f"read {batch.count()} rows"))
    streamed.start().awaitTermination()

    class Overtaken(Fence):
        # Whatever begins under it is overtaken by a commit of another between its snapshot and its own commit.
        def _record(self, table):
            pass
        def commit(self, table):
            if CLAIMED:
                claim(Claim("mine", self._lease.epoch + 1, "another"), TABLE, clock=BootClock(), timeout=10)
            else:
                told = {f"other.{self._lease.epoch}": "x"}
                deltalake.DeltaTable(TABLE).alter.set_table_properties(told, raise_if_not_exists=False)

    import deltalake
    def under_way(name, epoch):
        hook.fences = (Overtaken(Lease("mine", epoch), configure(name="mine"), BootClock()),)
        version = deltalake.DeltaTable(TABLE).version()
        said = outcome(operations[name])
        return said, [each["operation"] for each in deltalake.DeltaTable(TABLE).history() if each["version"] > version]

    CLAIMED, hook.fences = True, ()
    append()
    each_kind = ["append", "update", "restore", "native stream", "foreachBatch", "thread"]
    overtaken = {name: under_way(name, 2 * n + 10) for n, name in enumerate(each_kind)}
    CLAIMED = False
    conflicts = {name: under_way(name, 1000 + n)[0] for n, name in enumerate(["append", "foreachBatch"])}

    class Expired(Lease):
        # Certain as the transaction begins, lost by its commit.
        def check(self):
            raise LeaseLost(self.name, self.epoch, Loss.EXPIRED)
        def wait_certain(self):
            return self.epoch

    class Known(Fence):
        def _record(self, table):
            pass

    hook.fences = (Known(Expired("mine", 10_000), configure(name="mine"), BootClock()),)
    version = deltalake.DeltaTable(TABLE).version()
    lost = {name: outcome(operations[name]) for name in ("append", "update", "native stream", "foreachBatch")}
    lost_wrote = deltalake.DeltaTable(TABLE).version() - version
    hook.fences = ()
    freed = outcome(append)
    told = {"before": before, "after": after, "same": same, "read": read, "freed": freed}
    told |= {"unseen": unseen, "overtaken": overtaken, "conflicts": conflicts, "lost": lost, "lost_wrote": lost_wrote}
    (FOLDER / "told.json").write_text(json.dumps(told))
"""


@pytest.mark.parametrize("spark", ["newest", once_more("3.5")])
def test_every_delta_operation_of_an_older_epoch_is_fenced_also_under_way_and_readers_go_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str
) -> None:
    command = [sys.executable]
    if spark == "3.5":
        if not (OLDER / ".installed").exists() and "CI" not in os.environ:
            pytest.skip("Spark 3.5 with Delta 3.3 is not set up here: make older")
        command = [str(OLDER / "bin" / "python")]
        monkeypatch.setenv("TEST_JARS", str(OLDER / "jars"))
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {start_options(OLDER / 'jars')}")
    driver = start(_with_delta(EVERY_OPERATION), command=command)
    assert driver.end(340) == 0, driver.log.read_text()
    told = json.loads((tmp_path / "told.json").read_text())
    assert set(told["before"].values()) == {"done"}
    for operation, outcome in told["after"].items():
        assert outcome.startswith("Fenced: mine: fenced, file:"), f"{operation}: {outcome}"
        assert outcome.endswith("was claimed under epoch 6 and mine is 5: nothing was written")
    assert told["same"] and told["read"] and told["freed"] == "done"
    assert told["unseen"]["vacuum"] == "done"
    assert (told["unseen"]["insert"] == "done") is (spark == "newest")  # Delta 3.3 has one write path
    for operation, (outcome, later) in told["overtaken"].items():
        assert re.match(r"Fenced: mine: fenced, .* epoch \d+ and mine is \d+: nothing", outcome), operation + outcome
        assert later == ["SET TBLPROPERTIES"], operation
    for operation, outcome in told["conflicts"].items():
        assert "MetadataChanged" in outcome and "Fenced" not in outcome, f"{operation}: {outcome}"
    for operation, outcome in told["lost"].items():
        assert outcome.startswith("LeaseLost: mine: lease lost"), f"{operation}: {outcome}"
    assert told["lost_wrote"] == 0
    said = driver.log.read_text()
    assert said.count(f"recorded file:{tmp_path}/flights") == 2  # once for each of the two leases
    assert re.search(r"read [1-9]\d* rows", said)


MASTER = """
    spark = delta_session()
    spark.range(1).selectExpr("0L AS epoch", "id").write.format("delta").save(TABLE)
    with hold_lease("n", **SETTINGS, keeper="thread") as lease:
        spark.range(1).selectExpr(f"{lease.epoch}L AS epoch", "id").write.format("delta").mode("append").save(TABLE)
        say("wrote once")
        while not Path(f"{FOLDER}/go").exists():
            time.sleep(0.01)
        def watch():
            while not spark.sparkContext.statusTracker().getActiveJobsIds():
                time.sleep(0.01)
            say("its job runs")
        threading.Thread(target=watch, daemon=True).start()
        # Seconds of work in the JVM alone, which needs no Python to go on.
        rows = spark.range(0, 20_000_000, 1, 2).selectExpr("max(sha2(CAST(id AS STRING), 512)) AS last")
        rows = rows.selectExpr(f"{lease.epoch}L AS epoch", "length(last) * 0L AS id")
        rows.write.format("delta").mode("append").save(TABLE)
        say("wrote after all")
"""
NEXT = """
    with hold_lease("n", **SETTINGS) as lease:
        say(f"took over, epoch {lease.epoch}")
        spark = delta_session()
        spark.range(1).selectExpr(f"{lease.epoch}L AS epoch", "id").write.format("delta").mode("append").save(TABLE)
        say("wrote as the next")
"""


@pytest.mark.parametrize("fenced", [pytest.param(True, marks=pytest.mark.shows("P4")), once_more(False)])
def test_a_master_whose_python_is_frozen_commits_nothing_after_the_next_has_claimed(
    start: Start, tmp_path: Path, fenced: bool
) -> None:
    """Its JVM needs no Python for its work, and no lease for its commit: without the fence the row lands."""
    script = MASTER if fenced else MASTER.replace('keeper="thread"', 'keeper="thread", fence_delta="off"')
    master = start(_with_delta(script))
    master.until("wrote once")
    standby = start(_with_delta(NEXT))
    standby.until("standby")
    (tmp_path / "go").touch()
    master.until("its job runs")
    master.stop()
    table = tmp_path / "flights"
    try:
        standby.until("wrote as the next", timeout=90)
        assert standby.end() == 0
        if not fenced:
            until(lambda: _rows(table, master.epoch()) == 2, 90)
    finally:
        master.send(signal.SIGCONT)
    code = master.end()
    if fenced:
        assert code in ENDED, master.log.read_text()
        assert _rows(table, master.epoch()) == 1
        assert DeltaTable(table).metadata().configuration[property_of("n")] == str(standby.epoch())
    assert _rows(table, standby.epoch()) == 1


def test_a_write_under_way_at_the_claim_is_told_as_fenced_and_ends_its_driver(start: Start, tmp_path: Path) -> None:
    """By whoever claims: here its own lease is current still, so that the table alone can tell it."""
    master = start(_with_delta(MASTER.replace(', keeper="thread"', "").replace("20_000_000", "5_000_000")))
    master.until("wrote once")
    (tmp_path / "go").touch()
    master.until("its job runs")
    claim(Claim("n", master.epoch() + 1, "another"), str(tmp_path / "flights"), clock=BootClock(), timeout=10)
    assert master.end(60) == 75, master.log.read_text()
    said = master.log.read_text()
    assert re.search(rf"lease lost \(fenced\), .* claimed under epoch {master.epoch() + 1} and mine is", said), said
    assert "wrote after all" not in said
    assert _rows(tmp_path / "flights", master.epoch()) == 1


RUN_AFTER_RUN = """
    spark = delta_session()
    spark.conf.set("spark.databricks.delta.properties.defaults.checkpointInterval", "4")
    for run in range(4):
        with hold_lease("n", **SETTINGS, keeper="thread"):
            for _ in range(1 if run else 2):  # from then on each claim has an even version
                spark.range(1).write.format("delta").mode("append").save(TABLE)
"""


def test_spark_writes_checkpoints_of_a_table_that_each_run_claims(start: Start, tmp_path: Path) -> None:
    driver = start(_with_delta(RUN_AFTER_RUN))
    assert driver.end(120) == 0, driver.log.read_text()
    names = sorted(each.name for each in (tmp_path / "flights/_delta_log").iterdir())
    assert [each for each in names if ".checkpoint." in each and each[0] != "."] == [f"{8:020}.checkpoint.parquet"], (
        names
    )
    assert DeltaTable(tmp_path / "flights").to_pyarrow_table().num_rows == 5


AFTER_THE_BLOCK = """
    import contextlib
    from spark_lease import Fenced
    spark = delta_session()
    def append(what):
        spark.range(1).write.format("delta").mode("append").save(TABLE)
        say(f"wrote {what}")
    spark.range(1).write.format("delta").save(f"{FOLDER}/theirs")
    for number in (1, 2):
        with hold_lease("n", **SETTINGS) as lease:
            spark.sql(f"CREATE TABLE IF NOT EXISTS theirs USING delta LOCATION '{FOLDER}/theirs'")
            append(f"in block {number}")
        append(f"after block {number}")
    say("waits")
    while not Path(f"{FOLDER}/go").exists():
        time.sleep(0.01)
    for block in (contextlib.nullcontext(), hold_lease("of other tables", **SETTINGS)):
        with block:
            try:
                append("beside the next master")
            except Fenced as error:
                say(f"refused: {error}")
    with hold_lease("n", **SETTINGS, acquire_timeout=60):
        append("in block 3")
"""


def test_what_a_driver_writes_after_its_block_is_refused_once_the_next_master_has_claimed(
    start: Start, tmp_path: Path
) -> None:
    driver = start(_with_delta(AFTER_THE_BLOCK))
    driver.until("waits", 60)
    standby = start(TAKES_OVER)
    assert standby.end() == 0, standby.log.read_text()
    (tmp_path / "go").touch()
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    written = ["in block 1", "after block 1", "in block 2", "after block 2", "in block 3"]
    assert re.findall("wrote (.*)", said) == written, said
    refused = rf"refused: n: fenced, .* epoch {standby.epoch()} and mine is .* write inside its block"
    assert len(re.findall(refused, said)) == 2, "also where another lease is held"
    assert DeltaTable(tmp_path / "theirs").version() == 0, "what is registered and read is claimed from no other team"
    assert len(re.findall("WARNING.* is written to after the end of the block", said)) == 2, "once for each block"


LATE_COMMIT = """
    from spark_lease.spark import delta_observer
    spark = delta_session()
    spark.range(1).write.format("delta").save(TABLE)
    asked, goes_on, outcome = threading.Event(), threading.Event(), []
    prepare = delta_observer._Observer.preparingCommit
    def late(observer, work):
        asked.set()
        goes_on.wait(60)
        return prepare(observer, work)
    def work():
        try:
            spark.range(1).write.format("delta").mode("append").save(TABLE)
            outcome.append("landed")
        except LeaseLost as lost:
            outcome.append(str(lost))
    with hold_lease("n", **SETTINGS):
        delta_observer._Observer.preparingCommit = late
        working = threading.Thread(target=work)
        working.start()
        assert asked.wait(60)
    with hold_lease("other", **SETTINGS):
        goes_on.set()
        working.join(60)
    say(outcome)
"""


def test_what_began_in_a_block_is_not_committed_after_it(start: Start, tmp_path: Path) -> None:
    """No next master knows of the table: nothing was noted by then."""
    driver = start(_with_delta(LATE_COMMIT))
    assert driver.end(90) == 0, driver.log.read_text()
    assert "n: lease lost (released)" in driver.log.read_text()
    assert DeltaTable(tmp_path / "flights").version() == 0


FIRST = """
    spark = delta_session()
    with hold_lease("n", **SETTINGS) as lease:
        say("holds it")
        spark.range(1).selectExpr(f"{lease.epoch}L AS epoch", "id").write.format("delta").save(TABLE)
        time.sleep(60)
"""
TAKES_OVER = """
    with hold_lease("n", **SETTINGS) as lease:
        say("took over")
"""


def test_a_table_that_was_first_written_a_moment_before_the_crash_is_claimed(start: Start, tmp_path: Path) -> None:
    master = start(_with_delta(FIRST))
    master.until("holds it")
    until(lambda: _commits(tmp_path / "flights"), 60)
    kill(master.freeze())
    standby = start(TAKES_OVER)
    standby.until("took over", 60)
    assert standby.end() == 0
    assert DeltaTable(tmp_path / "flights").metadata().configuration[property_of("n")] == str(standby.epoch())


TWO_LEASES = """
    SETTINGS |= {"lease_duration": 60, "keeper": "thread"}
    def append(what):
        spark = delta_session()
        spark.range(1).write.format("delta").mode("append").save(TABLE)
        say(f"wrote {what}")
        return spark
    with hold_lease("one", **SETTINGS), hold_lease("two", **SETTINGS):
        append("once").stop()
        append("in a second session")
        while not Path(f"{FOLDER}/go").exists():
            time.sleep(0.01)
        append("after all")
"""


@pytest.mark.parametrize("claimed", ["one", once_more("two")])
def test_a_write_under_two_leases_asks_both_in_a_second_session_too(start: Start, tmp_path: Path, claimed: str) -> None:
    driver = start(_with_delta(TWO_LEASES))
    said = driver.until("in a second session")
    epoch = int(re.findall(rf"{claimed}: acquired, epoch (\d+)", said)[0])
    table = DeltaTable(tmp_path / "flights")
    claim(Claim(claimed, epoch + 1, "another"), str(tmp_path / "flights"), clock=BootClock(), timeout=10)
    (tmp_path / "go").touch()
    assert driver.end(60) in (1, 75), driver.log.read_text()  # of the LeaseLost, or ended before it got that far
    said = driver.log.read_text()
    assert f"{claimed}: lease lost (fenced)" in said and "wrote after all" not in said, said
    table.update_incremental()
    assert table.to_pyarrow_table().num_rows == 2


READS = """
    spark = delta_session()
    def show(batch, _):
        for row in batch.collect():
            say(f"read {row.id}.")
    lines = spark.readStream.format("delta").load(TABLE).writeStream.foreachBatch(show)
    stream = lines.option("checkpointLocation", f"{FOLDER}/reads").trigger(processingTime="100 milliseconds").start()
    while not Path(f"{FOLDER}/go").exists():
        time.sleep(0.01)
    say(f"it goes on: {stream.isActive}")
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(TABLE)
    say(sorted((row.id, row._change_type) for row in changes.collect()))
    stream.stop()
"""


def test_a_stream_and_the_change_feed_read_on_across_claims(start: Start, tmp_path: Path) -> None:
    table = str(tmp_path / "flights")

    def append(number: int) -> None:
        numbers = Array([number], DataType.int64())
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(table, Table.from_arrays([numbers], names=["id"]), mode="append", configuration=feed)

    append(0)
    driver = start(_with_delta(READS))
    for number in range(1, 4):
        driver.until(f"read {number - 1}.")
        assert claim(Claim("n", number, "me"), table, clock=BootClock(), timeout=10)
        append(number)
    driver.until("read 3.")
    (tmp_path / "go").touch()
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "it goes on: True" in said
    assert str([(number, "insert") for number in range(4)]) in said


LEVELS = """
    import subprocess
    from spark_lease.errors import ConfigError

    STRICT = {"spark.databricks.delta.v2.enableMode": "STRICT"}
    with hold_lease("n", **SETTINGS | {"lease_duration": 60}, keeper="thread") as lease:
        say(f"no session: {lease.fences}")
        os.environ["DATABRICKS_RUNTIME_VERSION"] = "17.3"
        delta_session().stop()
        say(f"Databricks: {lease.fences}")
        del os.environ["DATABRICKS_RUNTIME_VERSION"]
        delta_session(**STRICT).stop()
        say(f"v2: {lease.fences}")
        spark = delta_session()
        say(f"at last: {lease.fences}")
        status = [f"{Path(sys.executable).parent}/spark-lease", "status", "n", "--json", "--url", SETTINGS["url"]]
        while "hook" not in (shown := subprocess.check_output([*status, "--table", SETTINGS["table"]], text=True)):
            time.sleep(0.1)
        say(shown)
        spark.stop()
    with hold_lease("n", **SETTINGS | {"lease_duration": 60}, keeper="thread", fence_delta="required"):
        try:
            delta_session(**STRICT)
        except ConfigError as error:
            say(f"v2 {error}")
        os.environ["DATABRICKS_RUNTIME_VERSION"] = "17.3"
        try:
            delta_session()
        except ConfigError as error:
            say(f"Databricks {error}")
"""


def test_where_the_hook_is_missing_that_is_shown_said_and_refused_if_it_is_required(start: Start) -> None:
    driver = start(_with_delta(LEVELS))
    assert driver.end(120) == 0, driver.log.read_text()
    said = driver.log.read_text()
    for words in ("no session: delta claims", "Databricks: delta claims", "v2: delta claims", "at last: delta hook"):
        assert f"{words}, sql none" in said
    assert re.search(r'"fences": {\s*"delta": "hook",\s*"sql": "none"', said)
    alone = "fenced by claims alone: a write that a former master begins after a claim is not refused; missing:"
    assert f"{alone} an open-source Delta Lake" in said and f"{alone} Delta's v1 write path" in said
    required = "fence_delta: is required, but needs"
    assert f"v2 {required} Delta's v1 write path" in said
    assert f"Databricks {required} an open-source Delta Lake" in said


def test_a_required_fence_lets_no_spark_begin_that_has_no_delta(start: Start) -> None:
    driver = start(
        """
        with hold_lease("n", **SETTINGS, fence_delta="required"):
            session()
            say("made one")
        """
    )
    assert driver.end() == 1
    said = driver.log.read_text()
    assert "fence_delta: is required, but needs" in said
    assert "made one" not in said


BUSY = """
    spark = delta_session()
    spark.range(1).selectExpr("0L AS epoch", "id").write.format("delta").save(TABLE)
    with hold_lease("n", **SETTINGS, keeper="thread") as lease:
        for number in range(10_000):
            rows = spark.range(1).selectExpr(f"{lease.epoch}L AS epoch", f"{number}L AS id")
            rows.write.format("delta").mode("append").save(TABLE)
            say(f"wrote {number}.")
"""
ENDED = (75, -signal.SIGALRM)
"""How a master ends that thaws late: with the code of a loss, or by its own timer, half a kill_budget later."""
WITHOUT_SPARK = """
    from arro3.core import Array, DataType, Table
    from deltalake import write_deltalake
    with hold_lease("n", **SETTINGS) as lease:
        columns = [Array([each], DataType.int64()) for each in (lease.epoch, 0)]
        write_deltalake(TABLE, Table.from_arrays(columns, names=["epoch", "id"]), mode="append")
        say("wrote as the next")
"""


@pytest.mark.postgres
def test_a_driver_that_is_frozen_amid_its_writes_adds_nothing_after_the_claim(
    start: Start, tmp_path: Path, pg_url: str
) -> None:
    """Python, JVM and all, at a moment of chance, without the keeper and the kernel that would end it before."""
    master = start(_with_delta(BUSY), store=pg_url)
    master.until("wrote 3.", timeout=150)
    time.sleep(random.uniform(0.0, 1.0))
    frozen = master.freeze()
    try:
        standby = start(_with_delta(WITHOUT_SPARK), store=pg_url)
        standby.until("wrote as the next", timeout=60)
        assert standby.end() == 0
        table = DeltaTable(tmp_path / "flights")
        assert table.metadata().configuration[property_of("n")] == str(standby.epoch())
    finally:
        for each in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGCONT)
    assert master.end() in ENDED, master.log.read_text()
    history = [json.loads(each.read_text().splitlines()[0]) for each in _commits(tmp_path / "flights")]
    assert "SET TBLPROPERTIES" in history[-2]["commitInfo"]["operation"], "a commit came after the claim"
    assert _rows(tmp_path / "flights", standby.epoch()) == 1


def _commits(table: Path) -> list[Path]:
    return sorted(table.glob("_delta_log/*.json"))


def _rows(table: Path, epoch: int) -> int:
    return DeltaTable(table).to_pyarrow_table().column("epoch").to_pylist().count(epoch)


def _with_delta(script: str) -> str:
    return textwrap.dedent(DELTA) + textwrap.dedent(script)
