"""Notes beside leases in folders: a small file for each, in `folder/NAME/_notes/KIND`.

Readers of a Delta table ignore names that begin with an underscore.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from ...config.settings import Config
from ...config.urls import redacted
from ...election.record import is_grant_of
from ...errors import RecordUnreadable
from ...system.call_timeout import CallTimeout
from ..registry import open_store
from .files import Files

_AT_ONCE, _EACH = 16, 8
"""Readers in parallel, and notes that each reads in one `attempt_timeout`: a request to an object store takes 20 ms and
more, and a history may have thousands."""


class FolderNotes:
    """Implements `Notes`. Raises ConfigError for a URL that cannot be used."""

    def __init__(self, config: Config) -> None:
        self.where = redacted(config.url)
        self._leases = open_store(config)
        self._files: Files = cast(Any, self._leases).files  # every store in folders has them
        self._bounded = CallTimeout(self.where, timeout=config.attempt_timeout)
        self._readers = [CallTimeout(self.where, timeout=config.attempt_timeout) for _ in range(_AT_ONCE)]

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        if not is_grant_of(self._leases.read(name).record, holder, epoch):
            return None
        there = self._bounded.call(lambda: self._add(name, _path_of(kind, key), key, text))
        # Read again: if the lease is still ours, a later holder finds the note.
        return there if is_grant_of(self._leases.read(name).record, holder, epoch) else None

    def append(self, name: str, kind: str, key: str, text: str) -> bool:
        return self._bounded.call(lambda: self._files.put_new(name, _path_of(kind, key), _content(key, text)))

    def get(self, name: str, kind: str, key: str) -> str | None:
        path = _path_of(kind, key)
        there = self._text(path, self._bounded.call(lambda: self._files.get(name, path)))
        return there[1] if there else None

    def all(self, name: str, kind: str) -> dict[str, str]:
        listed = self._bounded.call(lambda: sorted(self._files.list(name, _folder_in(kind))))
        paths, found = [path for _, path in listed], list[tuple[str, str] | None]()
        for start in range(0, len(paths), _AT_ONCE * _EACH):
            parts = [paths[at : at + _EACH] for at in range(start, len(paths), _EACH)]
            both = zip(self._readers, parts, strict=False)
            answers = [reader.start(partial(self._texts, name, part)) for reader, part in both]
            found += [each for answer in answers for each in answer()]
        return dict(each for each in found if each)

    def every(self, name: str, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        return {kind: self.all(name, kind) for kind in kinds}

    def remove(self, name: str, kind: str, key: str) -> bool:
        return self._bounded.call(lambda: self._files.remove(name, _path_of(kind, key)))

    def prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        self._bounded.call(lambda: self._prune(name, kinds, age))

    def close(self) -> None:
        self._leases.close()
        for each in (self._bounded, *self._readers):
            each.close()

    def _add(self, name: str, path: str, key: str, text: str) -> str:
        if self._files.put_new(name, path, _content(key, text)):
            return text
        there = self._text(path, self._files.get(name, path))
        return there[1] if there else text  # removed since: only ours is left

    def _texts(self, name: str, paths: Sequence[str]) -> list[tuple[str, str] | None]:
        return [self._text(path, self._files.get(name, path)) for path in paths]

    def _prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        found = [each for kind in kinds for each in self._files.list(name, _folder_in(kind))]
        newest = max((written for written, _ in found), default=0.0)  # not now: that is this machine's clock
        for written, path in found:
            if written < newest - age:
                self._files.remove(name, path)

    def _text(self, path: str, text: str | None) -> tuple[str, str] | None:
        if text is None:
            return None
        try:
            fields = json.loads(text)
            return str(fields["key"]), str(fields["text"])
        except (ValueError, KeyError, TypeError):
            raise RecordUnreadable(self.where, f"{path} is no note: correct it by hand, or remove it") from None


def _content(key: str, text: str) -> str:
    return json.dumps({"key": key, "text": text}, indent=1) + "\n"


def _folder_in(kind: str) -> str:
    return f"_notes/{kind}"


def _path_of(kind: str, key: str) -> str:
    return f"{_folder_in(kind)}/{hashlib.sha256(key.encode()).hexdigest()}.json"
