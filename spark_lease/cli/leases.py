"""Reads and prints what is known of leases, with their notes."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, replace

from ..clock import wall_time
from ..config.settings import Config
from ..election.directive import label_of
from ..election.journal_entries import KINDS
from ..election.ports import LeaseStore, Notes
from ..election.record import is_forced
from ..errors import ConfigError, RecordUnreadable, StoreError
from ..fencing.status import fences_of
from ..journal.standbys import standbys_of
from ..monitoring.history import Hold, holds_of
from ..stores.registry import open_notes, open_store
from .look import HELD, Row, cell, look_at, moment
from .settings import names_of
from .table import print_table

NOTED = ("site", "fences", "standbys", "last_change")
_SELDOM = (*NOTED, "directive")
FEW = 20
"""Maximum number of leases whose notes are shown too if they are not asked for by name."""


def leases(config: Config, names: Sequence[str]) -> list[Row]:
    """What is known of the leases `names`, or of the one that is set, or of all. Raises StoreError, ConfigError."""
    # One reading only: no statement is prepared, because a pooler that shares sessions would refuse it.
    config = replace(config, create_table="false", notify=False)
    wanted = names_of(config, names)
    with closing(open_store(config)) as store:
        rows = [look_at(store, name, config) for name in wanted or store.names()]
        if wanted or len(rows) <= FEW:
            _add_notes(config, store, rows)
    return rows


def printer(wanted: Sequence[str], *, wide: bool) -> Callable[[Sequence[Row]], None]:
    """The function that prints the leases `wanted`, or all of them if none is."""
    return print_wide if wide else print_details if len(wanted) == 1 else print_leases


def print_details(rows: Sequence[Row]) -> None:
    """Print all that is known of one lease."""
    known = {key.replace("_", " "): text for key in ("lease", "state", *HELD) if (text := cell(rows[0][key]))}
    if isinstance(rows[0]["expires_in"], float):
        known["expires in"] += " s"
    width = max(map(len, known))
    for key, text in known.items():
        print(f"{key:<{width}}  {text}".rstrip())


def print_leases(rows: Sequence[Row]) -> None:
    """Print a table that fits a narrow terminal."""
    table = [["LEASE", "STATE", "HOLDER", "SINCE", "LEFT"]]
    for row in rows:
        state = "IN DOUBT" if row["in_doubt"] else row["state"]
        if state == "free" and row["directive"]:
            state = row["directive"].partition(" ")[0]  # paused, reserved
        left = row["expires_in"]
        seconds = "" if left == "" else "?" if left is None else f"{left:.0f} s"
        table.append([row["lease"], state, label_of(row["holder"]), row["since"], seconds])
    print_table(table, whole=("LEASE", "STATE", "LEFT"), spare=("SINCE",))
    for row in rows:
        if row["directive"]:
            print(f"{row['lease']}: {row['directive']}")


def print_wide(rows: Sequence[Row]) -> None:
    """Print all that is known of each lease, in one wide table."""
    empty = [key for key in _SELDOM if not any(row[key] for row in rows)]
    keys = [key for key in ("lease", "state", *HELD) if key not in empty]
    print_table([[key.upper().replace("_", " ") for key in keys], *([cell(row[key]) for key in keys] for row in rows)])


def _add_notes(config: Config, store: LeaseStore, rows: Sequence[Row]) -> None:
    """Add to each row the notes beside its lease; nothing if the store keeps no notes."""
    with contextlib.suppress(ConfigError), closing(open_notes(config)) as notes:
        unanswered: StoreError | None = None
        for row in rows:
            try:
                if unanswered:  # the store would be waited for once more
                    raise unanswered
                add_notes(config, store, notes, row)
            except StoreError as error:  # what stands beside a lease is not the lease
                row.setdefault("note", f"{row['lease']}: what is noted beside it cannot be read: {error}")
                unanswered = None if isinstance(error, RecordUnreadable) else error


def add_notes(config: Config, store: LeaseStore, notes: Notes, row: Row) -> None:
    """Add `NOTED` to the row. Raises StoreError; ConfigError if the table of the notes is missing."""
    name = config.row_of(row["lease"])
    if row["state"] == "held" and not is_forced(row["holder"]):
        found = fences_of(notes, name, row["epoch"])
        row["fences"] = asdict(found) if found else {}
    masters = {row["holder"]}
    with contextlib.suppress(RecordUnreadable):  # `history` reports what is wrong
        noted = notes.every(name, KINDS)
        holds = holds_of(row["lease"], noted, store.read(row["lease"]), where=store.where)
        # The row was read earlier: the end of its own hold meanwhile is shown at the next look.
        its_own = [hold for hold in holds if hold.epoch == row["epoch"] and row["state"] == "held"]
        row["last_change"] = _last_change([hold for hold in holds if hold not in its_own])
        row["site"] = its_own[0].site if its_own and its_own[0].holder == row["holder"] else ""
        masters |= {hold.holder for hold in holds}
    # A master's own note as a standby is removed soon after its grant; its hold may be over by then.
    waiting = [each for each in standbys_of(notes, name, wall_time()) if each.holder not in masters]
    row["standbys"] = [{**asdict(each), "at": moment(each.at), "since": moment(each.since)} for each in waiting]


def _last_change(holds: Sequence[Hold]) -> str:
    """How the last finished hold ended."""
    over = [hold for hold in holds if not hold.goes_on]
    if not over:
        return ""
    at = f"{'' if over[-1].ends_exactly else '≤ '}{moment(over[-1].end / 1000)}: " if over[-1].end is not None else ""
    return f"{at}{over[-1].ended_by}, {over[-1].holder}"
