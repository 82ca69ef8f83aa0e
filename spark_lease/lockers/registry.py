"""Which store a URL means. Each is imported only when it is chosen, with what it needs."""

from __future__ import annotations

import importlib

from ..config import Config, redacted
from ..errors import ConfigError
from .base import LeaseStore

STORES = {
    "delta": "spark_lease.lockers.delta:DeltaStore",
    "postgresql": "spark_lease.lockers.sql:SqlStore",
    "sqlite": "spark_lease.lockers.sql:SqlStore",
}
EXTRAS = {"delta": "delta", "postgresql": "postgres"}
"""What has to be installed for it."""


def open_store(config: Config) -> LeaseStore:
    """The store of `config.url`, not connected yet. Raises ConfigError for a URL that nobody here knows."""
    scheme = config.url.partition(":")[0].partition("+")[0]
    if scheme not in STORES:
        known = ", ".join(f"{each}://" for each in STORES)
        raise ConfigError("url", f"{redacted(config.url)!r} names no lock store that is known here: {known}")
    module, _, name = STORES[scheme].partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "url", f"{scheme}:// needs {error.name}: pip install 'spark_lease[{EXTRAS[scheme]}]'"
        ) from error
    store: LeaseStore = kind(config)
    return store
