"""Opens the store that a URL names. Each store, with the packages that it needs, is imported only when it is chosen.

Another package adds a scheme by an entry point in the group `spark_lease.stores`: the scheme is its name, and it loads
a callable that takes a Config and returns a LeaseStore. It cannot replace a scheme that is here.
"""

import importlib
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from typing import Any

from ..config.settings import Config
from ..config.urls import redacted
from ..election.ports import LeaseStore, Lock, Notes
from ..election.record import LeaseRecord
from ..errors import ConfigError

GROUP = "spark_lease.stores"
_SQL = ("mariadb", "mysql", "postgresql", "sqlite")
STORES = {
    "delta": "spark_lease.stores.folders.delta:DeltaStore",
    "file": "spark_lease.stores.folders.file:FileStore",
    **dict.fromkeys(_SQL, "spark_lease.stores.sql.store:SqlStore"),
}
LOCKS = {
    "file": {"lease": "spark_lease.stores.folders.file:FileLock"},
    **{scheme: {"database": "spark_lease.stores.sql.row_lock:SessionLock"} for scheme in _SQL},
    "sqlite": {"database": "spark_lease.stores.sql.row_lock:lock_beside_sqlite"},
}
"""By scheme and `locker`."""
NOTES = {
    **dict.fromkeys(("delta", "file"), "spark_lease.stores.folders.notes:FolderNotes"),
    **dict.fromkeys(_SQL, "spark_lease.stores.sql.notes:SqlNotes"),
}


def open_store(config: Config) -> LeaseStore:
    """The store of `config.url`, not connected yet. Raises ConfigError for a URL of an unknown scheme."""
    scheme = _scheme(config)
    if scheme in STORES:
        store: LeaseStore = _open(scheme, STORES[scheme], config)
        return store
    if opens := _theirs(scheme):
        return opens(config)
    known = ", ".join(f"{each}://" for each in [*STORES, *metadata.entry_points(group=GROUP).names])
    near = {"postgres": "postgresql", "jdbc": "postgresql", "s3": "delta+s3", "s3a": "delta+s3"}.get(scheme)
    problem = f"did you mean {near}://?" if near else f"known here: {known} and the word local"
    where = redacted(config.url)
    if where.startswith("/"):
        problem = f"did you mean sqlite:///{where}, or file://{where} for a shared folder?"
    raise ConfigError("url", f"{where!r} names no lease store; {problem}")


def open_lock(config: Config) -> Lock | None:
    """The lock that a holder keeps besides its record; None if the record is all. Raises ConfigError."""
    scheme = _scheme(config)
    if where := LOCKS.get(scheme, {}).get(config.locker):
        lock: Lock = _open(scheme, where, config)
        return lock
    if config.locker == "database":
        raise ConfigError("locker", f'{redacted(config.url)!r} is no database: locker = "database" needs one')
    return None


def open_notes(config: Config) -> Notes:
    """The notes beside the leases of `config.url`, not connected yet. Raises ConfigError."""
    scheme = _scheme(config)
    if scheme not in NOTES:
        raise ConfigError("url", f"{redacted(config.url)!r} stores leases only: no run keys, no history")
    notes: Notes = _open(scheme, NOTES[scheme], config)
    return notes


def note_beside(config: Config, kind: str, key: str, text: Callable[[LeaseRecord], str], *, advice: str = "") -> bool:
    """Add a note that `text` makes from the record, without holding the lease; False if the key exists.

    Raises StoreError; ConfigError, with `advice`, if the lease was never held: then it has no place for notes.
    """
    with closing(open_store(config)) as store, closing(open_notes(config)) as notes:
        record = store.read(config.name).record
        if record is None:
            raise ConfigError("name", f"{config.name} was never held{advice and f': {advice}'}")
        return notes.append(config.shared_name, kind, key, text(record))


def _scheme(config: Config) -> str:
    """The scheme of the URL. Raises ConfigError without a URL."""
    if not config.url:
        problem = "no lease store is named, and without a shared one each host would have a master of its own"
        how = "Give --url URL or SPARK_LEASE_URL (postgresql://user@host/database, say), or --local to try it out here"
        raise ConfigError("url", f"{problem}. {how}")
    return config.scheme


def _open(scheme: str, where: str, config: Config) -> Any:
    """Import and open. Raises ConfigError if a package is missing: it says what to install."""
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)(config)
    except ModuleNotFoundError as error:
        how = "pip install 'spark_lease[delta]'" if scheme == "delta" else "install it"
        raise ConfigError("url", f"{scheme}:// needs {error.name}: {how}") from error


def _theirs(scheme: str) -> Callable[[Config], LeaseStore] | None:
    for entry in metadata.entry_points(group=GROUP, name=scheme):
        try:
            opens: Callable[[Config], LeaseStore] = entry.load()
        except Exception as error:  # code of another package: any error
            raise ConfigError("url", f"{scheme}:// is {entry.value}, which cannot be loaded: {error}") from error
        return opens
    return None
