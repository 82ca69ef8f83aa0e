"""The folder of a Delta table's log in an object store, through obstore."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import obstore
from obstore.exceptions import AlreadyExistsError

from ...stores.folders.object_store import open_bucket
from .folders import LOG

_BUCKET = re.compile(r"(s3|gs|az|abfss?)://[^/]+")
_AT_ONCE = 16
_PIECE = 64 * 1024


class ObjectFolder:
    """Implements `LogFolder`. `url` is as obstore spells it, and its path is taken as it stands.

    A request takes at most `timeout` seconds. An interpreter that ends meanwhile waits for it.
    """

    def __init__(self, url: str, options: Mapping[str, str], timeout: float) -> None:
        found = _BUCKET.match(url)
        assert found
        self._store = open_bucket(found[0], options, timeout)
        self._path = f"{url[found.end() :].strip('/')}/{LOG}".lstrip("/")

    def names(self, first: str) -> list[str]:
        before = f"{self._path}/{first}"  # what is asked for are those behind it, and no file has a bare number
        found = obstore.list(self._store, self._path, offset=before, chunk_size=1000)
        names = (each["path"].removeprefix(f"{self._path}/") for chunk in found for each in chunk)
        return [each for each in names if "/" not in each]

    def read(self, name: str) -> bytes:
        return bytes(obstore.get(self._store, f"{self._path}/{name}").bytes())

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(self.read, names))

    def open(self, name: str) -> BinaryIO:
        return io.BufferedReader(_Object(self._store, f"{self._path}/{name}"), _PIECE)

    def drop_late(self, version: int) -> bool:
        return False

    def put_new(self, name: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, f"{self._path}/{name}", data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True


class _Object(io.RawIOBase):
    """An object, read in pieces."""

    def __init__(self, store: Any, path: str) -> None:
        self._store, self._path, self._at = store, path, 0
        self._size: int = obstore.head(store, path)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        data = obstore.get_range(self._store, self._path, start=self._at, length=length)
        buffer[: len(data)] = bytes(data)
        self._at += len(data)
        return len(data)


def is_bucket(url: str) -> bool:
    """True for a table in a store that obstore can open."""
    return _BUCKET.match(url) is not None
