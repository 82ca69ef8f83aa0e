"""One folder for each lease, whatever it is called, below the folder that a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ..config import redacted
from ..errors import ConfigError, SparkLeaseError, StoreError

_LONGEST = 200


def folder_of(url: str, scheme: str) -> Path:
    """Raises ConfigError if it is none of this machine."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError("url", f"{redacted(url)!r} is no folder of this machine: {scheme}:///path/to/leases")
    return Path(unquote(parts.path))


def named(root: Path, name: str) -> Path:
    """The folder of lease `name`. Raises ConfigError for a name that is too long for one."""
    folder = quote(name, safe=" ")
    if len(folder) > _LONGEST:
        raise ConfigError("name", f"{name!r} is too long for a folder of its own: shorten it")
    return root / (f"%2E{folder[1:]}" if folder.startswith(".") else folder)


def folders_in(root: Path) -> list[str]:
    """The names of leases that may have a folder there."""
    return sorted(unquote(each.name) for each in root.iterdir() if each.is_dir()) if root.is_dir() else []


def refusal(where: str, path: Path, error: Exception) -> SparkLeaseError:
    """What to raise for an error of the file system at `path`."""
    there = next(each for each in [path, *path.parents] if each.exists())
    if not there.is_dir() and there != path:
        return ConfigError("url", f"{there} is no folder: name another")
    if not os.access(there, os.W_OK):
        return ConfigError("url", f"{there} cannot be written to: make it writable, or name another folder")
    return StoreError(where, f"{path}: {' '.join(str(error).split())}")
