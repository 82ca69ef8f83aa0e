"""`spark-lease watch`: what becomes of leases, live in a terminal, one line per change elsewhere.

It asks every `poll_period`, and spends a tenth of its time on that at most; one lease alone is waited for by
notification where the store has that. What happens and is undone between two looks is not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from ..clock import BootClock, Clock, wall_time
from ..config import Config, redacted
from ..errors import RecordUnreadable, StoreError
from ..lockers.base import LeaseStore, Notifies
from ..lockers.registry import open_store
from ..record import Standstill
from .look import Row, described, look_at, moment
from .settings import resolved
from .store import print_leases

_CLEAR = "\x1b[H\x1b[J"
_SHARE = 10


def watch(arguments: argparse.Namespace) -> int:
    """Until Ctrl-C, which is 130 as everywhere. Exit code 1 at once if a lease that was asked for is not there."""
    config = replace(resolved(arguments).config, create_table="false")
    wanted = arguments.leases or ([config.name] if config.name else [])
    with closing(open_store(config)) as store:
        watched = Watched(store, wanted, config, BootClock())
        rows = watched.look()
        if missing := [row["problem"] for row in rows if row["lease"] in wanted and row["state"] == "unknown"]:
            print(*(f"spark-lease: {each}" for each in missing), sep="\n", file=sys.stderr)
            return 1
        show = _screen(config) if sys.stdout.isatty() and not arguments.json else Lines(as_json=arguments.json)
        while True:
            show(rows)
            watched.wait()
            rows = watched.try_look()


class Watched:
    """Some leases of a store, or all of them if none is `wanted`."""

    def __init__(self, store: LeaseStore, wanted: Sequence[str], config: Config, clock: Clock) -> None:
        self._store, self._wanted, self._config, self._clock = store, wanted, config, clock
        self._standstills: dict[str, Standstill] = {}
        self._rows: list[Row] = []
        self._took = 0.0

    def look(self) -> list[Row]:
        """A row for each. Raises StoreError."""
        began = self._clock.now()
        self._rows = [self._look(name) for name in self._wanted or self._store.names()]
        self._took = self._clock.now() - began
        return self._rows

    def try_look(self) -> list[Row]:
        """The same, and of a store that gives no answer the rows that say so."""
        try:
            return self.look()
        except StoreError as error:
            blank = {"state": "unreachable", "holder": "", "since": "", "expires_in": None, "in_doubt": None}
            return [row | blank | {"protection": "", "problem": str(error), "note": ""} for row in self._rows]

    def wait(self) -> None:
        """Until it is worth looking again."""
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
        still_for = self._standstills.setdefault(name, Standstill()).still_for(seen.record, self._clock.now())
        seen_for = None if is_first else still_for
        return described(self._store.where, name, seen, self._config, still_for=seen_for)


def _screen(config: Config) -> Callable[[Sequence[Row]], None]:
    def show(rows: Sequence[Row]) -> None:
        print(f"{_CLEAR}{moment(wall_time())}  {redacted(config.url)}  (Ctrl-C ends)\n")
        if rows:
            print_leases(rows)
        for row in rows:
            if words := row.get("problem") or row.get("note"):
                print(f"\n{words}")
        sys.stdout.flush()

    return show


class Lines:
    """One line for each lease that is not as it was."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, tuple[object, ...]] = {}

    def __call__(self, rows: Sequence[Row]) -> None:
        for row in rows:
            # Nobody can tell, and no: neither is a reason for a line.
            is_now = (row["state"], row["holder"], row["epoch"], row["protection"], bool(row["in_doubt"]), row["wish"])
            was = self._known.get(row["lease"])
            if was == is_now:
                continue
            self._known[row["lease"]] = is_now
            told = {"at": moment(wall_time())} | row | {"was": was[0] if was else None}
            print(json.dumps(told) if self._as_json else _line(told), flush=True)


def _line(row: Row) -> str:
    words = [f"{row['at']}  {row['lease']}: {row['state']}"]
    if row["holder"]:
        words.append(f"by {row['holder']}, epoch {row['epoch']}")
    if row["in_doubt"]:
        words.append("IN DOUBT")
    elif row["was"] == "held" == row["state"]:
        words.append("certain")
    if row["state"] == "held" and row["expires_in"] is not None:
        words.append(f"{row['expires_in']} s left")
    if row["wish"]:
        words.append(row["wish"])
    return ", ".join(words) + (f": {row['problem']}" if row.get("problem") else "")
