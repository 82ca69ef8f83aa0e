"""Claims of Delta tables, and which tables a lease guards."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.election.record import taken
from spark_lease.errors import ConfigError, Fenced, LeaseLost, Loss, StoreError
from spark_lease.fencing.delta.delta_rs import FencedTable
from spark_lease.fencing.delta.fence import Claim, address, claim, property_of
from spark_lease.fencing.delta.folders import LocalFolder
from spark_lease.fencing.delta.tables import KIND, DeltaFence
from spark_lease.stores.registry import open_notes, open_store
from spark_lease.system import python as starting
from tests.services.objects import BUCKET, KEY, LOCKED, SECRET, ObjectServer


@dataclass
class Lease:
    epoch: int
    name: str = "n"
    holder: str = "paris:1"
    config: Config | None = None
    losses: list[Loss] = field(default_factory=list)

    def check(self) -> int:
        if self.losses:
            raise LeaseLost(self.name, self.epoch, self.losses[0])
        return self.epoch

    def wait_certain(self, timeout: float = 0.0) -> int:
        return self.check()

    def lose(self, reason: Loss, detail: str = "") -> None:
        self.losses.append(reason)

    def noted(self, kind: str) -> dict[str, str]:
        assert self.config
        with closing(open_notes(self.config)) as notes:
            return notes.all(self.name, kind)

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        assert self.config
        with closing(open_notes(self.config)) as notes:
            return notes.add(self.name, kind, key, text, holder=self.holder, epoch=self.epoch)


def wanted(epoch: int, name: str = "n") -> Claim:
    return Claim(name, epoch, "paris:1")


def append(path: Path) -> None:
    write_deltalake(str(path), Table.from_arrays([Array([1], DataType.int64())], names=["a"]), mode="append")


def claimed(path: Path, name: str = "n") -> str | None:
    return DeltaTable(str(path)).metadata().configuration.get(property_of(name))


def test_a_claim_raises_the_epoch_and_an_older_one_is_fenced(tmp_path: Path) -> None:
    append(tmp_path)
    for epoch in (5, 5, 7):
        assert claim(wanted(epoch), str(tmp_path), clock=BootClock(), timeout=5)
        assert claimed(tmp_path) == str(epoch)
    with pytest.raises(Fenced, match=r"claimed under epoch 7 and mine is 6.*UNSET TBLPROPERTIES"):
        claim(wanted(6), str(tmp_path), clock=BootClock(), timeout=5)
    assert claimed(tmp_path) == "7"


def test_a_claim_that_was_made_already_commits_nothing(tmp_path: Path) -> None:
    append(tmp_path)
    claim(wanted(5), str(tmp_path), clock=BootClock(), timeout=5)
    version = DeltaTable(str(tmp_path)).version()
    claim(wanted(5), str(tmp_path), clock=BootClock(), timeout=5)
    assert DeltaTable(str(tmp_path)).version() == version


def test_two_leases_share_a_table(tmp_path: Path) -> None:
    append(tmp_path)
    claim(wanted(9, "a"), str(tmp_path), clock=BootClock(), timeout=5)
    claim(wanted(2, "b"), str(tmp_path), clock=BootClock(), timeout=5)
    assert (claimed(tmp_path, "a"), claimed(tmp_path, "b")) == ("9", "2")


def test_a_claim_gets_through_against_a_busy_writer(tmp_path: Path) -> None:
    append(tmp_path)
    over = threading.Event()

    def write() -> None:
        while not over.is_set():
            with contextlib.suppress(CommitFailedError):  # what was under way at the claim is refused
                append(tmp_path)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for each in writers:
        each.start()
    try:
        assert claim(wanted(5), str(tmp_path), clock=BootClock(), timeout=30)
    finally:
        over.set()
        for each in writers:
            each.join()
    assert claimed(tmp_path) == "5"


def test_racing_claims_leave_the_newest_epoch(tmp_path: Path) -> None:
    append(tmp_path)

    def race(epoch: int) -> None:
        try:
            claim(wanted(epoch), str(tmp_path), clock=BootClock(), timeout=30)
        except Fenced:
            refused.append(epoch)

    refused: list[int] = []
    threads = [threading.Thread(target=race, args=(epoch,)) for epoch in range(1, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert claimed(tmp_path) == "8"
    assert 8 not in refused


def test_a_property_that_is_no_epoch_is_not_judged(tmp_path: Path) -> None:
    append(tmp_path)
    DeltaTable(str(tmp_path)).alter.set_table_properties({property_of("n"): "soon"}, raise_if_not_exists=False)
    with pytest.raises(ConfigError, match="which is not an epoch: ALTER TABLE … UNSET TBLPROPERTIES"):
        claim(wanted(5), str(tmp_path), clock=BootClock(), timeout=5)


def test_a_claim_of_nothing_says_so(tmp_path: Path) -> None:
    assert not claim(wanted(5), str(tmp_path / "none"), clock=BootClock(), timeout=5)


@pytest.mark.parametrize(
    ("hadoop", "delta_rs"),
    [
        ("file:/lake/a b", "file:///lake/a%20b"),
        ("file:///lake/t", "file:///lake/t"),
        ("file:/lake/p%25x/h#x/q?", "file:///lake/p%2525x/h%23x/q%3F"),
        ("/lake/t", "file:///lake/t"),
        ("s3a://lake/t", "s3://lake/t"),
        ("gs://a/b", "gs://a/b"),
    ],
)
def test_a_table_is_found_by_what_hadoop_calls_it(hadoop: str, delta_rs: str) -> None:
    """Hadoop does not escape what it prints."""
    assert address(hadoop) == delta_rs


@pytest.mark.parametrize("name", ["p%x", "h#x", "q?x", "a b", "ü"])
def test_a_table_with_odd_letters_in_its_path_is_claimed(tmp_path: Path, name: str) -> None:
    append(tmp_path / "t")
    (tmp_path / "t").rename(tmp_path / name)
    assert claim(wanted(5), f"file:{tmp_path}/{name}", clock=BootClock(), timeout=5)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert '"spark_lease.epoch.n":"5"' in (tmp_path / name / "_delta_log" / f"{1:020}.json").read_text()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return configure(name="n", url=f"sqlite:///{tmp_path}/leases.db", lease_duration=30)


def grant(config: Config, holder: str) -> Lease:
    with closing(open_store(config)) as store:
        old = store.read("n").record
        record = store.swap("n", old, taken(old, holder=holder, duration=30))
    assert record
    return Lease(record.epoch, holder=holder, config=config)


def recorded(config: Config) -> list[str]:
    with closing(open_notes(config)) as notes:
        return list(notes.all("n", KIND))


def test_a_table_is_noted_before_the_first_write_and_claimed_by_the_next_holder(config: Config, tmp_path: Path) -> None:
    table = f"file:{tmp_path}/lake"
    append(tmp_path / "lake")
    first = grant(config, "paris:1")
    fence = DeltaFence(first, config, BootClock())
    fence.begin(table, None)
    assert recorded(config) == [], "it may write nothing: a table that is there is registered in a catalog, say"
    fence.commit(table)
    fence.commit(table)
    assert recorded(config) == [table]
    second = grant(config, "lyon:1")
    assert DeltaFence(second, config, BootClock()).claim_all() == ""
    assert claimed(tmp_path / "lake") == str(second.epoch)
    with pytest.raises(Fenced):
        fence.begin(table, str(second.epoch))


def test_a_holder_whose_lease_was_taken_commits_nothing_to_a_table_that_is_new(config: Config) -> None:
    """The next holder has looked already which tables there are: this one he would never claim."""
    zombie = grant(config, "paris:1")
    grant(config, "lyon:1")
    with pytest.raises(LeaseLost):
        DeltaFence(zombie, config, BootClock()).commit("/lake/new")
    assert recorded(config) == []


def test_nothing_is_committed_where_a_table_cannot_be_noted(config: Config) -> None:
    lease = grant(config, "paris:1")
    fence = DeltaFence(lease, replace(config, renew_deadline=0.9, retry_period=0.1, attempt_timeout=0.7), BootClock())
    Path(config.url.removeprefix("sqlite:///")).write_bytes(b"garbage" * 1000)
    for each in Path(config.url.removeprefix("sqlite:///")).parent.glob("leases.db-*"):
        each.unlink()
    with pytest.raises((StoreError, ConfigError)):
        fence.commit("/lake/new")


def test_a_store_that_fails_for_a_moment_costs_no_commit(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the work of hours. Whatever was lost of the first try, another one finds."""
    lease, refused = grant(config, "paris:1"), list[StoreError]()
    note = lease.note

    def unlock_after(*its: str) -> str | None:
        try:
            return note(*its)
        except StoreError as error:
            refused.append(error)
            locking.rollback()
            raise

    monkeypatch.setattr(lease, "note", unlock_after)
    brief = replace(config, attempt_timeout=0.5, retry_period=0.5)
    lease.config = brief
    with closing(sqlite3.connect(config.url.removeprefix("sqlite:///"))) as locking:
        locking.execute("BEGIN EXCLUSIVE")
        DeltaFence(lease, brief, BootClock()).commit("/lake/new")
    assert len(refused) == 1 and recorded(config) == ["/lake/new"]


