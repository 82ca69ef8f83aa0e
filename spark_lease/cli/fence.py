"""`spark-lease fence`: chooses the tables, of a database or of Delta, that only a lease's master may write."""

import argparse
import contextlib
import functools
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..config.settings import Config
from ..config.urls import redacted
from ..errors import ConfigError, SparkLeaseError, StoreError
from ..fencing.delta.fence import as_hadoop, has_table, newer_than, newest_of, property_of, shown, why_never_claimed
from ..fencing.delta.tables import forget_table, note_table, noted_tables
from ..fencing.sql import trigger_sql, triggers
from ..fencing.sql.claim import FenceTable
from ..fencing.sql.databases import open_database
from ..fencing.sql.tables import FENCE_TABLES, FENCED
from ..logs import say
from ..monitoring.observer import HELD, LeaseObserver
from ..stores.folders.error_text import error_text, secrets_of
from ..system.call_timeout import CallTimeout
from .settings import need_name, resolved
from .table import print_table

_T = TypeVar("_T")
_STATES = {None: "unknown", 0: "not claimed yet"}


def fence(arguments: argparse.Namespace) -> int:
    config = resolved(arguments).config
    if arguments.action in ("add", "drop") and not arguments.tables:
        raise ConfigError("table", f"which table? spark-lease fence {arguments.action} --on TABLE")
    if arguments.json and arguments.action != "list":
        raise ConfigError("--json", f"fence {arguments.action} has none: fence list --json shows what is fenced")
    if arguments.action in ("add", "forget"):
        need_name(config.name)
    return _ACTIONS[arguments.action](arguments, config)


def _add(arguments: argparse.Namespace, config: Config) -> int:
    if arguments.print_sql and (paths := _paths(arguments)):
        raise ConfigError("on", f"{paths[0]} is a Delta table, which no SQL fences: leave out --print-sql")
    for path in _paths(arguments):
        if problem := why_never_claimed(path):
            raise ConfigError("on", f"{shown(path)}: {problem}")
        added = note_table(config, path)
        print(f"{shown(path)} is guarded by the lease {config.name}" + ("" if added else " already"))
        look = functools.partial(has_table, path, config.storage_options, timeout=config.attempt_timeout)
        if _looked(config, path, look) is False:
            forget = f"spark-lease fence forget --lease {shlex.quote(config.name)} --on {shlex.quote(shown(path))}"
            message = f"there is no table yet: it is fenced once there is one. If the path is wrong: {forget}"
            say(f"{shown(path)}: {message}")
    if not (names := _names(arguments)):
        return 0
    _refuse_own(names, config)
    with open_database(_of_postgres(config)) as engine:
        for table in names:
            options = {"allow_unleased": arguments.allow_unleased}
            if arguments.print_sql:
                statements = trigger_sql.statements_of(table, config.name, **options)
                print(*(f"{each};" for each in statements), sep="\n")
                continue
            triggers.add(engine, table, config.name, **options)
            print(f"{table} is written only under the lease {config.name}")
    return 0


def _refuse_own(names: Sequence[str], config: Config) -> None:
    """Refuse to fence the lease's own tables: a fence would end every master that writes to them."""
    own = {config.table, config.record_table, config.notes_table, *(each.name for each in (*FENCE_TABLES, FENCED))}
    for name in names:
        if trigger_sql.parts(name)[-1:] in [trigger_sql.parts(each)[-1:] for each in own]:
            raise ConfigError(
                "on", f"{name} is a table of spark_lease itself: fence the tables that your jobs write to"
            )


def _drop(arguments: argparse.Namespace, config: Config) -> int:
    if paths := _paths(arguments):
        raise ConfigError("on", f"{paths[0]} is a Delta table: spark-lease fence forget --lease NAME --on {paths[0]}")
    with open_database(_of_postgres(config)) as engine:
        for table in arguments.tables:
            was = triggers.drop(engine, table, config.name)
            print(f"every session may write to {table} again" if was else f"{table} was not fenced, nothing to do")
    return 0


_ADVICE = {
    "lost": "{table}, or a partition of it, was made without its fence: the next master fences it again, or now: {add}",
    "disabled": "any session may write to {table}, its trigger was switched off: no master mends that: {add}",
    "dropped": "there is no {table}: once it is made again it is fenced again. If it is gone for good: "
    "spark-lease fence drop --on {table}",
}


def _list(arguments: argparse.Namespace, config: Config) -> int:
    rows: list[dict[str, object]] = []
    if not _is_postgres(config):
        need_name(config.name)
        rows = _delta_rows(config)
    elif config.name:
        with contextlib.suppress(ConfigError):  # no table has been noted yet
            rows = _delta_rows(config)
    rows += _postgres_rows(config) if _is_postgres(config) else []
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        cells = [["?" if value is None else str(value) for value in row.values()] for row in rows]
        print_table([["TABLE", "LEASE", "EPOCH", "ALLOW UNLEASED", "STATE"], *cells])
        for row in rows:
            if advice := _ADVICE.get(str(row["state"])):
                lease, table = (shlex.quote(str(row[key])) for key in ("lease", "table"))
                add = f"spark-lease fence add --lease {lease} --on {table}"
                say(advice.format(table=table, add=add))
    else:
        by = f" by the lease {config.name}" if config.name else ""
        print(f"no table is fenced{by} in {redacted(config.fence_url or config.url)}")
    return 0


