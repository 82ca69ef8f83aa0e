"""The folder of a Delta table's log: its protocol, and local folders. `bucket.py` has those in object stores."""

import os
import re
from pathlib import Path
from typing import Any, Protocol

from ...stores.folders.paths import put_new

LOG = "_delta_log"
BUCKET = re.compile(r"(s3|gs|az|abfss?)://[^/]+")
"""A store that obstore can open."""
_WAITS = re.compile(r"\.(\d{20})\.json\.[\w-]+\.tmp")
"""The file that Spark writes and renames to the commit (Delta 4.4, HadoopFileSystemLogStore.createTempPath)."""


class LogFolder(Protocol):
    """Files by name. Methods raise FileNotFoundError, and what the file system or the object store raises."""

    def names(self, first: str) -> list[str]:
        """The file names that are `first` or sort after it; none if there is no such folder."""
        ...

    def read(self, name: str) -> bytes: ...

    def open(self, name: str) -> Any:
        """Open a file to read it in pieces: a checkpoint may be large."""
        ...

    def put_new(self, name: str, data: bytes) -> bool:
        """Make a file; False if that name exists. Two calls at once never both succeed."""
        ...

    def drop_late(self, version: int) -> bool:
        """Remove files that wait to become a commit of `version` or an older one; False if no file ever waits here."""
        ...


class LocalFolder:
    """Implements `LogFolder`."""

    def __init__(self, table: Path) -> None:
        self._path = table / LOG

    def names(self, first: str) -> list[str]:
        try:
            return [each for each in os.listdir(self._path) if each >= first]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def open(self, name: str) -> Any:
        return (self._path / name).open("rb")

    def put_new(self, name: str, data: bytes) -> bool:
        return put_new(self._path / name, data)

    def drop_late(self, version: int) -> bool:
        for name in os.listdir(self._path):
            if (waits := _WAITS.fullmatch(name)) and int(waits[1]) <= version:
                (self._path / name).unlink(missing_ok=True)
        return True
