"""`spark-lease status`: who holds which lease, once, or live by --watch; without a terminal a line for each change.

--watch reads every `poll_period`, and spends at most a tenth of its time on that. One lease alone is watched by
notification if the store has that. Changes shorter than the period are missed. The notes of a lease are read when its
row has changed, and now and then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from ..clock import BootClock, Clock, wall_time
from ..config.settings import Config
from ..config.urls import redacted
from ..election.ports import LeaseStore, Notes, Notifies
from ..election.record import UnchangedSince
from ..errors import ConfigError, RecordUnreadable, StoreError
from ..logs import say
from ..monitoring.history import UNKNOWN
from ..stores.registry import open_notes, open_store
from .leases import FEW, NOTED, add_notes, leases, printer
from .look import HELD, Row, cell, described, for_programs, look_at, moment
from .settings import names_of, resolved

log = logging.getLogger(__name__)

_CLEAR = "\x1b[H\x1b[J"
_SHARE = 10
_NOTES_AGAIN, _NOTED_BY = 10.0, 1.0


def status(arguments: argparse.Namespace) -> int:
    """Print the leases; exit code 1 if a requested lease has no record, or one that cannot be read."""
    config = resolved(arguments).config
    if arguments.watch:
        return _watch(config, arguments.leases, as_json=arguments.json, wide=arguments.wide)
    rows = leases(config, arguments.leases)
    if arguments.json:
        print(json.dumps(for_programs(rows), indent=2))
    elif rows:
        printer(names_of(config, arguments.leases), wide=arguments.wide)(rows)
    else:
        print(f"no lease was ever taken in {redacted(config.url)}")
    for row in rows:
        if problem := row.get("problem", row.get("note")):
            say(problem)
    return int(any("problem" in row for row in rows))


def _watch(config: Config, names: Sequence[str], *, as_json: bool, wide: bool) -> int:
    """Show the leases until Ctrl-C (exit code 130). Exit code 1 at once if a requested lease does not exist."""
    config = replace(config, create_table="false")
    wanted = names_of(config, names)
    with closing(open_store(config)) as store, contextlib.ExitStack() as opened:
        notes = None
        with contextlib.suppress(ConfigError):  # a store without notes
            notes = opened.enter_context(closing(open_notes(config)))
        watched = Watched(store, wanted, config, BootClock(), notes)
        rows = watched.look()
        if missing := [row["problem"] for row in rows if row["lease"] in wanted and row["state"] == "unknown"]:
            for each in missing:
                say(each)
            return 1
        show = (
            _screen(config, printer(wanted, wide=wide))
            if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not as_json
            else Lines(as_json=as_json)
        )
        while True:
            show(rows)
            watched.wait()
            rows = watched.try_look()


class Watched:
    """Watches some leases of a store, or all of them if none is `wanted`."""

    def __init__(
        self, store: LeaseStore, wanted: Sequence[str], config: Config, clock: Clock, notes: Notes | None = None
    ) -> None:
        self._store, self._wanted, self._config, self._clock, self._notes = store, wanted, config, clock, notes
        self._standstills: dict[str, UnchangedSince] = {}
        self._noted: dict[str, _Noted] = {}
        self._rows: list[Row] = []
        self._took = 0.0

    def look(self) -> list[Row]:
        """Read a row for each lease. Raises StoreError."""
        began = self._clock.now()
        self._rows = [self._look(name) for name in self._wanted or self._store.names()]
        self._took = self._clock.now() - began
        if self._notes:
            self._add_notes(self._notes, self._rows)
        return self._rows

    def try_look(self) -> list[Row]:
        """As `look`. If the store does not answer, or is gone, the rows say so."""
        try:
            return self.look()
        except (StoreError, ConfigError) as error:
            nothing = {"expires_in": None, "in_doubt": None, "note": "", "problem": str(error)}
            blank = dict.fromkeys(HELD, "") | {"state": "unreachable", "standbys": []} | nothing
            return [row | blank | {"epoch": row["epoch"]} for row in self._rows or [{"lease": "", "epoch": ""}]]

    def wait(self) -> None:
        """Wait until another look is useful."""
        pause = max(self._config.poll_period, self._took * (_SHARE - 1))
        alone = self._wanted[0] if len(self._wanted) == 1 else ""
        told = alone and isinstance(self._store, Notifies) and self._store.await_release(alone, pause, pause)
        if not told:
            self._clock.wait(threading.Event(), pause)

    def _look(self, name: str) -> Row:
        try:
            seen = self._store.read(name)
        except RecordUnreadable:
            return look_at(self._store, name, self._config)
        is_first = name not in self._standstills
        still_for = self._standstills.setdefault(name, UnchangedSince()).still_for(seen.record, self._clock.now())
        seen_for = None if is_first else still_for
        return described(self._store.where, name, seen, self._config, still_for=seen_for)

    def _add_notes(self, notes: Notes, rows: Sequence[Row]) -> None:
        """Add to each row its notes. Reads those of the rows that have changed, else of the one whose turn it is."""
        now = self._clock.now()
        for row in rows:
            known, is_now = self._noted.get(row["lease"]), (row["state"], row["holder"], row["epoch"])
            if known is None or known.row != is_now:
                self._noted[row["lease"]] = _Noted(is_now, since=now)
        if self._wanted or len(rows) <= FEW:
            changed = [row for row in rows if self._noted[row["lease"]].is_new]
            others = [row for row in rows if now - self._noted[row["lease"]].looked >= _NOTES_AGAIN]
            others.sort(key=lambda row: self._noted[row["lease"]].looked)
            for row in changed or others[:1]:
                if not self._look_up(notes, row, self._noted[row["lease"]]):
                    break  # the store would not answer for the others either, and each would wait
        for row in rows:
            row |= self._noted[row["lease"]].told

    def _look_up(self, notes: Notes, row: Row, known: _Noted) -> bool:
        """Read the notes of one lease; False if the store does not answer."""
        known.looked = self._clock.now()
        try:
            add_notes(self._config, self._store, notes, row)
        except (ConfigError, StoreError) as error:  # an unreadable note does not make the lease unreadable
            log.debug("%s: its notes cannot be read: %s", row["lease"], error)
            return isinstance(error, RecordUnreadable)
        if known.is_new and f": {UNKNOWN}, " in row["last_change"]:
            row["last_change"] = ""
        known.told = {key: row[key] for key in NOTED}
        return True


@dataclass
class _Noted:
    """The notes of a lease, and when they were `looked` at, while its row was `row`."""

    row: tuple[object, ...]
    since: float
    looked: float = -math.inf
    told: Row = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """True while it must be read again: in a folder a journal entry is written right after the change."""
        return self.looked - self.since < _NOTED_BY


def _screen(config: Config, print_rows: Callable[[Sequence[Row]], None]) -> Callable[[Sequence[Row]], None]:
    def show(rows: Sequence[Row]) -> None:
        print(f"{_CLEAR}{moment(wall_time())}  {redacted(config.url)}  (Ctrl-C ends)\n")
        if rows:
            print_rows(rows)
        for row in rows:
            if problem := row.get("problem") or row.get("note"):
                print(f"\n{problem}")
        sys.stdout.flush()

    return show


class Lines:
    """Prints one line for each lease that has changed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, Row] = {}

    def __call__(self, rows: Sequence[Row]) -> None:
        for row in rows:
            was = self._known.get(row["lease"])
            if was and _sight(was) == _sight(row):
                continue
            told = {"at": moment(wall_time())} | row | {"was": was["state"] if was else None}
            print(json.dumps(for_programs(told)) if self._as_json else _line(told, was), flush=True)
        self._known = {row["lease"]: row for row in rows}


