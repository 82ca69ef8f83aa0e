"""A lease store in Delta tables, through delta-rs: for sites that share a lake and no database.

`delta:///folder`, or `delta+s3://bucket/folder`, holds one table for each lease, with one row that any engine can read.
A write is one commit that adds the same tiny data file again, with other partition values: the newest add of a path
counts (Delta protocol, "Add File and Remove File"). So there is nothing to vacuum, and no Spark job is needed.
`files.py` and `object_store.py` know where the folder is, and look for other files in it.

The swap is put-if-absent of the next version, without retries: a writer that read an older version is refused. No
clock is shared: a lease has run out when its record has stayed unchanged for its duration (`record.expires_in`). The
column `expires` is for people.
"""

import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from arro3.core import Array, DataType, Field, Schema, Table
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from ...clock import utc_text, wall_time
from ...config.settings import MAX_NAME, Config
from ...config.urls import redacted
from ...election.record import LeaseRecord, Snapshot
from ...errors import ConfigError, RecordUnreadable, StoreError
from ...system.call_timeout import CallTimeout
from .files import UNSAFE, Files, LocalFiles, plain, refuse_unsafe
from .paths import folder_of, version_file

log = logging.getLogger(__name__)

_COLUMNS = {
    "lease": DataType.string(),
    "holder": DataType.string(),
    "epoch": DataType.int64(),
    "duration_ms": DataType.int64(),
    "expires": DataType.timestamp("us", tz="UTC"),
    "protection": DataType.string(),
    "directive": DataType.string(),
}
_CHANGING = [column for column in _COLUMNS if column != "lease"]
_ONLY_NEXT = CommitProperties(max_commit_retries=0)
"""The default would rebase a stale write on the version that is there by then, and let both writes through."""
_NOTHING_ELSE = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A checkpoint that fails after the commit raises as if the commit had failed; and a renewal does not wait for one."""
_HOW: dict[str, Any] = {
    "partition_by": _CHANGING,
    "commit_properties": _ONLY_NEXT,
    "post_commithook_properties": _NOTHING_ELSE,
}
_SETTINGS = {"delta.logRetentionDuration": "interval 5 seconds", "delta.enableExpiredLogCleanup": "true"}
_TIDY_EVERY = 50


class DeltaStore:
    """Implements `LeaseStore`. Raises ConfigError at once for a URL that cannot be used."""

    def __init__(self, config: Config) -> None:
        self.where = redacted(config.url)
        self._config, self.files = config, _files_of(config)
        self._bounded = CallTimeout(self.where, timeout=config.attempt_timeout)
        self._tables: dict[str, DeltaTable] = {}
        self._rows: dict[str, tuple[DeltaTable, int, dict[str, Any]]] = {}
        self._known: dict[str, LeaseRecord] = {}
        self._tidying = CallTimeout(self.where, timeout=config.attempt_timeout)

    def read(self, name: str) -> Snapshot:
        return self._bounded.call(lambda: self._read(name))

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        return self._bounded.call(lambda: self._swap(name, old, new))

    def names(self) -> Sequence[str]:
        return self._bounded.call(lambda: [each for each in self.files.names() if self.files.has_log(each)])

    def close(self) -> None:
        self._bounded.close()
        self._tidying.close()

    def init(self) -> Sequence[str]:
        """Make the folder, and the table of a given `name`; return what was made. Raises ConfigError, StoreError."""
        return self._bounded.call(self._init)

    def _init(self) -> list[str]:
        self.files.check()
        made, name = self.files.init(), self._config.name
        if name and not self.files.has_log(name):
            self._create(name)
            made.append(f"made {self.files.table(name)}")
        return made

    def _read(self, name: str) -> Snapshot:
        # A standby asks this all day: one look for the next version, and one at the last.
        known = self._known.get(name)
        if known and not self.files.has_commit(name, (known.stamp or 0) + 1) and self._stands(name, known):
            return Snapshot(known, None)
        table = self._latest(name)
        return Snapshot(None if table is None else self._record(name, table), None)

    def _swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        self.files.check()
        table = self._latest(name)
        if table is None and old is None:
            old, table = self._create(name)
        there = None if table is None else self._record(name, table)
        if table is None or there is None or there != old:
            return None
        epoch = new.epoch
        if epoch != old.epoch:  # larger also after the table was lost, as far as clocks agree
            epoch = max(epoch, round(wall_time() * 1000))
        if not self._commit(name, table, epoch, new):
            return None
        # If we were paused before the put, the log may be cleaned up beyond our version, or the table replaced: then
        # the put succeeds, but no reader sees it. What counts is what is there now, on top of what was there.
        if not self._stands(name, there):
            del self._tables[name]
        table = self._latest(name)
        there = self._record(name, table) if table else there
        return there if (there.holder, there.epoch) == (new.holder, epoch) else None

    def _latest(self, name: str) -> DeltaTable | None:
        """The table as it is now; None if there is none, and never was. Raises StoreError."""
        path = self.files.table(name)
        if table := self._tables.get(name):
            try:
                table.update_incremental()
                if self._stands(name, self._record(name, table)):
                    return table
            except (RecordUnreadable, ConfigError):
                raise
            except Exception as error:  # delta-rs raises anything if the log was cleaned up meanwhile
                log.debug("%s: opened anew: %s", path, self.files.error_text(error))
            del self._tables[name]
        if not self.files.has_log(name):
            if name in self._known:
                raise RecordUnreadable(self.where, f"the table {path} is gone")
            return None
        try:
            self._tables[name] = DeltaTable(path, storage_options=self.files.options)
        except Exception as error:  # also "not found", which it says of a log that is being cleaned up, too
            raise StoreError(self.where, f"{path}: {self.files.error_text(error)}") from None
        return self._tables[name]

    def _stands(self, name: str, record: LeaseRecord) -> bool:
        """True if the commit of `record` still holds it: delta-rs itself finds newer commits, and nothing else."""
        try:
            text = self.files.get(name, f"_delta_log/{version_file(record.stamp or 0)}") or ""
            actions = [json.loads(line) for line in text.splitlines()]
            (values,) = [each["add"]["partitionValues"] for each in actions if "add" in each]
        except (OSError, ValueError, KeyError):  # cleaned up, or another engine's: open it again
            return False
        return (values.get("holder"), values.get("epoch")) == (record.holder, str(record.epoch))

    def _create(self, name: str) -> tuple[LeaseRecord | None, DeltaTable | None]:
        """Make the table with a row that has no holder; None if another contender was faster, or has taken it."""
        row = dict.fromkeys(_COLUMNS) | {"lease": name, "epoch": 0, "duration_ms": 0}
        schema = Schema([Field(column, kind, nullable=True) for column, kind in _COLUMNS.items()])
        made_as = _COLUMNS | {"expires": DataType.int64()}  # arro3 makes no timestamps
        cells = [Array([row[column]], made_as[column]).cast(kind) for column, kind in _COLUMNS.items()]
        self.files.make(name)
        try:
            write_deltalake(
                self.files.table(name),
                Table.from_arrays(cells, schema=schema),
                mode="error",
                configuration=_SETTINGS,
                storage_options=self.files.options,
                **_HOW,
            )
        except CommitFailedError:
            return None, None
        except Exception as error:
            if self.files.has_log(name):  # made by another between our look and our attempt
                return None, None
            raise self.files.refusal(name, error) from None
        table = self._latest(name)
        made = None if table is None else self._record(name, table)
        # If we were frozen since, another may have taken the row that we made: we must not overwrite its grant.
        return (made, table) if made and made.stamp == 0 else (None, None)

    def _commit(self, name: str, table: DeltaTable, epoch: int, new: LeaseRecord) -> bool:
        """Put the next version; False if it exists already. Raises StoreError if the outcome is unknown."""
        row = self._row(name, table)
        path, size = unquote(row["path"]), row["size_bytes"]
        values = {
            "holder": new.holder,
            "epoch": str(epoch),
            "duration_ms": str(round(new.duration * 1000)),
            "expires": utc_text(wall_time() + new.duration) if new.holder else None,
            "protection": new.protection or None,
            "directive": new.directive or None,
        }
        stats = json.dumps({"numRecords": 1})
        action = AddAction(path, size, values, round(wall_time() * 1000), True, stats)
        try:
            table.create_write_transaction([action], "append", table.schema(), **_HOW)
        except CommitFailedError:
            return False
        except Exception as error:
            raise self.files.refusal(name, error) from None
        if (table.version() + 1) % _TIDY_EVERY == 0 and not self._tidying.is_busy:
            self._tidying.begin(lambda: _tidy(self.files, name))  # beside the renewals
        return True

    def _record(self, name: str, table: DeltaTable) -> LeaseRecord:
        """The one row of the table. Raises RecordUnreadable for anything that we would not have written."""
        row = self._row(name, table)
        holder, epoch, duration, protection, directive = (
            row[f"partition.{each}"] for each in ("holder", "epoch", "duration_ms", "protection", "directive")
        )

        def refuse(column: str, value: object) -> RecordUnreadable:
            path = self.files.table(name)
            return RecordUnreadable(
                self.where, f"{path} has {column}={value!r}, which no lease has: correct it by hand"
            )

        if not (holder is None or (isinstance(holder, str) and 0 < len(holder) <= MAX_NAME)):
            raise refuse("holder", holder)
        for column, value in (("epoch", epoch), ("duration_ms", duration)):
            if not (isinstance(value, int) and value >= 0):
                raise refuse(column, value)
        version = table.version()
        self._known[name] = LeaseRecord(holder, epoch, duration / 1000, version, protection or "", directive or "")
        return self._known[name]

    def _row(self, name: str, table: DeltaTable) -> dict[str, Any]:
        known, version, row = self._rows.get(name, (None, 0, {}))
        if known is table and version == table.version():
            return row
        try:
            actions = table.get_add_actions(flatten=True)
        except Exception as error:  # delta-rs may read for it, and raises anything
            raise self.files.refusal(name, error) from None
        columns = set(actions.schema.names)
        if lacking := [each for each in _CHANGING if f"partition.{each}" not in columns]:
            problem = (
                f"has no partition column {', '.join(lacking)}: it is another program's table, or of an earlier version"
            )
            raise RecordUnreadable(self.where, f"{self.files.table(name)} {problem}")
        found = {column: actions.column(column).to_pylist() for column in actions.schema.names}
        rows = sum(each or 0 for each in found["num_records"])
        if rows != 1 or actions.num_rows != 1:
            raise RecordUnreadable(
                self.where, f"{self.files.table(name)} has {rows} rows, a lease has one: correct it by hand"
            )
        row = {column: values[0] for column, values in found.items()}
        self._rows[name] = table, table.version(), row
        return row


def _files_of(config: Config) -> Files:
    """The files with the tables of `config.url`. Raises ConfigError."""
    if not config.url.startswith("delta:"):
        from .object_store import ObjectFiles  # not needed for a folder of this machine

        return ObjectFiles(config)
    if config.storage_options:
        raise ConfigError("storage_options", f"{redacted(config.url)} is a folder of this machine: remove them")
    refuse_unsafe({}, {key: value for key, value in os.environ.items() if plain(key) == UNSAFE[1]})
    root = folder_of(config.url)
    if found := re.search(r"%[0-9A-Fa-f]{2}|[][?#]", str(root)):
        raise ConfigError("url", f"{root}: delta-rs cannot read below a folder with {found[0]} in its name")
    return LocalFiles(config, root)


def _tidy(files: Files, name: str) -> None:
    """Keep the log short. It may fail, or be killed, at any moment."""
    path = files.table(name)
    try:
        table = DeltaTable(path, storage_options=files.options)
        table.create_checkpoint()
        table.cleanup_metadata()
    except Exception as error:  # delta-rs raises anything; the log is longer until the next time
        log.debug("%s: not tidied: %s", path, files.error_text(error))
