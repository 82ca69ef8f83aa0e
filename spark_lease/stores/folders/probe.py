"""Tests what a folder or an object store lets this user do, by a file beside the leases that is then removed."""

import contextlib
import fcntl
import os
import secrets

from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError
from .paths import folder_of, put_new, refusal, spelled


def exercise(config: Config) -> bool:
    """Write a file, which must be refused to a second writer, lock it, and remove it.

    False if there is no folder of all leases; a bucket is tested by writing. Raises StoreError and ConfigError.
    """
    if config.url.startswith("delta+"):
        from .object_store import ObjectFiles  # not needed for a folder of this machine

        ObjectFiles(config).check()
        return True
    root = folder_of(config.url)
    if not root.is_dir():
        return False
    probe = root / f".spark_lease-probe-{secrets.token_hex(8)}"  # no folder, and so no lease
    try:
        if not put_new(probe, b"1") or put_new(probe, b"2"):
            raise ConfigError("url", f"{root}: one file is put over another here: name another folder")
        fd = os.open(probe, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.closing(os.fdopen(fd)):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise refusal(redacted(config.url), probe, error) from error
    finally:
        probe.unlink(missing_ok=True)
    lease = root / spelled(config.name) if config.name else root
    for folder in (lease, lease / "_delta_log"):
        if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError("url", f"{folder} cannot be written to: make it writable for this user")
    return True
