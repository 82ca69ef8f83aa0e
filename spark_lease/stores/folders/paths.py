"""One folder for each lease, whatever it is called, below the folder that a URL names."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError

log = logging.getLogger(__name__)

_LONGEST = 200


def folder_of(url: str, scheme: str) -> Path:
    """Raises ConfigError if it is none of this machine."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_path = path.startswith("/") and path.strip("/") and "\0" not in path
    if parts.netloc or not is_path or parts.query or parts.fragment:
        raise ConfigError("url", f"{redacted(url)!r} is no folder of this machine: {scheme}:///path/to/leases")
    return Path(path)


def named(root: Path, name: str) -> Path:
    """The folder of lease `name`. Raises ConfigError for a name that is too long for one."""
    return root / spelled(name)


def spelled(name: str) -> str:
    """What the folder of lease `name` is called, also in an object store. Raises ConfigError as `named`.

    No % and no ~, which delta-rs and obstore quote or unquote once more, and nothing that Delta hides.
    """
    folder = quote(name, safe="").replace("~", "%7E").replace("%", "!")
    if len(folder) > _LONGEST:
        raise ConfigError("name", f"{name!r} is too long for a folder of its own: shorten it")
    return f"!{ord(folder[0]):02X}{folder[1:]}" if folder.startswith((".", "_")) else folder


def meant(folder: str) -> str:
    """The name of the lease that a folder is for."""
    return unquote(folder.replace("!", "%"))


def make(root: Path, folder: Path, config: Config) -> None:
    """Make the folder of a lease, unless `create_table` says no. Raises ConfigError, OSError."""
    if folder.is_dir():
        return
    if config.create_table == "false":
        refuse_missing(root, config)
        raise ConfigError("url", f"there is no lease {config.name!r} in {root}: spark-lease init makes it")
    if not root.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        # A share that is not mounted on one of two machines would be two stores, and two masters.
        log.warning('%s was missing, and was made. If it is a share, mount it, and set create_table = "false"', root)
    folder.mkdir(exist_ok=True)


def refuse_missing(root: Path, config: Config) -> None:
    """Raise ConfigError if the folder of all leases is not there and not to be made: it may be a share's."""
    if config.create_table == "false" and not root.exists():
        raise ConfigError("url", f"{root} does not exist: is it mounted? spark-lease init makes it")


def folders_in(root: Path, config: Config) -> list[str]:
    """The names of leases that may have a folder there. Raises ConfigError, OSError."""
    refuse_missing(root, config)
    if root.exists() and not root.is_dir():
        raise ConfigError("url", f"{root} is no folder: name another")
    return sorted(meant(each.name) for each in root.iterdir() if each.is_dir()) if root.is_dir() else []


def put_new(path: Path, data: bytes) -> bool:
    """Write a whole file that is not there yet; False if it is. Durable once it returns. Raises OSError.

    A whole file under another name, synced, then link(2): atomic on NFS as well, and no reader ever sees half of it.
    """
    # Delta overlooks what begins with a dot, and so do our stores. Two hosts may have one number of a process.
    draft = path.with_name(f".{os.getpid()}-{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            # On NFS the answer to a link(2) that was done may be lost, and the repetition find it there.
            return os.stat(draft).st_nlink == 2
        sync(path.parent)
        return True
    finally:
        draft.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Make durable which files there are. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refusal(where: str, path: Path, error: Exception) -> SparkLeaseError:
    """What to raise for an error of the file system at `path`."""
    try:
        there = next(each for each in [path, *path.parents] if each.exists())
        if not there.is_dir() and there != path:
            return ConfigError("url", f"{there} is no folder: name another")
        if not os.access(there, os.W_OK | os.X_OK if there.is_dir() else os.W_OK):
            return ConfigError("url", f"{there} cannot be written to: make it writable, or name another folder")
    except OSError as other:
        error = other
    problem = getattr(error, "strerror", None) or " ".join(str(error).split())
    return StoreError(where, f"{path}: {problem}")
