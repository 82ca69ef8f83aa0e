"""Notes beside leases that are kept in folders: a small file for each, in `folder/NAME/_notes/KIND`.

Readers of a Delta table pass over what begins with an underscore.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..clock import Clock
from ..config import Config, redacted
from ..errors import RecordUnreadable
from ..record import is_grant_of
from .base import LeaseStore
from .bounded import Bounded
from .delta import DeltaStore
from .file import FileStore
from .folders import folder_of, named, put_new, refusal


class FolderNotes:
    """Implements `Notes`. Raises ConfigError for a URL that cannot be used."""

    def __init__(self, config: Config, clock: Clock) -> None:
        scheme = config.url.partition(":")[0]
        self._where, self._root = redacted(config.url), folder_of(config.url, scheme)
        self._leases: LeaseStore = FileStore(config, clock) if scheme == "file" else DeltaStore(config, clock)
        self._bounded = Bounded(self._where, timeout=config.attempt_timeout, clock=clock)

    def add(self, name: str, kind: str, key: str, text: str, *, holder: str, epoch: int) -> str | None:
        if not is_grant_of(self._leases.read(name).record, holder, epoch):
            return None
        there = self._bounded.call(lambda: self._add(name, kind, key, text))
        # Looked at again: if it is mine still, whoever takes it later finds the note.
        return there if is_grant_of(self._leases.read(name).record, holder, epoch) else None

    def all(self, name: str, kind: str) -> dict[str, str]:
        return self._bounded.call(lambda: self._all(name, kind))

    def remove(self, name: str, kind: str, key: str) -> bool:
        return self._bounded.call(lambda: self._remove(self._file(name, kind, key)))

    def close(self) -> None:
        self._leases.close()
        self._bounded.close()

    def _add(self, name: str, kind: str, key: str, text: str) -> str:
        file = self._file(name, kind, key)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if put_new(file, json.dumps({"key": key, "text": text}, indent=1) + "\n"):
                return text
        except OSError as error:
            raise refusal(self._where, file.parent, error) from error
        return self._text(file)[1]

    def _all(self, name: str, kind: str) -> dict[str, str]:
        folder = self._file(name, kind, "").parent
        files = [each for each in folder.glob("*.json") if not each.name.startswith(".")] if folder.is_dir() else []
        return dict(self._text(each) for each in sorted(files, key=lambda each: (each.stat().st_mtime_ns, each.name)))

    def _text(self, file: Path) -> tuple[str, str]:
        try:
            said = json.loads(file.read_text())
            return str(said["key"]), str(said["text"])
        except (ValueError, KeyError, TypeError):
            raise RecordUnreadable(self._where, f"{file} is no note: correct it by hand, or remove it") from None

    def _remove(self, file: Path) -> bool:
        there = file.exists()
        file.unlink(missing_ok=True)
        return there

    def _file(self, name: str, kind: str, key: str) -> Path:
        return named(self._root, name) / "_notes" / kind / f"{hashlib.sha256(key.encode()).hexdigest()}.json"
