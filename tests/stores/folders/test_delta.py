"""The Delta store against real tables: the contract, what another engine sees, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType, Field, Schema, Table
from deltalake import DeltaTable, write_deltalake

from jobs.jars import spark_options
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.record import LeaseRecord, released, renewed, taken
from spark_lease.errors import ConfigError, RecordUnreadable, StoreError
from spark_lease.stores.folders import delta
from spark_lease.stores.folders.delta import DeltaStore
from spark_lease.system.call_timeout import CallTimeout
from spark_lease.testing import LeaseStoreContract
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import Driver, until

OpenStore = Callable[..., DeltaStore]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configure(name="n", url=f"delta://{tmp_path}/leases")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "leases" / "n"


@pytest.fixture
def open_store(config: Config) -> Iterator[OpenStore]:
    opened: list[DeltaStore] = []

    def open_one(**changes: Any) -> DeltaStore:
        opened.append(DeltaStore(replace(config, **changes)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


class TestContract(LeaseStoreContract):
    """The fixture `open_store` is this module's."""


def rows(folder: Path) -> list[tuple[Any, ...]]:
    actions = DeltaTable(folder).get_add_actions(flatten=True)
    names = ("holder", "epoch", "duration_ms", "protection")
    return list(zip(*(actions.column(f"partition.{name}").to_pylist() for name in names), strict=True))


def write(folder: Path, **columns: list[Any]) -> None:
    kinds = [DataType.string() if isinstance(values[0], str) else DataType.int64() for values in columns.values()]
    schema = Schema([Field(name, kind) for name, kind in zip(columns, kinds, strict=True)])
    arrays = [Array(values, kind) for values, kind in zip(columns.values(), kinds, strict=True)]
    write_deltalake(folder, Table.from_arrays(arrays, schema=schema), mode="append")


def test_one_row_is_renewed_without_a_new_data_file(open_store: OpenStore, folder: Path) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="a/b: ü%", duration=30.0, protection="kernel"))
    for _ in range(20):
        assert record
        record = store.swap("n", record, renewed(record, duration=30.0))
    assert record
    assert rows(folder) == [("a/b: ü%", record.epoch, 30000, "kernel")]
    assert len(list(folder.rglob("*.parquet"))) == 1


def test_who_makes_the_table_and_is_frozen_does_not_write_over_the_grant_that_came_in_between(
    open_store: OpenStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast, granted = open_store(), open_store(), list[LeaseRecord | None]()

    def make(*words: Any, **how: Any) -> None:
        monkeypatch.undo()
        write_deltalake(*words, **how)
        granted.append(fast.swap("n", fast.read("n").record, taken(None, holder="fast", duration=30.0)))

    monkeypatch.setattr(delta, "write_deltalake", make)
    assert slow.swap("n", None, taken(None, holder="slow", duration=30.0)) is None
    assert granted == [fast.read("n").record] and granted[0] and granted[0].holder == "fast"


def test_an_epoch_grows_over_a_table_that_was_deleted(open_store: OpenStore, folder: Path) -> None:
    first = open_store().swap("n", None, taken(None, holder="a", duration=30.0))
    shutil.rmtree(folder)
    second = open_store().swap("n", None, taken(None, holder="b", duration=30.0))
    assert first and second and second.epoch > first.epoch


def test_a_table_that_vanishes_under_its_holder_is_a_loss(open_store: OpenStore, folder: Path) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="a", duration=30.0))
    assert record
    shutil.rmtree(folder)
    with pytest.raises(RecordUnreadable, match="is gone"):
        store.swap("n", record, renewed(record, duration=30.0))
    assert not folder.exists()


@pytest.mark.slow
def test_the_log_stays_short_while_others_read_it(open_store: OpenStore, folder: Path) -> None:
    holder, other = open_store(), open_store()
    record = holder.swap("n", None, taken(None, holder="a", duration=30.0))
    assert record
    DeltaTable(folder).alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    record = holder.read("n").record
    for _ in range(400):
        assert record
        record = holder.swap("n", record, renewed(record, duration=30.0))
        assert other.read("n").record == record
    until(lambda: not holder._tidying.is_busy, 60)
    assert len(list(folder.rglob("*"))) < 150
    assert DeltaStore(holder._config).read("n").record == record


