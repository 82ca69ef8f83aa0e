"""The log of a Delta table: its newest state, and the one commit that changes a table property and nothing else.

Actions are kept as they were read, with all unknown fields. delta-rs is not used: with a property it writes a protocol
of its own, and then other engines can no longer read the table.

Delta's protocol, "Change Metadata" and the section of each table feature, says what the feature requires of a commit of
metadata: a timestamp (`inCommitTimestamp`) and a tag (`rowTracking`). The rest concerns data files, checkpoints and
vacuuming, of which this commit has none.
"""

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from ...clock import wall_time
from ...errors import FenceUnreachable
from ...stores.folders.paths import version_file
from .folders import LogFolder

_FEATURES = frozenset(
    re.findall(
        r"\S+",
        """
allowColumnDefaults appendOnly changeDataFeed checkConstraints checkpointProtection clustering columnMapping
coordinatedCommits-preview deletionVectors domainMetadata generatedColumns geospatial icebergCompatV1 icebergCompatV2
icebergCompatV3 identityColumns inCommitTimestamp invariants materializePartitionColumns rowTracking timestampNtz
typeWidening typeWidening-preview v2Checkpoint vacuumProtocolCheck variantShredding variantShredding-preview
variantType variantType-preview
""",
    )
)
"""Features that require nothing of a commit of metadata, or only what this module does."""
_NEWEST_PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7}
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator-preview"
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(\.(\d{10})\.(\d{10})|\.[\w-]+)?\.(parquet|json)")
_MADE_BEFORE = {"_staged_commits", "_commits"}
"""Names that Delta makes in a log before the first version."""
_CHECKPOINT_INTERVAL = 10
"""Delta's default."""
_AT_ONCE = 16
"""Commits that are read at once, the newest first."""


class Unsettled(Exception):
    """The log is being written or cleaned up at this moment, or damaged: another look will tell."""


@dataclass(frozen=True, slots=True)
class State:
    """A table at its newest `version`: its `protocol`, its `metadata`, and when it was committed, if its log says so.

    `timestamp` is in milliseconds (protocol, "In-Commit Timestamps").
    """

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    timestamp: int | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.metadata.get("configuration") or {}
        return found

    @property
    def features(self) -> frozenset[str]:
        return frozenset([*self.protocol.get("readerFeatures", ()), *self.protocol.get("writerFeatures", ())])

    @property
    def checkpoint_interval(self) -> int:
        found = self.properties.get("delta.checkpointInterval", "")
        return int(found) if re.fullmatch(r"[1-9]\d{0,9}", found) else _CHECKPOINT_INTERVAL

    @property
    def has_timestamps(self) -> bool:
        return self.properties.get("delta.enableInCommitTimestamps", "").lower() == "true"


