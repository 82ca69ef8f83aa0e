"""The folder of a Delta table's log in an object store, through obstore."""

from collections.abc import Mapping
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError

from ...stores.folders.object_store import open_bucket
from .folders import BUCKET, LOG

_PIECE = 64 * 1024


class ObjectFolder:
    """Implements `LogFolder`. `url` is in obstore's spelling, and its path is used unchanged.

    A request takes at most `timeout` seconds. An interpreter that ends meanwhile waits for it.
    """

    def __init__(self, url: str, options: Mapping[str, str], timeout: float) -> None:
        found = BUCKET.match(url)
        assert found
        self._store = open_bucket(found[0], options, timeout)
        self._path = f"{url[found.end() :].strip('/')}/{LOG}".lstrip("/")

    def names(self, first: str) -> list[str]:
        before = f"{self._path}/{first}"  # obstore lists the names after it, and no file is named by a bare number
        found = obstore.list(self._store, self._path, offset=before, chunk_size=1000)
        names = (each["path"].removeprefix(f"{self._path}/") for chunk in found for each in chunk)
        return [each for each in names if "/" not in each]

    def read(self, name: str) -> bytes:
        return bytes(obstore.get(self._store, f"{self._path}/{name}").bytes())

    def open(self, name: str) -> Any:
        return _Reader(obstore.open_reader(self._store, f"{self._path}/{name}", buffer_size=_PIECE))

    def drop_late(self, version: int) -> bool:
        return False

    def put_new(self, name: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, f"{self._path}/{name}", data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True


class _Reader:
    """obstore's reader, with the attribute that pyarrow needs besides."""

    closed = False

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
