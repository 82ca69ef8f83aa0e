"""The fence of a Delta table: a property of the table that says up to which epoch it was claimed.

A claim is a commit of table properties. It is a conflict for every transaction that is under way, whoever's and by
whatever engine (Delta protocol, "Change Metadata"; ConflictChecker.checkNoMetadataUpdates), and what begins later has
the property in its own snapshot: `spark/delta_hook.py` looks at it there. So check and commit are one atomic step, and
nothing is asked of the job.

What it does not hold back: the creation of a table, which has no property yet; and writers that do not ask, such as a
Spark without the hook that begins after the claim.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from urllib.parse import unquote, urlsplit

from ..clock import Clock
from ..errors import ConfigError, SparkLeaseError, StoreError
from .base import Held, fenced

log = logging.getLogger(__name__)

_TRIES_IN_A_ROW = 5
_PAUSE = 0.02
_NEVER = threading.Event()


def property_of(name: str) -> str:
    """The table property that keeps the newest epoch of lease `name`: two leases may share a table."""
    return f"spark_lease.epoch.{name}"


def refuse_newer(lease: Held, table: str, newest: str | None) -> None:
    """Raise Fenced if the table has been claimed under a newer epoch than `lease`'s; ConfigError for what is none."""
    if newest is None:
        return
    if not re.fullmatch(r"\d{1,19}", newest):
        key = property_of(lease.name)
        raise ConfigError(
            "fence", f"{table} has {key} = {newest!r}, which no epoch is: ALTER TABLE … UNSET TBLPROPERTIES ('{key}')"
        )
    if int(newest) > lease.epoch:
        raise fenced(lease, table, int(newest))


def claim(lease: Held, table: str, *, clock: Clock, timeout: float) -> bool:
    """Raise the epoch of the Delta table at path or URL `table` to the lease's; False if there is no such table.

    May be repeated: a claim that was made, and whose answer was lost, is found. Raises Fenced if a newer epoch has it,
    LeaseLost, StoreError if it could not be made, or not within `timeout` seconds.
    """
    end, tries = clock.now() + timeout, 0
    while True:
        lease.check()
        try:
            done = _claim_once(lease, table)
        except SparkLeaseError:
            raise
        except Exception as error:  # delta-rs raises anything, and what it says of a commit proves nothing: look again
            tries += 1
            if tries >= _TRIES_IN_A_ROW or clock.now() >= end:
                raise StoreError(table, f"cannot be claimed: {' '.join(str(error).split())}") from error
            done = None
        if done is not None:
            return done
        if clock.now() >= end:
            raise StoreError(table, f"cannot be claimed: others kept writing to it for {timeout:g} s")
        clock.wait(_NEVER, _PAUSE)


def _claim_once(lease: Held, table: str) -> bool | None:
    """True once it is claimed, False if there is none, None if it has to be looked at again."""
    from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties  # heavy, and not everybody has Delta
    from deltalake.exceptions import CommitFailedError, TableNotFoundError

    url, key = address(table), property_of(lease.name)
    try:
        there = DeltaTable(url)
    except TableNotFoundError:
        return False
    newest = there.metadata().configuration.get(key)
    refuse_newer(lease, table, newest)
    if newest is not None and int(newest) == lease.epoch:
        return True
    said = {"lease": lease.name, "epoch": lease.epoch, "holder": lease.holder}  # for people who DESCRIBE HISTORY
    try:
        there.alter.set_table_properties(
            {key: str(lease.epoch)},
            raise_if_not_exists=False,
            # Without retries: else it would be put on top of a newer claim.
            commit_properties=CommitProperties(
                max_commit_retries=0, custom_metadata={"userMetadata": json.dumps(said)}
            ),
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
        )
    except CommitFailedError:  # somebody was faster: a writer, another claim, or this one before its answer was lost
        return None
    return None  # looked at once more: what is there now is what counts


def address(table: str) -> str:
    """What delta-rs calls the table that Hadoop calls `table`: file:/t is /t, s3a:// and s3n:// are s3://."""
    parts = urlsplit(table)
    if parts.scheme == "file" or not parts.scheme:
        return unquote(parts.path) if parts.scheme else table
    return re.sub(r"^s3[an]://", "s3://", table)
