"""What a folder, or an object store, lets this user do: found out by doing it beside the leases, and tidied up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from ...clock import Clock
from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError
from ...system.call_timeout import CallTimeout
from .paths import folder_of, named, put_new, refusal


class FolderProbe:
    """Each method takes no longer than `attempt_timeout`. Raises StoreError and ConfigError."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._where, self._config = redacted(config.url), config
        self._bounded = CallTimeout(self._where, timeout=config.attempt_timeout, clock=clock)

    def close(self) -> None:
        self._bounded.close()

    def exists(self) -> bool:
        """Whether the folder of all leases is there; of a bucket that is asked by writing."""
        return self._is_remote or self._bounded.call(self._root.is_dir)

    def exercise(self) -> None:
        """Write a file that the second of two writers is refused, lock it, and remove it."""
        self._bounded.call(self._put_twice_there if self._is_remote else self._put_twice_here)

    @property
    def _is_remote(self) -> bool:
        return self._config.url.startswith("delta+")

    @property
    def _root(self) -> Path:
        return folder_of(self._config.url, self._config.url.partition(":")[0])

    def _put_twice_there(self) -> None:
        from .object_store import ObjectFiles  # not needed for a folder of this machine

        ObjectFiles(self._config).check()

    def _put_twice_here(self) -> None:
        lease = named(self._root, self._config.name) if self._config.name else self._root
        probe = self._root / f".spark_lease-probe-{secrets.token_hex(8)}"  # no folder, and so no lease
        try:
            if not put_new(probe, b"1") or put_new(probe, b"2"):
                raise ConfigError("url", f"{self._root}: one file is put over another here: name another folder")
            fd = os.open(probe, os.O_RDWR | os.O_CLOEXEC)
            with contextlib.closing(os.fdopen(fd)):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise refusal(self._where, probe, error) from error
        finally:
            probe.unlink(missing_ok=True)
        for folder in (lease, lease / "_delta_log"):
            if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
                raise ConfigError("url", f"{folder} cannot be written to: make it writable for this user")
