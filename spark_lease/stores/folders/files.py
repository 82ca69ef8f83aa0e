"""The folders of leases: `Files`, which stores and notes need, and `LocalFiles` for folders on this machine.

`object_store.py` has the folders in an object store.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError
from .error_text import error_text
from .paths import meant, put_new, refusal, refuse_dangling, spelled, version_file

log = logging.getLogger(__name__)

UNSAFE = ("allow_unsafe_rename", "mount_allow_unsafe_rename")


class Files(Protocol):
    """The folders of leases; a `path` is inside a lease's folder. Methods that look raise StoreError or ConfigError."""

    options: dict[str, str] | None
    """The storage options that delta-rs needs."""

    def table(self, name: str) -> str:
        """The address of the table of lease `name` for delta-rs. Raises ConfigError for an impossible name."""
        ...

    def has_commit(self, name: str, version: int) -> bool: ...

    def has_log(self, name: str) -> bool:
        """False if no version of the table exists; a folder is there a moment before its first version."""
        ...

    def names(self) -> Sequence[str]:
        """The leases that may have a table."""
        ...

    def check(self) -> None:
        """Raise ConfigError unless the second of two writers is refused. Call it before anything is written."""
        ...

    def init(self) -> list[str]:
        """Make the folder of all leases; return what was made."""
        ...

    def make(self, name: str) -> None:
        """Make the folder of a lease, if one has to be made, unless `create_table` says no."""
        ...

    def put_new(self, name: str, path: str, text: str) -> bool:
        """Write a whole new file; False if it exists already. Durable once it returns."""
        ...

    def get(self, name: str, path: str) -> str | None:
        """The text of a file; None if it is missing."""
        ...

    def list(self, name: str, folder: str) -> Sequence[tuple[float, str]]:
        """The files in a folder: when each was written (seconds since 1970), and its path."""
        ...

    def remove(self, name: str, path: str) -> bool:
        """Remove a file; False if it is missing."""
        ...

    def refusal(self, name: str, error: Exception) -> SparkLeaseError:
        """The error to raise for one of delta-rs; raise it `from None`: the other may hold credentials."""
        ...

    def error_text(self, error: Exception) -> str:
        """An error in one line, without credentials."""
        ...


class LocalFiles:
    """The folders of leases below a folder of this machine. Implements `Files`."""

    options: dict[str, str] | None = None

    def __init__(self, config: Config, root: Path) -> None:
        self._where, self._config, self.root = redacted(config.url), config, root

    def folder(self, name: str) -> Path:
        """The folder of lease `name`. Raises ConfigError if the name is too long."""
        return self.root / spelled(name)

    def table(self, name: str) -> str:
        return str(self.folder(name))

    def has_commit(self, name: str, version: int) -> bool:
        return (self.folder(name) / "_delta_log" / version_file(version)).exists()

    def has_log(self, name: str) -> bool:
        try:
            return any(each.suffix in (".json", ".parquet") for each in (self.folder(name) / "_delta_log").iterdir())
        except (FileNotFoundError, NotADirectoryError):
            self.refuse_missing()
            return False
        except OSError as error:
            raise StoreError(self._where, self.error_text(error)) from error

    def names(self) -> Sequence[str]:
        self.refuse_missing()
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError("url", f"{self.root} is no folder: name another")
        return sorted(meant(each.name) for each in self.root.iterdir() if each.is_dir()) if self.root.is_dir() else []

    def refuse_missing(self) -> None:
        """Raise ConfigError if the folder of all leases is missing and must not be made: it may be a share."""
        refuse_dangling(self.root)
        if self._config.create_table == "false" and not self.root.exists():
            raise ConfigError("url", f"{self.root} does not exist: is it mounted? spark-lease init makes it")

    def check(self) -> None:
        """Do nothing: delta-rs commits by link(2), which every file system refuses for an existing name."""

    def init(self) -> list[str]:
        refuse_dangling(self.root)
        made = [] if self.root.is_dir() else [f"made {self.root}"]
        self.root.mkdir(parents=True, exist_ok=True)
        return made

    def make(self, name: str) -> None:
        folder = self.folder(name)
        if folder.is_dir():
            return
        if self._config.create_table == "false":
            self.refuse_missing()
            raise ConfigError(
                "url",
                f"there is no lease {name!r} in {self.root}: spark-lease init --lease {shlex.quote(name)} makes it",
            )
        try:
            if not self.root.is_dir():
                self.root.mkdir(parents=True, exist_ok=True)
                # If a share is mounted on only one of two machines, there are two stores, and two masters.
                how = 'If it is a share, mount it, and set create_table = "false"'
                log.warning("%s was missing, and was made. %s", self.root, how)
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise self.refusal(name, error) from error

    def put_new(self, name: str, path: str, text: str) -> bool:
        file = self.folder(name) / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return put_new(file, text.encode())
        except OSError as error:
            raise refusal(self._where, file.parent, error) from error

    def get(self, name: str, path: str) -> str | None:
        try:
            return (self.folder(name) / path).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def list(self, name: str, folder: str) -> Sequence[tuple[float, str]]:
        found = []
        for each in (self.folder(name) / folder).glob("[!.]*.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append((each.stat().st_mtime, f"{folder}/{each.name}"))
        return found

    def remove(self, name: str, path: str) -> bool:
        there = self.get(name, path) is not None
        (self.folder(name) / path).unlink(missing_ok=True)
        return there

    def refusal(self, name: str, error: Exception) -> SparkLeaseError:
        return refusal(self._where, self.folder(name), error)

    def error_text(self, error: Exception) -> str:
        return error_text(error)


def plain(key: str) -> str:
    """One name for all spellings of an option: AWS_S3_LOCKING_PROVIDER is locking_provider."""
    return key.lower().removeprefix("aws_").removeprefix("s3_")


def refuse_unsafe(options: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting by which delta-rs overwrites another's commit, or only pretends not to."""
    for source, values in (("storage_options", options), ("the environment", environ)):
        for key, value in values.items():
            word, setting = plain(key), value.strip().lower()
            if word in UNSAFE and setting not in ("false", "0", ""):
                raise ConfigError("url", f"{key} in {source} lets two writers replace each other: remove it")
            if word == "conditional_put" and setting != "etag":
                raise ConfigError("url", f"{key} in {source} must be etag, or nothing: without it two become master")
            if word == "locking_provider" and setting:
                raise ConfigError("url", f"{key} in {source}: delta-rs locks by nothing but conditional puts: unset it")
