"""Notes beside leases that are kept in folders, as `Notes` wants them. The files are `note_files.py`'s."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ...clock import Clock
from ...config.settings import Config
from ...config.urls import redacted
from ...election.ports import LeaseStore
from ...election.record import is_grant_of
from ...errors import RecordUnreadable
from ...system.call_timeout import CallTimeout
from .file import FileStore
from .note_files import content, folder_in, note_files, path_of, prune


def _leases(config: Config, clock: Clock) -> LeaseStore:
    if config.url.startswith("file:"):
        return FileStore(config, clock)
    from .delta import DeltaStore  # needs packages that a folder's leases do not

    return DeltaStore(config, clock)


class FolderNotes:
    """Implements `Notes`. Raises ConfigError for a URL that cannot be used."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self.where = redacted(config.url)
        self._leases = _leases(config, clock)
        self._files = note_files(config)
        self._bounded = CallTimeout(self.where, timeout=config.attempt_timeout, clock=clock)

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        if not is_grant_of(self._leases.read(name).record, holder, epoch):
            return None
        there = self._bounded.call(lambda: self._add(name, path_of(kind, key), key, text))
        # Looked at again: if it is mine still, a later holder finds the note.
        return there if is_grant_of(self._leases.read(name).record, holder, epoch) else None

    def append(self, name: str, kind: str, key: str, text: str) -> bool:
        return self._bounded.call(lambda: self._files.put_new(name, path_of(kind, key), content(key, text)))

    def get(self, name: str, kind: str, key: str) -> str | None:
        path = path_of(kind, key)
        there = self._text(path, self._bounded.call(lambda: self._files.get(name, path)))
        return there[1] if there else None

    def all(self, name: str, kind: str) -> dict[str, str]:
        return self._bounded.call(lambda: self._all(name, kind))

    def every(self, name: str, kinds: Sequence[str]) -> dict[str, dict[str, str]]:
        return {kind: self.all(name, kind) for kind in kinds}

    def remove(self, name: str, kind: str, key: str) -> bool:
        return self._bounded.call(lambda: self._files.remove(name, path_of(kind, key)))

    def prune(self, name: str, kinds: Sequence[str], age: float) -> None:
        self._bounded.call(lambda: prune(self._files, name, kinds, age))

    def close(self) -> None:
        self._leases.close()
        self._bounded.close()

    def _add(self, name: str, path: str, key: str, text: str) -> str:
        if self._files.put_new(name, path, content(key, text)):
            return text
        there = self._text(path, self._files.get(name, path))
        return there[1] if there else text  # removed since: only mine is left

    def _all(self, name: str, kind: str) -> dict[str, str]:
        listed = sorted(self._files.list(name, folder_in(kind)))
        found = [self._text(path, self._files.get(name, path)) for _, path in listed]
        return dict(each for each in found if each)

    def _text(self, path: str, text: str | None) -> tuple[str, str] | None:
        if text is None:
            return None
        try:
            fields = json.loads(text)
            return str(fields["key"]), str(fields["text"])
        except (ValueError, KeyError, TypeError):
            raise RecordUnreadable(self.where, f"{path} is no note: correct it by hand, or remove it") from None
