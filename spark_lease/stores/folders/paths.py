"""What the folder of a lease is called, below the folder that a URL names, and how a file gets there."""

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError

_LONGEST = 200


def folder_of(url: str) -> Path:
    """Raises ConfigError if it is none of this machine."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_path = path.startswith("/") and path.strip("/") and "\0" not in path
    if parts.netloc or not is_path or parts.query or parts.fragment:
        raise ConfigError("url", f"{redacted(url)!r} is no folder of this machine: {parts.scheme}:///path/to/leases")
    return Path(path)


def spelled(name: str) -> str:
    """What the folder of lease `name` is called, also in an object store. Raises ConfigError if that is too long.

    No % and no ~, which delta-rs and obstore quote or unquote once more, and nothing that Delta hides.
    """
    folder = quote(name, safe="").replace("~", "%7E").replace("%", "!")
    if len(folder) > _LONGEST:
        raise ConfigError("name", f"{name!r} is too long for a folder of its own: shorten it")
    return f"!{ord(folder[0]):02X}{folder[1:]}" if folder.startswith((".", "_")) else folder


def meant(folder: str) -> str:
    """The name of the lease that a folder is for."""
    return unquote(folder.replace("!", "%"))


def version_file(version: int) -> str:
    """In a table's log, and of a record that is a file."""
    return f"{version:020}.json"


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


def refuse_dangling(path: Path) -> None:
    """Raise ConfigError if `path` leads over a link to what is not there; OSError if that cannot be seen."""
    there = next(each for each in [path, *path.parents] if each.exists() or each.is_symlink())
    if not there.exists():
        raise ConfigError("url", f"{there} is a link to {os.readlink(there)}, which is not there: is it mounted?")


def refusal(where: str, path: Path, error: Exception) -> SparkLeaseError:
    """What to raise for an error of the file system at `path`."""
    try:
        refuse_dangling(path)
        there = next(each for each in [path, *path.parents] if each.exists())
        if not there.is_dir() and there != path:
            return ConfigError("url", f"{there} is no folder: name another")
        if not os.access(there, os.W_OK | os.X_OK if there.is_dir() else os.W_OK):
            return ConfigError("url", f"{there} cannot be written to: make it writable, or name another folder")
    except ConfigError as dangling:
        return dangling
    except OSError as other:
        error = other
    problem = getattr(error, "strerror", None) or " ".join(str(error).split())
    return StoreError(where, f"{path}: {problem}")
