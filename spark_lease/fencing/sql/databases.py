"""Claims the configured database after a grant, before any guarded work runs.

Then no write of the former master can still be on its way into a table that is fenced there. Loads SQLAlchemy only if
there may be something to claim.
"""

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from ...clock import BootClock
from ...config.settings import Config
from ...config.urls import redacted
from ...election.ports import HeldLease
from ...errors import ConfigError, FenceUnreachable, SparkLeaseError, StoreError
from ...journal.patience import patiently
from ..refusal import fenced

log = logging.getLogger(__name__)


def claim_databases(config: Config, lease: HeldLease) -> bool:
    """Claim the database of `fence_url`; by default the lease store itself, if it is PostgreSQL and has a fence. False
    if there is none to claim.

    Call it once the lease is held, before the work begins. An attempt takes `attempt_timeout` at most, and the time to
    connect. If a server is full, for example, it is repeated for `renew_deadline`, or until the lease is lost.
    Raises Fenced, LeaseLost, FenceUnreachable, ConfigError: then no work may begin.
    """
    if not _may_have_to_claim(config):
        return False
    every = config.retry_period / 5
    ask = functools.partial(_claim, config, lease)
    return patiently(ask, BootClock(), timeout=config.renew_deadline, every=every, is_final=_is_final)


def _claim(config: Config, lease: HeldLease) -> bool:
    from .claim import FenceTable, claim

    lease.check()
    with open_database(config) as engine:
        timeout = config.attempt_timeout
        try:
            if not config.fence_url and not FenceTable(engine, timeout=timeout).has_fence(lease.name):
                return False
            claim(lease, engine, timeout=timeout)
        except FenceUnreachable as error:
            log.warning("%s: no work begins, the database is not claimed yet: %s", lease.name, error)
            raise
    return True


def _is_final(error: StoreError) -> bool:
    return not (isinstance(error, FenceUnreachable) and error.may_pass)


def is_unfenced(config: Config, session: Callable[[], AbstractContextManager[Any]]) -> bool:
    """True if there is certainly nothing to claim. `session` opens a session of the lease store. Never raises."""
    if not _may_have_to_claim(config):
        return True
    if config.fence_url:
        return False
    from .search_path import is_without_any_fence

    try:
        with session() as connection:
            return is_without_any_fence(connection)
    except Exception as error:  # any error: the claim asks again, in a session of its own
        log.debug("%s: cannot look for a fence: %s", config.name, type(error).__name__)
        return False


def prepare(config: Config) -> None:
    """Import what a claim needs, while another may still be master."""
    if _may_have_to_claim(config):
        importlib.import_module(f"{__package__}.claim")


def _may_have_to_claim(config: Config) -> bool:
    return config.enabled and (bool(config.fence_url) or config.url.startswith("postgresql"))


def look_for_a_newer_claim(config: Config, lease: HeldLease) -> None:
    """Lose the lease if there is a newer claim. Call it if guarded work failed and its database was claimed.

    Every driver reports the refusal of a fenced table in its own words, so this asks the fence instead. Never raises;
    takes `attempt_timeout` at most, and the time to connect.
    """
    from .claim import FenceTable

    try:
        with open_database(config) as engine:
            newest = FenceTable(engine, timeout=config.attempt_timeout).newest(lease.name)
    except SparkLeaseError as error:
        log.debug("%s: cannot check whether the work failed because of the fence: %s", lease.name, error)
        return
    if newest > lease.epoch:
        fenced(lease, redacted(config.fence_url or config.url), newest)


@contextlib.contextmanager
def open_database(config: Config) -> Iterator[Any]:
    """An Engine for the database with the fences, on which every wait ends. Raises ConfigError."""
    from ...database.connections import SocketWatchdog, make_engine

    if config.fence_url:
        config = replace(config, url=config.fence_url, password=config.fence_password)
    cut_off = SocketWatchdog(config.attempt_timeout)
    try:
        yield make_engine(config, cut_off)
    except ConfigError as error:
        raise ConfigError("fence_url" if error.key == "url" else error.key, error.problem) from error
    finally:
        cut_off.disarm()
        cut_off.close()
