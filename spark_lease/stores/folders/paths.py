"""Names the folder of a lease below the folder of a URL, and puts files into it."""

import os
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError

_LONGEST = 200


def folder_of(url: str) -> Path:
    """The folder that a URL names. Raises ConfigError if it is no folder of this machine."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_path = path.startswith("/") and path.strip("/") and "\0" not in path
    if parts.netloc or not is_path or parts.query or parts.fragment:
        raise ConfigError("url", f"{redacted(url)!r} is no folder of this machine: {parts.scheme}:///path/to/leases")
    return Path(path)


def spelled(name: str) -> str:
    """The name of the folder of lease `name`, also in an object store. Raises ConfigError if it is too long.

    It has no % and no ~, which delta-rs and obstore would quote or unquote again, and is no name that Delta hides.
    """
    folder = quote(name, safe="").replace("~", "%7E").replace("%", "!")
    if len(folder) > _LONGEST:
        raise ConfigError("name", f"{name!r} is too long for a folder of its own: shorten it")
    return f"!{ord(folder[0]):02X}{folder[1:]}" if folder.startswith((".", "_")) else folder


def meant(folder: str) -> str:
    """The name of the lease that has this folder: the reverse of `spelled`."""
    return unquote(folder.replace("!", "%"))


def version_file(version: int) -> str:
    """The name of a version in a table's log, and of a record that is a file."""
    return f"{version:020}.json"


def put_new(path: Path, data: bytes) -> bool:
    """Write a whole new file; False if it exists already. Durable once it returns. Raises OSError.

    Written under another name, synced, then linked by link(2): atomic on NFS too, and no reader ever sees half of it.
    """
    # Delta and our stores ignore names that begin with a dot. Two hosts may have processes with the same pid.
    draft = path.with_name(f".{os.getpid()}-{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            # On NFS the answer to a successful link(2) may be lost, and the repeated request find the file there.
            return os.stat(draft).st_nlink == 2
        sync(path.parent)
        return True
    finally:
        draft.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Make the list of files in a folder durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refuse_dangling(path: Path) -> None:
    """Raise ConfigError if `path` contains a link whose target is missing; OSError if that cannot be seen."""
    there = next(each for each in [path, *path.parents] if each.exists() or each.is_symlink())
    if not there.exists():
        raise ConfigError("url", f"{there} is a link to {os.readlink(there)}, which is not there: is it mounted?")


def refusal(where: str, path: Path, error: Exception) -> SparkLeaseError:
    """The error to raise for an error of the file system at `path`."""
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
