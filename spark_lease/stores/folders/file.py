"""A lease store in a shared folder, and a lock of the operating system beside it: for sites that share files alone.

`file:///folder` holds a folder for each lease, `folder/NAME`, with its record as the last of some numbered files:
`00000000000000000012.json`. A write is put-if-absent of the next number (`paths.put_new`), by which a second writer
learns that it came too late.

The lock is flock(2) on `folder/NAME/lock`. On NFS, Linux makes it a lock of the server (since 2.6.12). It belongs to
the open file: two contenders of one process exclude each other, and a reader's close(2) does not drop it, as it would
with fcntl(2). It ends with the process. It is not trusted alone: a file server may lose it. A contender that finds it
free waits, as with every store without a clock, until the record has stayed unchanged for the duration that it names.
"""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...clock import utc_text, wall_time
from ...config.settings import Config
from ...config.urls import redacted
from ...election.record import LeaseRecord, Snapshot
from ...errors import ConfigError, RecordUnreadable, StoreError
from ...system.call_timeout import CallTimeout
from .files import LocalFiles
from .paths import folder_of, put_new, refusal, version_file

_KEPT = 3
"""How many of the last files stay: a reader may be about to open the one before the last."""
_TRIES = 20


class FileStore:
    """Implements `LeaseStore`. Raises ConfigError at once for a URL that cannot be used."""

    def __init__(self, config: Config) -> None:
        self.where = redacted(config.url)
        self._config, self.files = config, LocalFiles(config, folder_of(config.url))
        self._bounded = CallTimeout(self.where, timeout=config.attempt_timeout)
        self._seen: set[str] = set()

    def read(self, name: str) -> Snapshot:
        return self._bounded.call(lambda: Snapshot(self._read(name)))

    def swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        return self._bounded.call(lambda: self._swap(name, old, new))

    def names(self) -> Sequence[str]:
        return self._bounded.call(lambda: [each for each in self.files.names() if self._last(self.files.folder(each))])

    def close(self) -> None:
        self._bounded.close()

    def init(self) -> Sequence[str]:
        """Make the folder, and that of a given `name`; return what was made. Raises ConfigError, StoreError."""
        return self._bounded.call(self._init)

    def _init(self) -> list[str]:
        folder = self.files.folder(self._config.name) if self._config.name else self.files.root
        try:
            made = self.files.init()
            if not folder.is_dir():
                folder.mkdir()
                made.append(f"made {folder}")
        except OSError as error:
            raise refusal(self.where, folder, error) from error
        return made

    def _read(self, name: str) -> LeaseRecord | None:
        folder = self.files.folder(name)
        for _ in range(_TRIES):
            last = self._last(folder)
            if last is None:
                if name in self._seen:
                    raise RecordUnreadable(self.where, f"the record in {folder} is gone")
                self.files.refuse_missing()
                return None
            with contextlib.suppress(FileNotFoundError):  # it was the last when we looked: look again
                text = (folder / last).read_bytes()
                self._seen.add(name)
                return self._record(folder / last, text)
        raise StoreError(self.where, f"{folder} changes faster than it can be read")

    def _last(self, folder: Path) -> str | None:
        try:
            return max((each for each in os.listdir(folder) if _is_record(each)), default=None)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(self.where, folder, error) from error

    def _swap(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> LeaseRecord | None:
        if self._read(name) != old:
            return None
        epoch = new.epoch
        if old is None or epoch != old.epoch:  # larger also after the record was lost, as far as clocks agree
            epoch = max(epoch, round(wall_time() * 1000))
        stamp = (old.stamp or 0) + 1 if old else 1
        written = LeaseRecord(new.holder, epoch, new.duration, stamp, new.protection, new.directive)
        folder = self.files.folder(name)
        self.files.make(name)
        try:
            if not put_new(folder / version_file(stamp), self._text(name, written).encode()):
                return None
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EOPNOTSUPP) and error.filename2:
                raise ConfigError("url", f"{folder}: this file system has no hard links: name another") from error
            raise refusal(self.where, folder, error) from error
        self._seen.add(name)
        # If we were paused before the put, others may have gone far ahead and removed their old files: then we write
        # a number that no reader looks at. Only the last file counts.
        if self._last(folder) != version_file(stamp):
            return written if self._read(name) == written else None
        self._tidy(folder, stamp)
        return written

    @staticmethod
    def _tidy(folder: Path, stamp: int) -> None:
        with contextlib.suppress(OSError):
            for each in os.listdir(folder):
                if _is_record(each) and each <= version_file(stamp - _KEPT):
                    os.unlink(folder / each)

    def _text(self, name: str, record: LeaseRecord) -> str:
        expires = utc_text(wall_time() + record.duration) if record.holder else None
        fields: dict[str, Any] = {
            "lease": name,
            "holder": record.holder,
            "epoch": record.epoch,
            "duration": record.duration,
            "expires": expires,  # for people
            "protection": record.protection,
            "directive": record.directive,
        }
        return json.dumps(fields, indent=1) + "\n"

    def _record(self, path: Path, text: bytes) -> LeaseRecord:
        try:
            fields = json.loads(text)
            holder, epoch, duration = fields["holder"], fields["epoch"], fields["duration"]
            fits = (holder is None or (isinstance(holder, str) and holder)) and isinstance(epoch, int) and epoch >= 0
            if not (fits and isinstance(duration, (int, float)) and duration >= 0):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise RecordUnreadable(self.where, f"{path} is no record of a lease: correct it by hand") from None
        directive = fields.get("directive", fields.get("wish"))  # its earlier name
        protection = str(fields.get("protection") or "")
        return LeaseRecord(holder, epoch, float(duration), int(path.stem), protection, str(directive or ""))


class FileLock:
    """flock(2) on one file, for as long as the holder lives. Implements `Lock`."""

    def __init__(self, config: Config, root: Path | None = None) -> None:
        """The lock is in the folder of lease `config.name` below `root`, by default where its records are."""
        self._config, self._files = config, LocalFiles(config, root or folder_of(config.url))
        self._where, self._path = redacted(config.url), self._files.folder(config.name) / "lock"
        self._bounded = CallTimeout(self._where, timeout=config.attempt_timeout)
        self._fd = -1

    def try_lock(self) -> bool:
        return self._bounded.call(self._try_lock)

    def is_held(self) -> bool:
        return self._bounded.call(self._is_ours)

    def unlock(self) -> None:
        self._bounded.call(self._let_go)

    def close(self) -> None:
        self._bounded.close(last=self._let_go)

    def _try_lock(self) -> bool:
        if self._is_ours():
            return True
        self._let_go()
        self._files.make(self._config.name)
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise refusal(self._where, self._path, error) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise ConfigError("url", f"{self._path}: this file system has no locks: {error.strerror}") from error
            raise refusal(self._where, self._path, error) from error
        self._fd = fd
        return self._is_ours()

    def _is_ours(self) -> bool:
        """True if the file that is locked is still the one that others would lock."""
        if self._fd < 0:
            return False
        try:
            there, ours = os.stat(self._path), os.fstat(self._fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refusal(self._where, self._path, error) from error
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _let_go(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            # Not only closed: a forked child has the same open file, and with it the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _is_record(name: str) -> bool:
    return name.endswith(".json") and name[:-5].isdigit()
