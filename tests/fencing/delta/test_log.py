"""A claim changes one property of a Delta table and nothing else, whatever the table is made of."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from spark_lease.clock import BootClock, Clock
from spark_lease.errors import StoreError
from spark_lease.fencing.delta.fence import Claim, claim, newest_of, property_of
from spark_lease.testing.clock import VirtualClock
from tests.services.objects import BUCKET, ObjectServer

NESTED = {"type": "array", "elementType": {"type": "map", "keyType": "string", "valueType": "long"}}
SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "a", "type": "long", "nullable": True, "metadata": {"delta.columnMapping.id": 1, "comment": "ü 😀"}},
        {"name": "b", "type": "a type of tomorrow", "nullable": False, "metadata": {"x": 1.5, "y": [None, True]}},
        {"name": "c", "type": NESTED, "nullable": True, "metadata": {}},
    ],
}
METADATA = {
    "id": "af23c9d7-fff1-4a5a-a2c8-55c59bd782aa",
    "name": "day's flights",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps(SCHEMA, indent=1, ensure_ascii=False),
    "partitionColumns": ["a"],
    "createdTime": 1700000000123,
    "configuration": {"delta.appendOnly": "true", "mine": "ü"},
}
READERS = (
    "columnMapping deletionVectors timestampNtz typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck"
)
READERS += " variantType variantType-preview variantShredding variantShredding-preview geospatial"
WRITERS = (
    "allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering domainMetadata"
)
WRITERS += " generatedColumns icebergCompatV1 icebergCompatV2 icebergCompatV3 identityColumns invariants rowTracking"
WRITERS += " materializePartitionColumns"


def protocol(*writers: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    return found | ({"readerFeatures": [*readers]} if readers else {}) | {"writerFeatures": [*readers, *writers]}


def commit(table: Path, version: int, *actions: dict[str, Any]) -> None:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))


def committed(table: Path, version: int) -> list[dict[str, Any]]:
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


def claim_it(table: Path | str, epoch: int = 5, *, clock: Clock | None = None, timeout: float = 10) -> bool:
    """Waits take no time, unless `clock` is a real one."""
    return claim(Claim("n", epoch, "paris:1"), str(table), clock=clock or VirtualClock(), timeout=timeout)


def metadata_of(table: Path, version: int) -> dict[str, Any]:
    """What the claim wrote besides its commitInfo, after a look that it is nothing more."""
    first, second = committed(table, version)
    assert [*first] == ["commitInfo"] and [*second] == ["metaData"]
    found: dict[str, Any] = second["metaData"]
    return found


def with_claim(metadata: dict[str, Any], epoch: int = 5) -> dict[str, Any]:
    return metadata | {"configuration": metadata["configuration"] | {property_of("n"): str(epoch)}}


@pytest.mark.parametrize(
    "versions",
    [
        *(protocol(each) for each in WRITERS.split()),
        *(protocol(readers=(each,)) for each in READERS.split()),
        *(
            {"minReaderVersion": reader, "minWriterVersion": writer}
            for reader, writer in ((1, 1), (1, 2), (1, 6), (2, 5))
        ),
    ],
    ids=lambda each: " ".join(
        each.get("writerFeatures", [f"({each['minReaderVersion']}, {each['minWriterVersion']})"])
    ),
)
def test_a_claim_changes_the_property_and_nothing_else(tmp_path: Path, versions: dict[str, Any]) -> None:
    commit(tmp_path, 0, {"protocol": versions}, {"metaData": METADATA})
    commit(tmp_path, 1, {"add": {"path": 'a "metaData" file', "size": 1}})
    before = (tmp_path / "_delta_log" / f"{0:020}.json").read_bytes()
    assert claim_it(tmp_path)
    assert metadata_of(tmp_path, 2) == with_claim(METADATA)
    assert (tmp_path / "_delta_log" / f"{0:020}.json").read_bytes() == before
    assert claim_it(tmp_path) and claim_it(tmp_path, 6)
    assert metadata_of(tmp_path, 3) == with_claim(METADATA, 6)
    assert sorted(each.name for each in (tmp_path / "_delta_log").iterdir()) == [
        f"{each:020}.json" for each in range(4)
    ]


@pytest.mark.parametrize(("interval", "due"), [("", 10), ("4", 4), ("2", 2), ("1", 0), ("0", 10), ("often", 10)])
def test_a_version_at_which_spark_writes_a_checkpoint_is_left_to_it(tmp_path: Path, interval: str, due: int) -> None:
    """With one claim and one write in a run, all such versions might be claims."""
    configuration = {"delta.checkpointInterval": interval} if interval else {}
    commit(tmp_path, 0, {"protocol": protocol()}, {"metaData": METADATA | {"configuration": configuration}})
    claims = []
    for run in range(25):
        version = len(list((tmp_path / "_delta_log").iterdir()))
        commit(tmp_path, version, {"add": {"path": str(run)}})
        claim_it(tmp_path, run + 1)
        claims.append(len(list((tmp_path / "_delta_log").iterdir())) - 1)
    empty = [each for each in range(1, claims[-1]) if [*committed(tmp_path, each)[-1]] == ["commitInfo"]]
    assert empty == ([due] if due else [])
    assert not due or not [each for each in claims if each % due == 0]
    written = {*range(1, claims[-1])} - {*claims, *empty}
    assert not due or {each for each in range(due + 1, claims[-1]) if each % due == 0} <= written


def test_what_is_said_of_it_is_what_describe_history_shows(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": protocol("rowTracking", "domainMetadata")}, {"metaData": METADATA})
    claim_it(tmp_path)
    info = committed(tmp_path, 1)[0]["commitInfo"]
    assert json.loads(info["userMetadata"]) == {"lease": "n", "epoch": 5, "holder": "paris:1"}
    assert json.loads(info["operationParameters"]["properties"]) == {property_of("n"): "5"}
    assert info["tags"] == {"delta.rowTracking.preserved": "true"}
    assert "inCommitTimestamp" not in info


def timestamped(table: Path, last: int) -> None:
    metadata = METADATA | {"configuration": {"delta.enableInCommitTimestamps": "true"}}
    commit(table, 0, {"commitInfo": {}}, {"protocol": protocol("inCommitTimestamp")}, {"metaData": metadata})
    commit(table, 1, {"commitInfo": {"inCommitTimestamp": last, "timestamp": 3}}, {"add": {"path": "x"}})


def test_in_commit_timestamps_go_on_from_the_one_before(tmp_path: Path) -> None:
    ahead = round(time.time() * 1000) + 3_600_000  # they are times of the wall clock
    for folder, last in (("ahead", ahead), ("behind", 1000)):
        timestamped(tmp_path / folder, last)
        claim_it(tmp_path / folder)
    assert next(iter(committed(tmp_path / "ahead", 2)[0]["commitInfo"])) == "inCommitTimestamp"
    assert committed(tmp_path / "ahead", 2)[0]["commitInfo"]["inCommitTimestamp"] == ahead + 1
    assert committed(tmp_path / "behind", 2)[0]["commitInfo"]["inCommitTimestamp"] >= ahead - 3_600_000


REFUSED = [
    (protocol(readers=("catalogManaged", "v2Checkpoint")), {}, "go through a catalog"),
    (protocol("coordinatedCommits-preview"), {"delta.coordinatedCommits.commitCoordinator-preview": "x"}, "a catalog"),
    (protocol("redirectWriterOnly-preview"), {}, "does not know: redirectWriterOnly-preview"),
    (protocol(readers=("tomorrow",)), {}, "does not know: tomorrow"),
    ({"minReaderVersion": 4, "minWriterVersion": 7}, {}, "its minReaderVersion is 4"),
    ({"minReaderVersion": 3, "minWriterVersion": 8}, {}, "its minWriterVersion is 8"),
]


@pytest.mark.parametrize(("versions", "properties", "why"), REFUSED, ids=[each[2] for each in REFUSED])
def test_a_table_whose_commits_are_not_ours_to_make_is_refused_at_once(
    tmp_path: Path, versions: dict[str, Any], properties: dict[str, str], why: str
) -> None:
    commit(tmp_path, 0, {"protocol": versions}, {"metaData": METADATA | {"configuration": properties}})
    clock = VirtualClock()
    begun = clock.now()
    with pytest.raises(StoreError, match=why):
        claim_it(tmp_path, clock=clock)
    assert clock.now() == begun
    assert [each.name for each in (tmp_path / "_delta_log").iterdir()] == [f"{0:020}.json"]


def checkpoint(table: Path, name: str, *actions: dict[str, Any]) -> None:
    """As engines write them: a column for each kind of action, maps as maps, and a null for each field that is not."""
    texts = pyarrow.map_(pyarrow.string(), pyarrow.string())
    form = pyarrow.struct([("provider", pyarrow.string()), ("options", texts)])
    names = pyarrow.list_(pyarrow.string())
    strings = [(each, pyarrow.string()) for each in ("id", "name", "description", "schemaString")]
    meta = [
        *strings,
        ("format", form),
        ("partitionColumns", names),
        ("createdTime", pyarrow.int64()),
        ("configuration", texts),
    ]
    versions = [(each, pyarrow.int32()) for each in ("minReaderVersion", "minWriterVersion")]
    features = [(each, names) for each in ("readerFeatures", "writerFeatures")]
    schema = pyarrow.schema(
        {
            "add": pyarrow.struct([("path", pyarrow.string())]),
            "metaData": pyarrow.struct(meta),
            "protocol": pyarrow.struct([*versions, *features]),
        }
    )
    rows = pyarrow.Table.from_pylist([dict.fromkeys(schema.names) | each for each in actions], schema)
    parquet.write_table(rows, table / "_delta_log" / name)


def log_of(table: Path) -> Path:
    (table / "_delta_log").mkdir(parents=True)
    return table / "_delta_log"


ACTIONS: list[dict[str, Any]] = [
    {"add": {"path": "x"}},
    {"protocol": protocol(readers=("v2Checkpoint",))},
    {"metaData": METADATA},
    {"add": {"path": "y"}},
]


def classic(table: Path) -> None:
    checkpoint(table, f"{7:020}.checkpoint.parquet", *ACTIONS)


def in_parts(table: Path) -> None:
    for part in range(4):
        checkpoint(table, f"{7:020}.checkpoint.{part + 1:010}.{4:010}.parquet", ACTIONS[part])
    checkpoint(table, f"{8:020}.checkpoint.{1:010}.{2:010}.parquet", ACTIONS[0])  # the other part is not there yet


def version_two(table: Path) -> None:
    checkpoint(table, f"{7:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet", *ACTIONS)


def version_two_json(table: Path) -> None:
    commit(table, 7, {"checkpointMetadata": {"version": 7}}, *ACTIONS, {"sidecar": {"path": "z", "sizeInBytes": 1}})
    log = table / "_delta_log"
    (log / f"{7:020}.json").rename(log / f"{7:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json")


KINDS = [classic, in_parts, version_two, version_two_json]


@pytest.mark.parametrize("written", KINDS)
def test_what_only_a_checkpoint_knows_is_kept_as_it_is(tmp_path: Path, written: Callable[[Path], None]) -> None:
    log_of(tmp_path)
    written(tmp_path)
    for version in range(7, 11):
        commit(tmp_path, version, {"add": {"path": str(version)}})
    assert claim_it(tmp_path)
    assert metadata_of(tmp_path, 11) == with_claim(METADATA)


@pytest.mark.parametrize("written", [classic, version_two, version_two_json])
def test_a_checkpoint_alone_is_enough(tmp_path: Path, written: Callable[[Path], None]) -> None:
    log_of(tmp_path)
    written(tmp_path)
    assert claim_it(tmp_path)
    assert metadata_of(tmp_path, 8) == with_claim(METADATA)


def test_a_checkpoint_alone_does_not_tell_its_timestamp(tmp_path: Path) -> None:
    log_of(tmp_path)
    metadata = METADATA | {"configuration": {"delta.enableInCommitTimestamps": "true"}}
    checkpoint(
        tmp_path, f"{7:020}.checkpoint.parquet", {"protocol": protocol("inCommitTimestamp")}, {"metaData": metadata}
    )
    with pytest.raises(StoreError, match="no timestamp of version 7: the next commit heals that"):
        claim_it(tmp_path)


@pytest.mark.parametrize("hint", ['{"version":7}', '{"version":5}', '{"version":900}', "{", '{"size":1}', '"x"'])
def test_a_hint_may_be_wrong(tmp_path: Path, hint: str) -> None:
    (log_of(tmp_path) / "_last_checkpoint").write_text(hint)
    classic(tmp_path)
    commit(tmp_path, 8, {"add": {"path": "x"}})
    assert claim_it(tmp_path)
    assert metadata_of(tmp_path, 9) == with_claim(METADATA)


def test_a_log_with_a_hole_is_one_sentence_and_stays_as_it_was(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": protocol()}, {"metaData": METADATA})
    commit(tmp_path, 2, {"add": {"path": "x"}})
    with pytest.raises(StoreError, match="cannot be claimed: its log has no version 1, and goes up to 2"):
        claim_it(tmp_path)
    assert len(list((tmp_path / "_delta_log").iterdir())) == 2


def test_a_log_without_a_version_is_no_missing_table(tmp_path: Path) -> None:
    (log_of(tmp_path) / "_last_checkpoint").write_text('{"version":7}')
    with pytest.raises(StoreError, match="its log has no version"):
        claim_it(tmp_path)


def test_a_commit_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": protocol()}, {"metaData": METADATA})
    newest = tmp_path / "_delta_log" / f"{1:020}.json"
    changed = json.dumps({"metaData": METADATA | {"name": "later"}})
    for begun in ("", changed[:-20]):
        newest.write_text(begun)
        with pytest.raises(StoreError, match=r"cannot be claimed: its 0+1\.json cannot be read"):
            claim_it(tmp_path)
    writing = threading.Timer(0.5, lambda: newest.write_text(changed))
    writing.start()
    assert claim_it(tmp_path, clock=BootClock())
    writing.join()
    assert metadata_of(tmp_path, 2)["name"] == "later"


def test_a_checkpoint_that_is_being_written_is_one_sentence(tmp_path: Path) -> None:
    log_of(tmp_path)
    classic(tmp_path)
    path = tmp_path / "_delta_log" / f"{7:020}.checkpoint.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StoreError, match=r"checkpoint\.parquet cannot be read"):
        claim_it(tmp_path)


def test_a_log_of_ten_thousand_versions_is_claimed(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": protocol()}, {"metaData": METADATA})
    for version in range(1, 10_000):
        commit(tmp_path, version, {"add": {"path": str(version)}})
    assert claim_it(tmp_path, timeout=60)
    assert metadata_of(tmp_path, 10_001) == with_claim(METADATA)


@pytest.mark.parametrize("name", ["a b", "ü", "p%41", "h#x", "q?x", "[x]", "'"])
def test_a_path_is_taken_as_it_stands(tmp_path: Path, name: str) -> None:
    commit(tmp_path / name, 0, {"protocol": protocol()}, {"metaData": METADATA})
    assert claim_it(f"file:{tmp_path}/{name}")
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert metadata_of(tmp_path / name, 1) == with_claim(METADATA)


def test_a_commit_can_be_read_by_those_who_may_read_the_others(tmp_path: Path) -> None:
    commit(tmp_path, 0, {"protocol": protocol()}, {"metaData": METADATA})
    before = os.umask(0o027)
    try:
        claim_it(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "_delta_log" / f"{1:020}.json").stat().st_mode) == 0o640


def test_a_table_of_delta_rs_with_a_checkpoint_goes_on(tmp_path: Path) -> None:
    rows = Table.from_arrays([Array([1], DataType.int64())], names=["a"])
    write_deltalake(str(tmp_path), rows, configuration={"delta.enableDeletionVectors": "true"})
    DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    before = DeltaTable(str(tmp_path)).protocol()
    assert claim_it(tmp_path)
    there = DeltaTable(str(tmp_path))
    assert there.protocol() == before
    assert there.metadata().configuration == {"delta.enableDeletionVectors": "true", property_of("n"): "5"}
    assert there.history(1)[0]["operation"] == "SET TBLPROPERTIES"
    write_deltalake(str(tmp_path), rows, mode="append")
    assert newest_of("n", str(tmp_path), {}, timeout=10) == "5"


@pytest.mark.parametrize("name", ["t", "a b", "p%41", "h#x", "q?x"])
def test_a_table_in_a_bucket_is_taken_as_it_stands(
    tmp_path: Path, objects: ObjectServer, table: str, name: str
) -> None:
    import obstore

    from spark_lease.stores.folders.object_store import open_bucket

    log_of(tmp_path)
    classic(tmp_path)
    for version in (8, 9, 10):
        commit(tmp_path, version, {"add": {"path": "x"}})
    bucket, path = open_bucket(f"s3://{BUCKET}", objects.options(), 10), f"{table}/{name}/_delta_log"
    for each in (tmp_path / "_delta_log").iterdir():
        obstore.put(bucket, f"{path}/{each.name}", each.read_bytes())
    obstore.put(bucket, f"{path}/_last_checkpoint", b'{"version":7}')
    obstore.put(bucket, f"{path}/_sidecars/x.parquet", b"")
    options = objects.options(AWS_S3_ALLOW_UNSAFE_RENAME="true", timeout="9s")
    address = f"s3a://{BUCKET}/{table}/{name}"
    for epoch in (5, 5, 6):
        assert claim(Claim("n", epoch, "paris:1", options), address, clock=BootClock(), timeout=10)
    for version, epoch in ((11, 5), (12, 6)):
        lines = bytes(obstore.get(bucket, f"{path}/{version:020}.json").bytes()).decode().splitlines()
        assert json.loads(lines[1])["metaData"] == with_claim(METADATA, epoch)
    found = [each["path"] for chunk in obstore.list(bucket, table) for each in chunk]
    assert {each.split("/")[1] for each in found} == {name}
    assert newest_of("n", address, options, timeout=10) == "6"


@pytest.mark.parametrize("table", ["hdfs://there/t", "dbfs:/t", "wasbs://c@a.blob.core.windows.net/t"])
def test_a_store_to_which_no_claim_goes_is_said(table: str) -> None:
    with pytest.raises(StoreError, match="cannot be claimed: only folders of this machine and s3, gs"):
        claim_it(table)
