"""`spark-lease status`, `init` and `config`: what asks or prepares the store and runs nothing."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace

from ..clock import BootClock, wall_time
from ..config.settings import SETTINGS, Config, shown
from ..config.urls import redacted
from ..election.directive import label_of
from ..election.journal_entries import KINDS
from ..election.ports import LeaseStore, Notes
from ..election.record import is_forced
from ..errors import ConfigError, RecordUnreadable, StoreError
from ..fencing.status import fences_of
from ..journal.runs import BEGUN, runs_of
from ..journal.standbys import standbys_of
from ..monitoring.history import Hold, holds_of, settled
from ..stores.registry import open_notes, open_store
from .look import HELD, Row, cell, look_at, moment
from .settings import name_of, names_of, resolved
from .table import print_pairs, print_table

NOTED = ("site", "fences", "standbys", "last_change")
_SELDOM = (*NOTED, "directive")
FEW = 20
"""Leases of which more than their records is told without being asked for them by name."""


def status(arguments: argparse.Namespace) -> int:
    """Exit code 1 if a lease that was asked for has no record, or one that cannot be read."""
    config = resolved(arguments).config
    rows = leases(config, arguments.leases)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif len(rows) == 1 and names_of(config, arguments.leases) and not arguments.wide:
        print_details(rows[0])
    elif rows:
        (print_wide if arguments.wide else print_leases)(rows)
    else:
        print(f"no lease was ever taken in {redacted(config.url)}")
    for row in rows:
        if problem := row.get("problem", row.get("note")):
            print(f"spark-lease: {problem}", file=sys.stderr)
    return int(any("problem" in row for row in rows))


def leases(config: Config, names: Sequence[str]) -> list[Row]:
    """What can be told of the leases `names`, or of the one that is set, or of all. Raises StoreError, ConfigError."""
    # It asks once: nothing is prepared, which a pooler that shares sessions would refuse.
    config = replace(config, create_table="false", notify=False)
    wanted = names_of(config, names)
    with closing(open_store(config)) as store:
        rows = [look_at(store, name, config) for name in wanted or store.names()]
        if wanted or len(rows) <= FEW:
            _add_notes(config, store, rows)
    return rows


def print_details(row: Row) -> None:
    """All that is known of one lease."""
    print_pairs([(key.replace("_", " "), text) for key in ("lease", "state", *HELD) if (text := cell(row[key]))])


def print_leases(rows: Sequence[Row]) -> None:
    """What fits a narrow terminal."""
    table = [["LEASE", "STATE", "HOLDER", "SINCE", "LEFT"]]
    for row in rows:
        state = "IN DOUBT" if row["in_doubt"] else row["state"]
        left = row["expires_in"]
        seconds = "" if left == "" else "?" if left is None else f"{left:.0f} s"
        table.append([row["lease"], state, label_of(row["holder"]), row["since"], seconds])
    print_table(table)
    for row in rows:
        if row["directive"]:
            print(f"{row['lease']}: {row['directive']}")


def print_wide(rows: Sequence[Row]) -> None:
    """Everything that is known of each."""
    empty = [key for key in _SELDOM if not any(row[key] for row in rows)]
    keys = [key for key in ("lease", "state", *HELD) if key not in empty]
    print_table([[key.upper().replace("_", " ") for key in keys], *([cell(row[key]) for key in keys] for row in rows)])


def _add_notes(config: Config, store: LeaseStore, rows: Sequence[Row]) -> None:
    """What stands beside the leases; nothing where the store keeps no notes."""
    with contextlib.suppress(ConfigError), closing(open_notes(config, BootClock())) as notes:
        for row in rows:
            try:
                add_notes(config, store, notes, [row])
            except StoreError as error:  # what stands beside a lease is not the lease
                row.setdefault("note", f"{row['lease']}: what is noted beside it cannot be read: {error}")


def add_notes(config: Config, store: LeaseStore, notes: Notes, rows: Sequence[Row]) -> None:
    """Add `NOTED` to the rows. Raises StoreError; ConfigError if the table of the notes is missing."""
    for row in rows:
        name = config.row_of(row["lease"])
        if row["state"] == "held" and not is_forced(row["holder"]):
            found = fences_of(notes, name, row["epoch"])
            row["fences"] = asdict(found) if found else {}
        waiting = standbys_of(notes, name, wall_time())
        row["standbys"] = [{**asdict(each), "at": moment(each.at), "since": moment(each.since)} for each in waiting]
        with contextlib.suppress(RecordUnreadable):  # `history` says what is wrong
            noted = notes.every(name, KINDS)
            holds = holds_of(row["lease"], noted, store.read(row["lease"]), where=store.where)
            # The row was read before: what has become of its own hold since is told with the next one.
            its_own = [hold for hold in holds if hold.epoch == row["epoch"] and row["state"] == "held"]
            row["last_change"] = _last_change([hold for hold in holds if hold not in its_own])
            row["site"] = its_own[0].site if its_own and its_own[0].holder == row["holder"] else ""


def _last_change(holds: Sequence[Hold]) -> str:
    """How the last hold that is over ended."""
    over = [hold for hold in holds if not hold.goes_on]
    if not over:
        return ""
    at = f"{moment(over[-1].end / 1000)}: " if over[-1].end is not None else ""
    return f"{at}{over[-1].ended_by}, {over[-1].holder}"


def runs(arguments: argparse.Namespace) -> int:
    """Exit code 1 if the lease has no runs, or is not there."""
    config = replace(resolved(arguments).config, create_table="false", notify=False)
    name = name_of(config, arguments.lease)
    with closing(open_notes(config, BootClock())) as notes, closing(open_store(config)) as store:
        noted = runs_of(notes, name)
        if any(run.outcome == BEGUN for run in noted):
            with contextlib.suppress(RecordUnreadable):  # `history` says what is wrong
                holds = holds_of(name, notes.every(config.row_of(name), KINDS), store.read(name), where=store.where)
                noted = settled(noted, holds)
        found = [asdict(run) for run in noted]
    why = "" if found else _why_no_runs(config, name)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif found:
        keys = ("key", "outcome", "epoch", "holder", "started", "finished", "application")
        print_table([[key.upper() for key in keys], *([_short(row[key]) for key in keys] for row in found)])
    else:
        print(f"spark-lease: {why}", file=sys.stderr)
    return int(not found)


def _why_no_runs(config: Config, name: str) -> str:
    with closing(open_store(config)) as store, contextlib.suppress(RecordUnreadable):
        if store.read(name).record is None:
            return f"{name}: there is no such lease"
    return f"{name} has no runs with a key"


def _short(value: object) -> str:
    """Times without what is less than a second."""
    return re.sub(r"(?<=:\d\d)\.\d+(?=Z?$)", "", str(value))


def init(arguments: argparse.Namespace) -> int:
    config = replace(resolved(arguments).config, create_table="true")
    with closing(open_store(config)) as store:
        if arguments.print_sql:
            for what, statements in _made_by(store, "init_statements")().items():
                print(f"-- {what}", *(f"{each};" for each in statements), sep="\n")
            return 0
        done = _made_by(store, "init")()
    print(*done or [f"{config.table} exists already, nothing to do"], sep="\n")
    return 0


def _made_by(store: LeaseStore, method: str):  # type: ignore[no-untyped-def]
    if not hasattr(store, method):
        raise ConfigError("url", f"{store.where} needs no preparation")
    return getattr(store, method)


def config(arguments: argparse.Namespace) -> int:
    settings = resolved(arguments)
    values = dict(shown(settings.config))
    if arguments.json:
        print(json.dumps({key: {"value": values[key], "from": settings.origins[key]} for key in SETTINGS}, indent=2))
    else:
        print_table([["SETTING", "VALUE", "FROM"], *([key, values[key], settings.origins[key]] for key in SETTINGS)])
    return 0
