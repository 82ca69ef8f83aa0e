"""The folder of a Delta table's log, and that on this machine. `bucket.py` has those in object stores."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

LOG = "_delta_log"


class LogFolder(Protocol):
    """Files by their names in it. Raises FileNotFoundError, and what the file system or the object store raises."""

    def names(self, first: str) -> list[str]:
        """The files whose names are `first` or sort behind it; none if there is no such folder."""
        ...

    def read(self, name: str) -> bytes: ...

    def read_all(self, names: Sequence[str]) -> list[bytes]: ...

    def open(self, name: str) -> BinaryIO:
        """To be read in pieces: a checkpoint may be large."""
        ...

    def put_new(self, name: str, data: bytes) -> bool:
        """False if there is one of that name; two at once never both succeed."""
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

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        return [self.read(each) for each in names]

    def open(self, name: str) -> BinaryIO:
        return (self._path / name).open("rb")

    def put_new(self, name: str, data: bytes) -> bool:
        staged = self._path / f".{name}.{secrets.token_hex(8)}.tmp"  # Delta overlooks what begins with a dot
        try:
            with staged.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(staged, self._path / name)  # whole or not at all, and never over another
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        _sync(self._path)
        return True


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
