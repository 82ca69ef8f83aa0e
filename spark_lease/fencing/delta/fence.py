"""The fence of a Delta table: a table property with the newest epoch that has claimed it.

A claim is a commit of that property and of nothing else (`log.py`). It conflicts with every transaction under way, in
any engine (Delta protocol, "Change Metadata"; ConflictChecker.checkNoMetadataUpdates). A later transaction has the
property in its own snapshot, where `spark/delta_observer.py` checks it. So check and commit are one atomic step, and
the job itself does nothing for it.

The fence does not stop the creation of a table, which has no property yet, nor writers that do not check it, such as a
Spark without the hook that begins after the claim.
"""

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...clock import Clock
from ...config.urls import has_password, redacted
from ...errors import ConfigError, Fenced, FenceUnreachable, SparkLeaseError
from ...stores.folders.error_text import error_text, secrets_of
from .folders import BUCKET, LocalFolder
from .log import Log, State

_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
_TRIES = 6
"""Errors in a row, with growing pauses, after which retrying will not help: some three seconds."""
_NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a claim: `epoch` of `holder`, under the property of lease `name`."""

    name: str
    epoch: int
    holder: str
    options: Mapping[str, str] = field(default_factory=dict)
    """The options for an object store that are not in the environment."""


def property_of(name: str) -> str:
    """The table property that keeps the newest epoch of lease `name`: two leases may share a table."""
    return f"spark_lease.epoch.{name}"


def newer_than(name: str, epoch: int, table: str, newest: str | None) -> int:
    """The epoch under which the table has been claimed, if it is newer than `epoch`, else 0. Raises ConfigError."""
    if newest is None:
        return 0
    if not re.fullmatch(r"\d{1,19}", newest):
        raise ConfigError(
            "fence", f"{table} has {property_of(name)} = {newest!r}, which is not an epoch: {_unset(name)}"
        )
    return int(newest) if int(newest) > epoch else 0


def newest_of(name: str, table: str, options: Mapping[str, str], *, timeout: float) -> str | None:
    """The current property of lease `name` in the table. Raises what its store raises. A request to an object store
    takes at most `timeout` seconds; a file system may hang for longer."""
    there = _log_of(table, options, timeout).newest()
    return None if there is None else there.properties.get(property_of(name))


def has_table(table: str, options: Mapping[str, str], *, timeout: float) -> bool:
    """True if there is a Delta table at path or URL `table`. Raises, and waits, as `newest_of` does."""
    return _log_of(table, options, timeout).newest() is not None


def claim(wanted: Claim, table: str, *, clock: Clock, timeout: float) -> bool:
    """Raise the epoch of the Delta table at path or URL `table`; False if there is no such table, not even a begun one.

    May be repeated: it finds a claim whose answer was lost. Raises Fenced if the table has a newer epoch, ConfigError,
    ModuleNotFoundError, FenceUnreachable if the claim failed, or took longer than `timeout` seconds. A file system or
    an object store may hang beyond that: `claims.py` claims in a process of its own.
    """
    end, errors = clock.now() + timeout, 0
    while clock.now() < end:
        try:
            if (done := _claim_once(wanted, table, timeout)) is not None:
                return done
            errors = 0
        except (SparkLeaseError, ModuleNotFoundError):
            raise
        except Exception as error:  # an object store raises anything: the next look decides
            errors += 1
            if errors >= _TRIES:
                message = error_text(error, secrets_of(wanted.options))
                raise FenceUnreachable(table, f"cannot be claimed: {message}") from None
        clock.wait(_NEVER, min(_PAUSE * 4**errors, _LONGEST_PAUSE))
    raise FenceUnreachable(table, f"cannot be claimed: others kept writing to it for {timeout:g} s")


def _claim_once(wanted: Claim, table: str, timeout: float) -> bool | None:
    """True once the table is claimed, False if there is none, None if the caller must look again."""
    log, key = _log_of(table, wanted.options, timeout), property_of(wanted.name)
    there = log.newest()
    if there is None:
        # A former master may be frozen while it makes the table: thawed, it would replace our first version.
        return False if not log.drop_first() else None if log.newest() else True
    newest = there.properties.get(key)
    if newer := newer_than(wanted.name, wanted.epoch, table, newest):
        raise Fenced(wanted.name, table, wanted.epoch, newer, _advice(wanted.name))
    if _is_claimed(there, key, wanted):
        # A former master may be frozen between its look for that version and its rename: thawed, it would replace the
        # claim by its own commit. If it has done so by now, the next look does not find the claim.
        return True if not log.drop_late(there) or _is_claimed(log.newest(), key, wanted) else None
    claimed = {"lease": wanted.name, "epoch": wanted.epoch, "holder": wanted.holder}
    log.set_property(there, key, str(wanted.epoch), user_metadata=claimed)
    return None  # Made, or another commit was faster, or its log was cleaned up meanwhile: the next look tells which.


def _is_claimed(there: State | None, key: str, wanted: Claim) -> bool:
    return there is not None and there.properties.get(key) == str(wanted.epoch)


def _log_of(table: str, options: Mapping[str, str], timeout: float) -> Log:
    path = local_path(table)
    if path is not None:
        return Log(table, LocalFolder(path))
    if problem := why_never_claimed(table):
        raise FenceUnreachable(table, problem)
    from .bucket import ObjectFolder  # heavy, and most tables are not in an object store

    return Log(table, ObjectFolder(address(table), options, timeout))


def why_never_claimed(table: str) -> str:
    """The reason why `table` can never be claimed, whatever is stored there; empty if there is none."""
    if local_path(table) is not None:
        return ""
    if has_password(table):
        return "there is a password in this URL: give it by storage_options"
    if not BUCKET.match(address(table)):
        return "cannot be claimed: only folders of this machine and s3, gs, az, abfs, abfss are"
    return ""


def shown(table: str) -> str:
    """`table` without a password, which an old note may have."""
    return table if local_path(table) is not None else redacted(table)


def address(table: str) -> str:
    """The name in delta-rs of the table that Hadoop calls `table`: s3a:// and s3n:// are s3://, a path is a URL.

    Hadoop prints a path without escapes, and delta-rs decodes the escapes in a path.
    """
    path = local_path(table)
    return re.sub(r"^s3[an]://", "s3://", table) if path is None else path.as_uri()


def local_path(table: str) -> Path | None:
    """The local folder that `table` names; None if it names none. A relative path begins at this working folder."""
    if re.match(r"(?!file:)[A-Za-z][\w+.-]*:/", table):
        return None
    return Path(re.sub(r"^file:(//(?=/))?", "", table)).absolute()


def as_hadoop(table: str) -> str:
    """`table` as Spark notes it: a local folder is file:/path."""
    path = local_path(table)
    return table if path is None else f"file:{path}"


def _unset(name: str) -> str:
    return f"ALTER TABLE … UNSET TBLPROPERTIES ('{property_of(name)}')"


def _advice(name: str) -> str:
    return (
        "If no other master is at work, the lease's own record was lost or restored and its epochs began anew below "
        f"the table's: {_unset(name)}, once you are sure"
    )