def _sight(row: Row) -> list[object]:
    """The values whose change is worth a line."""
    # "Unknown" and "no" count as equal: neither is a reason for a line.
    told = ("state", "holder", "epoch", "protection", "directive", "site", "last_change")
    return [bool(row["in_doubt"]), cell(row["standbys"]), *(row[key] for key in told)]


def _line(row: Row, was: Row | None) -> str:
    parts = [f"{row['at']}  {row['lease'] or 'all leases'}: {row['state']}"]
    if row["holder"]:
        parts.append(f"by {row['holder']}, epoch {row['epoch']}")
    if row["site"]:
        parts.append(f"site {row['site']}")
    if row["in_doubt"]:
        parts.append("IN DOUBT")
    elif was and was["in_doubt"] and row["state"] == "held":
        parts.append("certain")
    if row["state"] == "held" and row["expires_in"] is not None:
        parts.append(f"{row['expires_in']} s left")
    if row["directive"]:
        parts.append(row["directive"])
    if row["standbys"]:
        parts.append(f"standing by: {cell(row['standbys'])}")
    if row["last_change"] and not (was and was["last_change"] == row["last_change"]):
        parts.append(f"last change {row['last_change']}")
    return ", ".join(parts) + (f": {row['problem']}" if row.get("problem") else "")