def test_tables_of_the_configuration_are_claimed_too(config: Config, tmp_path: Path) -> None:
    append(tmp_path / "a")
    lease = grant(config, "paris:1")
    named = configure(name="n", url=config.url, fence_tables=f"{tmp_path}/a, {tmp_path}/none")
    fence = DeltaFence(lease, named, BootClock())
    assert fence.claim_all() == ""
    assert claimed(tmp_path / "a") == str(lease.epoch)
    assert recorded(config) == []
    assert [fence.has_known(f"file:{tmp_path}/{name}") for name in ("a", "none")] == [True, False]


def test_a_table_that_is_not_there_is_said_and_stays_noted(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be a share that is not mounted."""
    append(tmp_path / "share" / "t")
    DeltaFence(grant(config, "paris:1"), config, BootClock()).commit(f"file:{tmp_path}/share/t")
    shutil.rmtree(tmp_path / "share")
    DeltaFence(grant(config, "lyon:1"), config, BootClock()).claim_all()
    assert "NOT FENCED" in caplog.text and "spark-lease fence forget" in caplog.text
    assert recorded(config) == [f"file:{tmp_path}/share/t"]
    required = configure(name="n", url=config.url, fence_delta="required")
    with pytest.raises(StoreError, match="there is no such table"):
        DeltaFence(grant(config, "lyon:1"), required, BootClock()).claim_all()


def test_a_table_that_is_to_be_made_may_be_named_before(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="spark_lease")
    required = configure(name="n", url=config.url, fence_tables=(f"{tmp_path}/new",), fence_delta="required")
    lease = grant(config, "paris:1")
    assert DeltaFence(lease, required, BootClock()).claim_all() == ""
    assert "new does not exist yet: its first write will register it" in caplog.text
    rows = Table.from_arrays([Array([1], DataType.int64())], names=["x"])
    FencedTable(lease, str(tmp_path / "new"), required, BootClock()).append(rows)
    assert recorded(config) == [f"file:{tmp_path}/new"]
    later = grant(config, "lyon:1")
    DeltaFence(later, required, BootClock()).claim_all()
    assert claimed(tmp_path / "new") == str(later.epoch)


def test_a_table_whose_making_was_cut_off_holds_up_no_later_master(config: Config, tmp_path: Path) -> None:
    """And what waits to become its first version cannot any more: it would replace that of the later master."""
    required = configure(name="n", url=config.url, fence_delta="required")
    log = tmp_path / "t" / "_delta_log"
    DeltaFence(grant(config, "paris:1"), required, BootClock()).commit(f"file:{tmp_path}/t")
    (log / "_staged_commits").mkdir(parents=True)
    waits = log / f".{0:020}.json.8a76-1.tmp"
    waits.touch()
    assert DeltaFence(grant(config, "lyon:1"), required, BootClock()).claim_all() == ""
    assert not waits.exists()


@pytest.fixture
def hanging(objects: ObjectServer, table: str) -> Iterator[dict[str, Any]]:
    """Settings that name a table of a store that hangs."""
    address = f"s3://{BUCKET}/{table}"
    write_deltalake(address, pyarrow.table({"a": [1]}), storage_options=objects.options())
    objects.hang()
    yield {"fence_tables": (address,), "storage_options": objects.options()}
    objects.go_on()


def test_a_lease_that_is_lost_while_a_claim_hangs_ends_the_claims(config: Config, hanging: dict[str, Any]) -> None:
    lease = grant(config, "paris:1")
    threading.Timer(1.0, lambda: lease.lose(Loss.EXPIRED)).start()
    begun = time.monotonic()
    with pytest.raises(LeaseLost):
        DeltaFence(lease, configure(name="n", url=config.url, **hanging), BootClock()).claim_all()
    assert time.monotonic() - begun < 5


def test_a_claim_that_hangs_is_given_up_in_time_and_holds_up_nothing(
    config: Config, hanging: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """delta-rs holds the interpreter meanwhile: it is that of another process."""
    append(tmp_path / "good")
    lease = grant(config, "paris:1")
    hanging["fence_tables"] += (f"{tmp_path}/good",)
    looks = list[float]()
    lease.check = lambda: looks.append(time.monotonic()) or lease.epoch  # type: ignore[method-assign,func-returns-value]
    named = configure(name="n", url=config.url, lease_duration=4, **hanging)
    assert DeltaFence(lease, named, BootClock()).claim_all() == ""
    assert "no answer within 4 s" in caplog.text
    assert claimed(tmp_path / "good") == str(lease.epoch)
    assert len(looks) > 20
    assert max(later - earlier for earlier, later in pairwise(looks)) < 1


def test_a_table_in_an_object_store_is_claimed(config: Config, objects: ObjectServer, table: str) -> None:
    address = f"s3a://{BUCKET}/{table}"
    write_deltalake(f"s3://{BUCKET}/{table}", pyarrow.table({"a": [1]}), storage_options=objects.options())
    lease = grant(config, "paris:1")
    settings = {"fence_tables": (address,), "storage_options": objects.options(), "fence_delta": "required"}
    assert DeltaFence(lease, configure(name="n", url=config.url, **settings), BootClock()).claim_all() == ""
    there = DeltaTable(f"s3://{BUCKET}/{table}", storage_options=objects.options())
    assert there.metadata().configuration[property_of("n")] == str(lease.epoch)


def test_a_table_that_cannot_be_claimed_is_said_or_ends_the_start(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(tmp_path / "a")
    log = tmp_path / "a" / "_delta_log"
    (log / f"{0:020}.json").write_text(json.dumps({"protocol": {"minReaderVersion": 99, "minWriterVersion": 99}}))
    lease = grant(config, "paris:1")
    named = configure(name="n", url=config.url, fence_tables=(f"{tmp_path}/a",))
    assert DeltaFence(lease, named, BootClock()).claim_all() == ""
    assert "NOT FENCED" in caplog.text
    required = configure(name="n", url=config.url, fence_tables=(f"{tmp_path}/a",), fence_delta="required")
    with pytest.raises(StoreError, match="cannot be claimed"):
        DeltaFence(lease, required, BootClock()).claim_all()


def test_a_store_without_a_place_for_notes_fences_nothing_and_says_so(config: Config, tmp_path: Path) -> None:
    lease = grant(config, "paris:1")
    with closing(sqlite3.connect(tmp_path / "leases.db")) as connection:
        connection.execute("DROP TABLE spark_lease_notes")
    bare = lease.config = configure(name="n", url=f"sqlite:///{tmp_path}/leases.db", create_table="false")
    with pytest.raises(ConfigError, match="run spark-lease init"):
        DeltaFence(lease, configure(**_as(bare), fence_delta="required"), BootClock()).claim_all()
    assert "run spark-lease init" in DeltaFence(lease, bare, BootClock()).claim_all()


def _as(config: Config) -> dict[str, object]:
    return {"name": config.name, "url": config.url, "create_table": config.create_table}


def test_delta_rs_writes_are_fenced_and_noted(config: Config, tmp_path: Path) -> None:
    rows = Table.from_arrays([Array([1, 2], DataType.int64())], names=["a"])
    first = grant(config, "paris:1")
    table = FencedTable(first, f"{tmp_path}/lake", config, BootClock())
    table.append(rows)
    table.append(rows)
    table.overwrite(rows)
    table.delete("a = 2")
    table.merge(
        rows,
        "t.a = s.a",
        lambda merge: merge.when_not_matched_insert_all(),
        source_alias="s",
        target_alias="t",
    )
    assert sorted(DeltaTable(f"{tmp_path}/lake").to_pyarrow_table().column("a").to_pylist()) == [1, 2]
    assert recorded(config) == [f"file:{tmp_path}/lake"]
    DeltaFence(grant(config, "lyon:1"), config, BootClock()).claim_all()
    version = DeltaTable(f"{tmp_path}/lake").version()
    for write in (
        lambda: table.append(rows),
        lambda: table.overwrite(rows),
        lambda: table.delete("a = 1"),
        lambda: table.merge(rows, "t.a = s.a", lambda merge: merge.when_matched_delete(), source_alias="s"),
    ):
        with pytest.raises(Fenced):
            write()
    assert DeltaTable(f"{tmp_path}/lake").version() == version


@pytest.mark.parametrize("fenced", [True, False])
def test_a_delta_rs_write_that_is_paused_before_its_commit_is_refused_after_a_claim(
    config: Config, tmp_path: Path, fenced: bool
) -> None:
    """Its rows are made slowly: the claim comes after the snapshot and before the commit. A writer that retries on its
    own, without the fence, and opens the table anew, gets through."""
    append(tmp_path / "lake")
    zombie = grant(config, "paris:1")

    def rows() -> Iterator[Any]:
        successor = grant(config, "lyon:1")
        named = configure(name="n", url=config.url, fence_tables=(f"{tmp_path}/lake",))
        DeltaFence(successor, named, BootClock()).claim_all()
        yield pyarrow.record_batch({"a": [99]})

    def slowly() -> Any:
        return pyarrow.RecordBatchReader.from_batches(pyarrow.schema({"a": pyarrow.int64()}), rows())

    if fenced:
        with pytest.raises(Fenced):
            FencedTable(zombie, f"{tmp_path}/lake", config, BootClock()).append(slowly())
    else:
        with pytest.raises(CommitFailedError):
            write_deltalake(f"{tmp_path}/lake", slowly(), mode="append")
        write_deltalake(f"{tmp_path}/lake", pyarrow.table({"a": [99]}), mode="append")
    assert (99 in DeltaTable(f"{tmp_path}/lake").to_pyarrow_table().column("a").to_pylist()) is not fenced


def test_no_key_of_an_object_store_is_said_where_a_claim_fails(
    config: Config, objects: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    """This bucket refuses everybody, and repeats the key that it was shown."""
    lease = grant(config, "paris:1")
    settings: dict[str, Any] = {"fence_tables": (f"s3://{LOCKED}/t",), "storage_options": objects.options()}
    assert DeltaFence(lease, configure(name="n", url=config.url, **settings), BootClock()).claim_all() == ""
    assert "NOT FENCED" in caplog.text
    assert KEY not in caplog.text and SECRET not in caplog.text


def test_a_claim_without_obstore_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for each in ("fencing.delta.bucket", "stores.folders.object_store"):
        monkeypatch.delitem(sys.modules, f"spark_lease.{each}", raising=False)
    with pytest.raises(ModuleNotFoundError):
        claim(Claim("n", 5, "me"), "s3://leases/t", clock=BootClock(), timeout=10)


def test_a_process_for_claims_that_ends_at_once_is_not_called_slow(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starting, "PYTHON", "/bin/false")
    lease = grant(config, "paris:1")
    named = configure(name="n", url=config.url, fence_tables=(f"{tmp_path}/t",))
    assert DeltaFence(lease, named, BootClock()).claim_all() == ""
    assert "the process for claims ended without an answer" in caplog.text


def test_a_transaction_that_came_to_nothing_is_fenced_if_a_newer_claim_is_there(config: Config, tmp_path: Path) -> None:
    append(tmp_path / "lake")
    lease = Lease(5)
    fence = DeltaFence(lease, config, BootClock())
    claim(wanted(5), str(tmp_path / "lake"), clock=BootClock(), timeout=10)
    claim(wanted(9, "another"), str(tmp_path / "lake"), clock=BootClock(), timeout=10)
    fence.aborted(f"file:{tmp_path}/lake")  # for a reason of its own
    fence.aborted(f"file:{tmp_path}/none")
    assert lease.losses == []
    claim(wanted(6), str(tmp_path / "lake"), clock=BootClock(), timeout=10)
    with pytest.raises(Fenced, match="claimed under epoch 6 and mine is 5"):
        fence.aborted(f"file:{tmp_path}/lake")
    assert lease.losses == [Loss.FENCED]


def test_a_look_that_hangs_leaves_delta_its_own_error_in_time(config: Config, hanging: dict[str, Any]) -> None:
    lease = Lease(5)
    brief = configure(name="n", url=config.url, attempt_timeout=0.5, **hanging)
    start = time.monotonic()
    DeltaFence(lease, brief, BootClock()).aborted(hanging["fence_tables"][0])
    assert time.monotonic() - start < 3
    assert lease.losses == []


def test_a_table_above_the_lease_starts_nothing_and_says_what_it_may_mean(config: Config, tmp_path: Path) -> None:
    append(tmp_path / "lake")
    lease = grant(config, "paris:1")
    claim(wanted(lease.epoch + 1), str(tmp_path / "lake"), clock=BootClock(), timeout=5)
    named = configure(name="n", url=config.url, fence_tables=f"{tmp_path}/lake")
    with pytest.raises(
        Fenced, match=r"lease's own record was lost or restored .*UNSET TBLPROPERTIES .*once you are sure"
    ):
        DeltaFence(lease, named, BootClock()).claim_all()


def test_a_transaction_on_a_table_whose_property_is_no_epoch_is_refused_and_no_loss(config: Config) -> None:
    lease = grant(config, "paris:1")
    with pytest.raises(ConfigError, match="which is not an epoch: ALTER TABLE … UNSET TBLPROPERTIES"):
        DeltaFence(lease, config, BootClock()).begin("/lake/t", "soon")
    assert (lease.losses, recorded(config)) == ([], [])


def test_a_delta_rs_write_to_a_table_that_does_not_exist_is_deltas_own_error(config: Config, tmp_path: Path) -> None:
    lease = grant(config, "paris:1")
    with pytest.raises(TableNotFoundError):
        FencedTable(lease, f"{tmp_path}/none", config, BootClock()).delete()
    assert lease.losses == []


def test_a_commit_that_was_late_for_the_empty_one_cannot_land_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a checkpoint is due, an empty commit comes before the claim. Replaced after the claim, that would hide a
    change of the schema on which the claim is not built."""
    append(table := tmp_path / "table")
    log, put_new = table / "_delta_log", LocalFolder.put_new
    DeltaTable(str(table)).alter.set_table_properties({"delta.checkpointInterval": "2"})
    frozen = log / f".{2:020}.json.0d3e-4c.tmp"
    frozen.write_text("replaced")

    def thaw_after_the_claim(folder: LocalFolder, name: str, data: bytes) -> bool:
        is_new = put_new(folder, name, data)
        if b"metaData" in data and frozen.exists():
            frozen.rename(log / f"{2:020}.json")
        return is_new

    monkeypatch.setattr(LocalFolder, "put_new", thaw_after_the_claim)
    assert claim(wanted(5), str(table), clock=BootClock(), timeout=5)
    assert "commitInfo" in (log / f"{2:020}.json").read_text() and claimed(table) == "5"


def test_no_commit_that_was_late_replaces_a_claim_in_a_folder(tmp_path: Path) -> None:
    """A Spark that is frozen between its look for a version and its rename to it; thawed, it renames."""
    append(table := tmp_path / "table")
    log = table / "_delta_log"
    late, later = (log / f".{version:020}.json.0d3e-4c.tmp" for version in (1, 2))
    for each in (late, later):
        each.write_text("")
    assert claim(wanted(5), str(table), clock=BootClock(), timeout=5)
    with pytest.raises(FileNotFoundError):
        late.rename(log / f"{1:020}.json")
    assert claimed(table) == "5"
    assert later.exists()  # of a version that is not there: its writer will find the claim


def test_a_claim_that_was_replaced_before_the_look_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table := tmp_path / "table")
    append(other := tmp_path / "other")
    append(other)
    log, drop, late = table / "_delta_log", LocalFolder.drop_late, [f"{1:020}.json"]

    def replace_first(folder: LocalFolder, version: int) -> bool:
        if late:
            shutil.copy(other / "_delta_log" / late[0], log / late.pop())
        return drop(folder, version)

    monkeypatch.setattr(LocalFolder, "drop_late", replace_first)
    assert claim(wanted(5), str(table), clock=BootClock(), timeout=5)
    assert not late and claimed(table) == "5"
