"""Which store a URL means. Each is imported only when it is chosen, with what it needs.

Another package adds a scheme by an entry point in the group `spark_lease.stores`: the scheme is its name, and it gives
a callable that takes a Config and returns a LeaseStore. It cannot take the place of one that is here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata

from ..clock import Clock
from ..config.settings import Config
from ..config.urls import redacted
from ..election.ports import LeaseStore, Lock, Notes
from ..errors import ConfigError

GROUP = "spark_lease.stores"
STORES = {
    "delta": "spark_lease.stores.folders.delta:DeltaStore",
    "file": "spark_lease.stores.folders.file:FileStore",
    "mariadb": "spark_lease.stores.sql.store:SqlStore",
    "mysql": "spark_lease.stores.sql.store:SqlStore",
    "postgresql": "spark_lease.stores.sql.store:SqlStore",
    "sqlite": "spark_lease.stores.sql.store:SqlStore",
}
_SESSION = {"database": "spark_lease.stores.sql.row_lock:SessionLock"}
LOCKS = {
    "file": {"lease": "spark_lease.stores.folders.file:lock_of"},
    "mariadb": _SESSION,
    "mysql": _SESSION,
    "postgresql": _SESSION,
    "sqlite": {"database": "spark_lease.stores.sql.row_lock:lock_beside_sqlite"},
}
"""By scheme and `locker`."""
_SQL_NOTES, _FOLDER_NOTES = "spark_lease.stores.sql.notes:SqlNotes", "spark_lease.stores.folders.notes:FolderNotes"
NOTES = {
    "delta": _FOLDER_NOTES,
    "file": _FOLDER_NOTES,
    "mariadb": _SQL_NOTES,
    "mysql": _SQL_NOTES,
    "postgresql": _SQL_NOTES,
    "sqlite": _SQL_NOTES,
}
EXTRAS = {"delta": "delta", "postgresql": "postgres"}
"""What has to be installed for it."""

Opens = Callable[[Config], LeaseStore]


def open_store(config: Config) -> LeaseStore:
    """The store of `config.url`, not connected yet. Raises ConfigError for a URL of an unknown scheme."""
    scheme = _scheme(config)
    opens = _ours(scheme) if scheme in STORES else _theirs(scheme)
    if opens is None:
        known = ", ".join(f"{each}://" for each in [*STORES, *metadata.entry_points(group=GROUP).names])
        near = {"postgres": "postgresql", "jdbc": "postgresql", "s3": "delta+s3", "s3a": "delta+s3"}.get(scheme)
        problem = f"did you mean {near}://?" if near else f"known here: {known}"
        raise ConfigError("url", f"{redacted(config.url)!r} names no lease store; {problem}")
    return opens(config)


def open_lock(config: Config, clock: Clock) -> Lock | None:
    """What a holder keeps besides its record; None where the record is all. Raises ConfigError."""
    where = LOCKS.get(_scheme(config), {}).get(config.locker)
    if where is None:
        if config.locker == "database":
            raise ConfigError("locker", f'{redacted(config.url)!r} is no database: locker = "database" needs one')
        return None
    module, _, name = where.partition(":")
    opens: Callable[[Config, Clock], Lock] = getattr(importlib.import_module(module), name)
    return opens(config, clock)


def open_notes(config: Config, clock: Clock) -> Notes:
    """What is noted beside the leases of `config.url`; connects nowhere yet. Raises ConfigError."""
    scheme = _scheme(config)
    if scheme not in NOTES:
        raise ConfigError("url", f"{redacted(config.url)!r} keeps leases and nothing else beside them")
    module, _, name = NOTES[scheme].partition(":")
    with _as_extra(scheme):
        opens: Callable[[Config, Clock], Notes] = getattr(importlib.import_module(module), name)
        return opens(config, clock)


def _scheme(config: Config) -> str:
    """Raises ConfigError without a URL."""
    if not config.url:
        problem = "no lease store is named, and without a shared one each host would have a master of its own"
        how = "Give --url URL or SPARK_LEASE_URL (postgresql://user@host/database, say), or --local to try it out here"
        raise ConfigError("url", f"{problem}. {how}")
    return config.scheme


def _ours(scheme: str) -> Opens:
    module, _, name = STORES[scheme].partition(":")
    with _as_extra(scheme):
        opens: Opens = getattr(importlib.import_module(module), name)
    return opens


@contextmanager
def _as_extra(scheme: str) -> Iterator[None]:
    """Say what has to be installed where a package is missing. Raises ConfigError."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = f"pip install 'spark_lease[{EXTRAS[scheme]}]'" if scheme in EXTRAS else "install it"
        raise ConfigError("url", f"{scheme}:// needs {error.name}: {extra}") from error


def _theirs(scheme: str) -> Opens | None:
    for entry in metadata.entry_points(group=GROUP, name=scheme):
        try:
            opens: Opens = entry.load()
        except Exception as error:  # code of another package: any error
            raise ConfigError("url", f"{scheme}:// is {entry.value}, which cannot be loaded: {error}") from error
        return opens
    return None