def test_a_write_below_a_log_that_was_cleaned_up_is_not_taken_for_a_success(
    open_store: OpenStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zombie stood still between its look at the log and its put, and delta-rs calls it a success."""
    zombie, master = open_store(), open_store()
    old = zombie.swap("n", None, taken(None, holder="zombie", duration=30.0))
    assert old

    def late(name: str, table: DeltaTable, epoch: int, new: Any) -> bool:
        record = master.swap("n", old, taken(old, holder="master", duration=30.0))
        for _ in range(20):
            assert record
            record = master.swap("n", record, renewed(record, duration=30.0))
        fresh = DeltaTable(folder)
        fresh.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
        fresh = DeltaTable(folder)
        fresh.create_checkpoint()
        for log in (folder / "_delta_log").glob("*.json"):
            os.utime(log, (1, 1))
        fresh.cleanup_metadata()
        put = folder / "_delta_log" / f"{table.version() + 1:020}.json"
        assert not put.exists()  # so that the put of the zombie finds nothing in its way
        put.write_text(zombies)
        return True

    assert zombie._swap("n", old, renewed(old, duration=30.0))  # for what it writes
    written = folder / "_delta_log" / f"{old.stamp + 1:020}.json"  # type: ignore[operator]
    zombies = written.read_text()
    written.unlink()
    zombie._tables.clear()
    monkeypatch.setattr(zombie, "_commit", late)
    assert zombie.swap("n", old, renewed(old, duration=30.0)) is None
    found = master.read("n").record
    assert found and found.holder == "master"


def test_a_holder_does_not_go_on_in_a_table_that_was_replaced(open_store: OpenStore, folder: Path) -> None:
    """Its own look for newer versions than the last one finds none: the new table has fewer."""
    old, new = open_store(), open_store()
    record = old.swap("n", None, taken(None, holder="a", duration=30.0))
    for _ in range(5):
        assert record
        record = old.swap("n", record, renewed(record, duration=30.0))
    assert record
    shutil.rmtree(folder)
    other = new.swap("n", None, taken(None, holder="b", duration=30.0))
    assert old.swap("n", record, renewed(record, duration=30.0)) is None
    assert old.read("n").record == other == open_store().read("n").record


def test_tables_that_are_no_lease_are_left_as_they_are(open_store: OpenStore, folder: Path) -> None:
    write(folder, id=[1, 2])
    with pytest.raises(RecordUnreadable, match="another program's table"):
        open_store().read("n")
    with pytest.raises(RecordUnreadable, match="another program's table"):
        open_store().swap("n", None, taken(None, holder="a", duration=30.0))
    assert DeltaTable(folder).version() == 0


def test_two_rows_are_refused(open_store: OpenStore, folder: Path) -> None:
    store = open_store()
    store.swap("n", None, taken(None, holder="a", duration=30.0))
    second = folder.with_name("m")
    shutil.copytree(folder, second)
    table = DeltaTable(second)
    action = table.get_add_actions(flatten=True)
    shutil.copy(second / action.column("path")[0].as_py().replace("%25", "%"), second / "copy.parquet")
    from deltalake.transaction import AddAction

    values = {"holder": "b", "epoch": "7", "duration_ms": "30000", "expires": None, "protection": None}
    table.create_write_transaction(
        [AddAction("copy.parquet", 1, values, 1, True, '{"numRecords":1}')],
        "append",
        table.schema(),
        partition_by=list(values),
    )
    with pytest.raises(RecordUnreadable, match="has 2 rows"):
        store.read("m")


@pytest.mark.parametrize("url", ["delta://host/path", "delta:///", "delta:///x?a=b"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no folder of this machine"):
        DeltaStore(configure(name="n", url=url))


@pytest.mark.parametrize("root", ["a%2520b", "a[1]"])
def test_folders_below_which_delta_rs_reads_elsewhere_are_refused(root: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="delta-rs cannot read below"):
        DeltaStore(configure(name="n", url=f"delta://{tmp_path}/{root}"))


@pytest.mark.parametrize("name", ["a/b: ü%", ".hidden", "~x!y", "_delta_log", "a%2Fb", "..", "dag@etl", "a+b, c"])
def test_any_name_has_a_table_of_its_own(open_store: OpenStore, name: str) -> None:
    record = open_store().swap(name, None, taken(None, holder="a", duration=30.0))
    assert record is not None
    assert open_store().read(name).record == record
    assert open_store().names() == [name]


def test_places_that_cannot_be_written_are_said(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file")
    with pytest.raises(ConfigError, match="is no folder"):
        open_store().swap("n", None, taken(None, holder="a", duration=30.0))
    with pytest.raises(ConfigError, match="spark-lease init makes it"):
        open_store(url=f"delta://{tmp_path}/other", create_table="false").swap(
            "n", None, taken(None, holder="a", duration=30.0)
        )
    with pytest.raises(ConfigError, match="too long"):
        open_store(url=f"delta://{tmp_path}/other").read("ü" * 100)


def test_a_call_that_hangs_is_not_waited_for_and_none_begins_beside_it() -> None:
    bounded, go, done = CallTimeout("here", timeout=0.2), threading.Event(), []
    with pytest.raises(StoreError, match=r"here: no answer within 0.2 s"):
        bounded.call(lambda: done.append(go.wait(10)))
    with pytest.raises(StoreError, match="no answer"):
        bounded.call(lambda: done.append("beside it"))
    go.set()
    assert bounded.call(lambda: list(done)) == [True]
    with pytest.raises(ValueError, match="none"):
        bounded.call(lambda: int("none"))
    bounded.close()


class Panic(BaseException):
    """What Rust's panics are in Python: pyo3_runtime.PanicException is no Exception."""


def test_a_panic_is_a_store_that_fails_and_ends_no_thread() -> None:
    def panics() -> None:
        raise Panic("index out of bounds")

    bounded = CallTimeout("here", timeout=5)
    with pytest.raises(StoreError, match="here: Panic: index out of bounds"):
        bounded.call(panics)
    assert bounded.call(lambda: 1) == 1
    bounded.close()


def test_a_folder_that_hangs_is_an_error_in_time(open_store: OpenStore, folder: Path) -> None:
    store = open_store(attempt_timeout=0.5)
    record = store.swap("n", None, taken(None, holder="a", duration=30.0))
    assert record
    # A pipe in place of the last commit: whoever opens it waits for ever, as on a file server that is gone.
    commit = folder / "_delta_log" / f"{record.stamp:020}.json"
    words = commit.read_text()
    commit.unlink()
    os.mkfifo(commit)
    with pytest.raises(StoreError, match=r"no answer within 0.5 s"):
        store.read("n")
    commit.write_text(words)  # it goes on


def test_commands_and_a_guard_use_it(config: Config, start: Callable[..., Driver], tmp_path: Path) -> None:
    words = ["--lease", "n", "--url", config.url, "--lease-duration", "4"]
    driver = start(
        """
        del SETTINGS["create_table"]
        with hold_lease("n", **SETTINGS) as lease:
            say(f"held {lease.protection}")
            while True:
                lease.check()
                time.sleep(0.01)
        """,
        config.url,
    )
    driver.until("held kernel")
    first = driver.epoch()
    status = spark_lease("status", "--url", config.url, "--json")
    assert '"state": "held"' in status.stdout
    assert '"protection": "kernel"' in status.stdout
    waiting = subprocess.Popen(
        [COMMAND, "run", *words, "--", "true"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert waiting.stderr and "is master" in waiting.stderr.readline()
    os.kill(driver.process.pid, 9)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == 0, err
    assert f'"epoch": {first}' not in out
    assert last_line(spark_lease("run", *words, "--", "true"))["outcome"] == "finished"


def test_a_clean_release_is_seen_at_once(open_store: OpenStore) -> None:
    mine, other = open_store(), open_store()
    record = mine.swap("n", None, taken(None, holder="a", duration=30.0))
    assert record and other.read("n").record == record
    mine.swap("n", record, released(record))
    found = other.read("n").record
    assert found and found.holder is None and found.epoch == record.epoch


def test_python_may_end_amid_a_call_into_rust(open_store: OpenStore, folder: Path) -> None:
    open_store().swap("n", None, taken(None, holder="a", duration=30.0))
    script = f"""
from deltalake import DeltaTable
from spark_lease.clock import BootClock
from spark_lease.system.call_timeout import CallTimeout
calls = CallTimeout("there", timeout=9.0)
calls.begin(lambda: [DeltaTable({str(folder)!r}) for _ in range(20)])
calls.close(lambda: print("to the last"))
"""
    for _ in range(10):
        ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stdout) == (0, "to the last\n"), ended.stderr


def test_python_ends_while_a_call_hangs() -> None:
    script = """
import threading
from spark_lease.clock import BootClock
from spark_lease.system.call_timeout import CallTimeout
CallTimeout("there", timeout=9.0).begin(threading.Event().wait)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)


@pytest.mark.fault
@pytest.mark.spark
def test_spark_reads_who_is_master(open_store: OpenStore, folder: Path) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="a", duration=300.0, protection="kernel"))
    for _ in range(60):  # over a checkpoint as well
        assert record
        record = store.swap("n", record, renewed(record, duration=300.0))
    assert record
    until(lambda: not store._tidying.is_busy, 60)
    script = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
row = spark.read.format("delta").load({str(folder)!r})
row = row.selectExpr("lease", "holder", "epoch", "duration_ms", "expires > now() as ahead", "protection")
print(*row.collect())
"""
    (folder.parent / "look.py").write_text(script)
    words = [str(Path(COMMAND).with_name("spark-submit")), *spark_options(), str(folder.parent / "look.py")]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False, env=environ)
    row = f"Row(lease='n', holder='a', epoch={record.epoch}, duration_ms=300000, ahead=True, protection='kernel')"
    assert row in done.stdout, done.stderr