class Log:
    """The log of Delta table `table` in `folder`.

    Every method raises Unsettled, what the file system or the object store raises, and FenceUnreachable if retrying
    will not help.
    """

    def __init__(self, table: str, folder: LogFolder) -> None:
        self._table, self._folder = table, folder

    def newest(self) -> State | None:
        """The newest state; None if there is no such table."""
        hint = self._hint()
        try:
            return self._newest(hint)
        except Unsettled:
            if not hint:
                raise
            return self._newest(0)  # the hint may be wrong

    def set_property(self, state: State, key: str, value: str, *, user_metadata: Mapping[str, Any]) -> bool:
        """Commit `key` = `value` on top of `state`; False if it must be tried again on a newer state.

        DESCRIBE HISTORY shows `user_metadata`. After a lost answer the result may be False too: look again.

        Spark writes a checkpoint after its own commit of a version that its interval divides, and does not catch up: if
        each such version were a claim, as with one claim and one write in each run, the table would have none. So there
        comes an empty commit, which moves all later ones on.
        """
        self._refuse(state)
        if state.checkpoint_interval > 1 and (state.version + 1) % state.checkpoint_interval == 0:
            self._commit(state, {"commitInfo": _commit_info(state, {}, user_metadata)})
            # From now on no late rename can replace that version: the claim is built on what the next look finds there.
            self._folder.drop_late(state.version + 1)
            return False
        info = _commit_info(state, {key: value}, user_metadata)
        metadata = {**state.metadata, "configuration": {**state.properties, key: value}}
        return self._commit(state, {"commitInfo": info}, {"metaData": metadata})

    def _commit(self, state: State, *actions: Mapping[str, Any]) -> bool:
        lines = [json.dumps(each, separators=(",", ":")) for each in actions]
        return self._folder.put_new(version_file(state.version + 1), "\n".join([*lines, ""]).encode())

    def drop_late(self, state: State) -> bool:
        """Keep late commits from replacing one up to the version of `state`; False if none can be replaced.

        On a file system Spark looks whether the version exists, and then renames its file to it: that replaces a commit
        made in between. A file that still waits for the rename, of a version that exists, can do nothing else.
        """
        return self._folder.drop_late(state.version)

    def drop_first(self) -> bool:
        """The same if there is no version, but the first may be under way. False if there is no log either."""
        try:
            return self._folder.drop_late(0)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _refuse(self, state: State) -> None:
        """Raise FenceUnreachable for a table on which we may not commit."""
        for key, newest in _NEWEST_PROTOCOL.items():
            if state.protocol[key] > newest:
                raise self._refusal(f"its {key} is {state.protocol[key]}, and this version knows up to {newest}")
        if "catalogManaged" in state.features or _COORDINATOR in state.properties:
            raise self._refusal("its commits go through a catalog, which no claim can do yet")
        if unknown := sorted(state.features - _FEATURES):
            raise self._refusal(f"it has table features that this version does not know: {', '.join(unknown)}")
        if state.has_timestamps and state.timestamp is None:
            raise self._refusal(f"its log has no timestamp of version {state.version}: the next commit heals that")

    def _refusal(self, why: str) -> FenceUnreachable:
        return FenceUnreachable(self._table, f"cannot be claimed: {why}")

    def _hint(self) -> int:
        """The version of a checkpoint that a writer noted; 0 if there is none."""
        try:
            noted = json.loads(self._folder.read("_last_checkpoint"))
            return int(noted["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return 0

    def _newest(self, first: int) -> State | None:
        names = self._folder.names(f"{first:020}")
        commits = {int(match[1]) for each in names if (match := _COMMIT.fullmatch(each))}
        checkpoints = _complete(names)
        if not commits and not checkpoints:
            if first or {*names} - _MADE_BEFORE:
                raise Unsettled("its log has no version")
            return None  # or its first commit is under way
        base, newest = max(checkpoints, default=-1), max([*commits, *checkpoints])
        if missing := sorted(set(range(base + 1, newest + 1)) - commits):
            raise Unsettled(f"its log has no version {missing[0]}, and goes up to {newest}")
        recent = range(newest, base, -1)
        found = self._find(recent, checkpoints.get(base, ()))
        state = State(newest, found["protocol"], found["metaData"])
        if state.has_timestamps and newest in commits:
            return replace(state, timestamp=self._timestamp(newest))
        return state

    def _find(self, recent: Sequence[int], checkpoint: Sequence[str]) -> dict[str, Any]:
        """The newest protocol and metadata, from the commits, or else from the checkpoint before them."""
        found: dict[str, Any] = {}
        for action in self._actions(recent, checkpoint):
            for key in ("protocol", "metaData"):
                if key in action:
                    found.setdefault(key, action[key])
            if len(found) == 2:
                return found
        raise Unsettled("its log has no protocol or no metadata")

    def _actions(self, recent: Sequence[int], checkpoint: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        for first in range(0, len(recent), _AT_ONCE):
            names = [version_file(each) for each in recent[first : first + _AT_ONCE]]
            for name, data in zip(names, self._read(names), strict=True):
                yield from _parsed(name, data)
        for name in checkpoint:
            yield from self._checkpoint(name)

    def _read(self, names: Sequence[str]) -> list[bytes]:
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                return list(pool.map(self._folder.read, names))
        except RuntimeError:  # Python is about to end, and starts no more threads
            return [self._folder.read(each) for each in names]

    def _checkpoint(self, name: str) -> Iterable[Mapping[str, Any]]:
        if name.endswith(".json"):
            return _parsed(name, self._folder.read(name))
        from pyarrow import ArrowInvalid, parquet  # heavy, and most claims need none

        try:
            with closing(self._folder.open(name)) as file:
                table = parquet.ParquetFile(file).read(columns=["protocol", "metaData"])
        except (ArrowInvalid, EOFError) as error:
            raise Unsettled(f"its {name} cannot be read: {error}") from None
        columns = {each: table[each].drop_null().to_pylist(maps_as_pydicts="strict") for each in table.column_names}
        return [{key: _without_none(value)} for key, values in columns.items() for value in values]

    def _timestamp(self, version: int) -> int | None:
        name = version_file(version)
        for action in _parsed(name, self._folder.read(name), "commitInfo"):
            found = action["commitInfo"].get("inCommitTimestamp")
            return None if found is None else int(found)
        return None


def _commit_info(state: State, properties: Mapping[str, str], user_metadata: Mapping[str, Any]) -> dict[str, Any]:
    now = round(wall_time() * 1000)
    first = {"inCommitTimestamp": max(now, (state.timestamp or 0) + 1)} if state.has_timestamps else {}
    tags = {"tags": {"delta.rowTracking.preserved": "true"}} if "rowTracking" in state.features else {}
    return {
        **first,
        "timestamp": now,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(properties, separators=(",", ":"))},
        "readVersion": state.version,
        "isBlindAppend": False,
        **tags,
        "userMetadata": json.dumps(user_metadata),
        "engineInfo": "spark_lease",
    }


def _complete(names: Iterable[str]) -> dict[int, list[str]]:
    """The files of each checkpoint that has all its parts, by version (protocol, "Checkpoint Naming Scheme")."""
    parts: dict[tuple[int, str], list[str]] = defaultdict(list)
    for name in names:
        if found := _CHECKPOINT.fullmatch(name):
            parts[int(found[1]), found[4] or name].append(name)
    whole = {}
    for (version, group), files in sorted(parts.items()):
        if len(files) == (int(group) if group.isdigit() else 1):
            whole[version] = files
    return whole


def _parsed(name: str, data: bytes, *keys: str) -> Iterator[Mapping[str, Any]]:
    """The actions of a commit with these `keys`, without parsing the many that name files."""
    wanted = keys or ("protocol", "metaData")
    if not data:
        raise Unsettled(f"its {name} cannot be read: it is empty")
    for line in io.BytesIO(data):
        if any(f'"{key}"'.encode() in line for key in wanted):
            try:
                action = json.loads(line)
            except ValueError as error:
                raise Unsettled(f"its {name} cannot be read: {error}") from None
            if any(key in action for key in wanted):
                yield action


def _without_none(action: Mapping[str, Any]) -> dict[str, Any]:
    """Drop empty fields: a checkpoint has a column for every possible field."""
    return {key: value for key, value in action.items() if value is not None}
