"""The files of notes beside leases that are kept in folders: a small one for each, in `folder/NAME/_notes/KIND`.

Readers of a Delta table pass over what begins with an underscore.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...config.settings import Config
from ...config.urls import redacted
from .paths import folder_of, named, put_new, refusal


@runtime_checkable
class NoteFiles(Protocol):
    """Where they are; `path` begins with the lease's name. Raises StoreError or ConfigError."""

    def put_new(self, name: str, path: str, text: str) -> bool:
        """Write a whole file that is not there yet; False if it is. Durable once it returns."""
        ...

    def get(self, name: str, path: str) -> str | None:
        """None if there is none."""
        ...

    def list(self, name: str, folder: str) -> Sequence[tuple[float, str]]:
        """When each was written (seconds since 1970), and its path."""
        ...

    def remove(self, name: str, path: str) -> bool:
        """False if there is none."""
        ...


class LocalNoteFiles:
    """In folders of this machine. Implements `NoteFiles`."""

    def __init__(self, where: str, root: Path) -> None:
        self._where, self._root = where, root

    def put_new(self, name: str, path: str, text: str) -> bool:
        file = named(self._root, name) / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            return put_new(file, text.encode())
        except OSError as error:
            raise refusal(self._where, file.parent, error) from error

    def get(self, name: str, path: str) -> str | None:
        try:
            return (named(self._root, name) / path).read_text(errors="replace")
        except FileNotFoundError:
            return None

    def list(self, name: str, folder: str) -> Sequence[tuple[float, str]]:
        found = []
        for each in (named(self._root, name) / folder).glob("[!.]*.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append((each.stat().st_mtime, f"{folder}/{each.name}"))
        return found

    def remove(self, name: str, path: str) -> bool:
        there = self.get(name, path) is not None
        (named(self._root, name) / path).unlink(missing_ok=True)
        return there


def note_files(config: Config) -> NoteFiles:
    scheme = config.url.partition(":")[0]
    if scheme in ("file", "delta"):
        return LocalNoteFiles(redacted(config.url), folder_of(config.url, scheme))
    from .object_store import ObjectFiles  # needs obstore, and few have their leases there

    return ObjectFiles(config)


def prune(files: NoteFiles, name: str, kinds: Sequence[str], age: float) -> None:
    """Remove what was written more than `age` seconds before the newest. Raises StoreError."""
    found = [each for kind in kinds for each in files.list(name, folder_in(kind))]
    newest = max((written for written, _ in found), default=0.0)  # not now, which is this machine's clock
    for written, path in found:
        if written < newest - age:
            files.remove(name, path)


def content(key: str, text: str) -> str:
    return json.dumps({"key": key, "text": text}, indent=1) + "\n"


def folder_in(kind: str) -> str:
    return f"_notes/{kind}"


def path_of(kind: str, key: str) -> str:
    return f"{folder_in(kind)}/{hashlib.sha256(key.encode()).hexdigest()}.json"
