"""What a Delta lease looks for in its table's folder besides what delta-rs tells, and the folder on this machine.

`object_store.py` has the folder in an object store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError
from .error_text import error_text
from .paths import folder_of, folders_in, make, named, refusal, refuse_missing

UNSAFE = ("allow_unsafe_rename", "mount_allow_unsafe_rename")


class Files(Protocol):
    """Where the tables of leases are. Everything that looks raises StoreError or ConfigError."""

    options: dict[str, str] | None
    """What delta-rs needs to get there."""

    def table(self, name: str) -> str:
        """What delta-rs calls the table of lease `name`. Raises ConfigError for a name that it cannot have."""
        ...

    def commit(self, name: str, version: int) -> str | None:
        """The text of that commit; None if it is not there (any more)."""
        ...

    def has_commit(self, name: str, version: int) -> bool: ...

    def has_log(self, name: str) -> bool:
        """False if no version of the table exists; a folder is there a moment before its first version."""
        ...

    def names(self) -> Sequence[str]:
        """The leases that may have a table."""
        ...

    def check(self) -> None:
        """To be called before anything is written: raises ConfigError unless the second of two writers is refused."""
        ...

    def init(self) -> list[str]:
        """Make the folder of all tables; what was made."""
        ...

    def make(self, name: str) -> None:
        """Make the folder of a table, if one has to be made, unless `create_table` says no."""
        ...

    def refusal(self, name: str, error: Exception) -> SparkLeaseError:
        """What to raise for an error of delta-rs; `from None`, because that may hold credentials."""
        ...

    def error_text(self, error: Exception) -> str:
        """An error in one line, without credentials."""
        ...


class LocalFiles:
    """Below a folder of this machine. Implements `Files`."""

    options: dict[str, str] | None = None

    def __init__(self, config: Config) -> None:
        if config.storage_options:
            raise ConfigError("storage_options", f"{redacted(config.url)} is a folder of this machine: remove them")
        refuse_unsafe({}, {key: value for key, value in os.environ.items() if plain(key) == UNSAFE[1]})
        self._where, self._config = redacted(config.url), config
        self._root = folder_of(config.url, "delta")
        if found := re.search(r"%[0-9A-Fa-f]{2}|[][?#]", str(self._root)):
            raise ConfigError("url", f"{self._root}: delta-rs cannot read below a folder with {found[0]} in its name")

    def table(self, name: str) -> str:
        return str(named(self._root, name))

    def commit(self, name: str, version: int) -> str | None:
        try:
            return self._version(name, version).read_text(encoding="utf-8")
        except (OSError, ValueError):  # cleaned up, or another engine's
            return None

    def has_commit(self, name: str, version: int) -> bool:
        return self._version(name, version).exists()

    def has_log(self, name: str) -> bool:
        try:
            return any(each.suffix in (".json", ".parquet") for each in self._log(name).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            refuse_missing(self._root, self._config)
            return False
        except OSError as error:
            raise StoreError(self._where, self.error_text(error)) from error

    def names(self) -> Sequence[str]:
        return folders_in(self._root, self._config)

    def check(self) -> None:
        """delta-rs commits by link(2), which every file system refuses for a name that is there."""

    def init(self) -> list[str]:
        made = [] if self._root.is_dir() else [f"made {self._root}"]
        self._root.mkdir(parents=True, exist_ok=True)
        return made

    def make(self, name: str) -> None:
        try:
            make(self._root, named(self._root, name), replace(self._config, name=name))
        except OSError as error:
            raise self.refusal(name, error) from error

    def refusal(self, name: str, error: Exception) -> SparkLeaseError:
        return refusal(self._where, named(self._root, name), error)

    def error_text(self, error: Exception) -> str:
        return error_text(error)

    def _log(self, name: str) -> Path:
        return named(self._root, name) / "_delta_log"

    def _version(self, name: str, version: int) -> Path:
        return self._log(name) / version_file(version)


def version_file(version: int) -> str:
    return f"{version:020}.json"


def plain(key: str) -> str:
    """An option however it is spelled: AWS_S3_LOCKING_PROVIDER is locking_provider."""
    return key.lower().removeprefix("aws_").removeprefix("s3_")


def refuse_unsafe(options: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise ConfigError for what makes delta-rs commit over the commit of another, or pretend that it would not."""
    for source, values in (("storage_options", options), ("the environment", environ)):
        for key, value in values.items():
            word, setting = plain(key), value.strip().lower()
            if word in UNSAFE and setting not in ("false", "0", ""):
                raise ConfigError("url", f"{key} in {source} lets two writers replace each other: remove it")
            if word == "conditional_put" and setting != "etag":
                raise ConfigError("url", f"{key} in {source} must be etag, or nothing: without it two become master")
            if word == "locking_provider" and setting:
                raise ConfigError("url", f"{key} in {source}: delta-rs locks by nothing but conditional puts: unset it")