def _delta_rows(config: Config) -> list[dict[str, object]]:
    found = noted_tables(replace(config, create_table="false"))
    claimed = {table: _claimed(config, table) for table in found}
    return [_row(table, config.name, epoch, False, _STATES.get(epoch, "fenced")) for table, epoch in claimed.items()]


def _row(table: str, lease: str, epoch: int | None, allow_unleased: bool, state: str) -> dict[str, object]:
    return {"table": shown(table), "lease": lease, "epoch": epoch, "allow_unleased": allow_unleased, "state": state}


def _claimed(config: Config, table: str) -> int | None:
    """The epoch under which a Delta table is claimed now; 0: no master has claimed it; None: it cannot be read."""

    def look() -> int:
        newest = newest_of(config.shared_name, table, config.storage_options, timeout=config.attempt_timeout)
        return newer_than(config.shared_name, 0, table, newest)

    return _looked(config, table, look)


def _looked(config: Config, table: str, look: Callable[[], _T]) -> _T | None:
    """The result of `look` at a Delta table; if it cannot be read, None after a line that says why."""
    looking = CallTimeout(shown(table), timeout=config.attempt_timeout)
    try:
        return looking.call(look)
    except Exception as error:  # an object store may raise anything
        secrets = secrets_of(config.storage_options)
        reason = error.problem if isinstance(error, StoreError) else error_text(error, secrets)
        say(f"{shown(table)} cannot be read: {reason}")
        return None
    finally:
        looking.close()


def _postgres_rows(config: Config) -> list[dict[str, object]]:
    with open_database(config) as engine:
        fence_table = FenceTable(engine, timeout=config.attempt_timeout)
        tables = triggers.fenced_tables(engine, config.name)
        epochs = {name: fence_table.newest(name) for name in {each.lease for each in tables}}
    return [_row(each.name, each.lease, epochs[each.lease], each.allow_unleased, each.state) for each in tables]


def _forget(arguments: argparse.Namespace, config: Config) -> int:
    if names := _names(arguments):
        advice = (
            f"{names[0]} is no Delta table: spark-lease fence drop --on {names[0]}, or for a folder here ./{names[0]}"
        )
        raise ConfigError("on", advice)
    if paths := _paths(arguments):
        gone = [path for path in paths if forget_table(config, path)]
        for path in paths:
            print(f"{shown(path)} {'is no longer guarded' if path in gone else 'was not guarded, nothing to do'}")
            if path in gone and _claimed(config, path):
                unset = f"ALTER TABLE delta.`{shown(path)}` UNSET TBLPROPERTIES ('{property_of(config.shared_name)}')"
                print(f"the property of its claims stays there; Spark removes it: {unset}")
        return int(not gone)
    _refuse_if_held(config)
    with open_database(config) as engine:
        before = FenceTable(engine, timeout=config.attempt_timeout).forget(config.name)
    if before:
        print(f"the fence of {config.name} was at epoch {before} and is cleared; the next master claims it anew")
    else:
        say(f"there is no fence of {config.name}, nothing to do")
    return int(not before)


def _refuse_if_held(config: Config) -> None:
    """Refuse to clear the fence of a running master: it would be refused its own writes."""
    try:
        seen = LeaseObserver(replace(config, create_table="false")).look()
    except ConfigError as error:  # the leases are in another store, or their table was lost
        say(f"cannot see whether {config.name} is held: {error}")
        return
    if seen.state == HELD and seen.expires_in is None:  # the store has no clock, so that one look cannot tell
        lease = shlex.quote(config.name)
        raise SparkLeaseError(
            f"{config.name} may be held by {seen.holder}: nothing was changed. See spark-lease status --watch {lease}; "
            f"spark-lease release {lease} --force frees it if its holder is gone"
        )
    if seen.state == HELD:
        raise SparkLeaseError(
            f"{config.name} is held by {seen.holder}, whose writes would be refused: nothing was changed. Clear its "
            "fence while no master is at work"
        )


def _is_postgres(config: Config) -> bool:
    return (config.fence_url or config.url).startswith("postgresql")


def _of_postgres(config: Config) -> Config:
    if not _is_postgres(config):
        raise ConfigError(
            "fence_url", "fenced tables are PostgreSQL's: give --fence-url postgresql://user@host/database"
        )
    return config


def _paths(arguments: argparse.Namespace) -> list[str]:
    """The Delta tables among the arguments: a table name in a database has no slash."""
    return [as_hadoop(each) for each in arguments.tables if "/" in each]


def _names(arguments: argparse.Namespace) -> list[str]:
    return [each for each in arguments.tables if "/" not in each]


_ACTIONS = {"add": _add, "drop": _drop, "list": _list, "forget": _forget}
