"""`spark-lease runs`, `init` and `config`: commands that read or prepare the store, and run nothing."""

import argparse
import contextlib
import json
import re
from contextlib import closing
from dataclasses import asdict, replace

from ..config.settings import SETTINGS, shown
from ..election.journal_entries import KINDS
from ..election.ports import LeaseStore
from ..errors import ConfigError, RecordUnreadable
from ..journal.runs import BEGUN, runs_of
from ..logs import say
from ..monitoring.history import holds_of, with_ends
from ..stores.registry import open_notes, open_store
from .look import no_such_lease
from .settings import of_one_lease, resolved
from .table import print_table


def runs(arguments: argparse.Namespace) -> int:
    """List the run keys; exit code 1 if the lease has no runs, or does not exist."""
    config = replace(of_one_lease(arguments), notify=False)
    name = config.name
    with closing(open_notes(config)) as notes, closing(open_store(config)) as store:
        noted = runs_of(notes, name)
        if any(run.outcome == BEGUN for run in noted):
            with contextlib.suppress(RecordUnreadable):  # `history` reports what is wrong
                holds = holds_of(name, notes.every(config.row_of(name), KINDS), store.read(name), where=store.where)
                noted = with_ends(noted, holds)
        found = [asdict(run) for run in noted]
        why = f"{name} has no runs with a key"
        with contextlib.suppress(RecordUnreadable):
            if not found and store.read(name).record is None:
                why = no_such_lease(name, store.where)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif found:
        keys = ("key", "outcome", "epoch", "holder", "started", "finished", "application")
        print_table([[key.upper() for key in keys], *([_short(row[key]) for key in keys] for row in found)])
    if not found:
        say(why)
    return int(not found)


def _short(value: object) -> str:
    """A time without its fraction of a second."""
    return re.sub(r"(?<=:\d\d)\.\d+(?=Z?$)", "", str(value))


def init(arguments: argparse.Namespace) -> int:
    config = replace(resolved(arguments).config, create_table="true")
    with closing(open_store(config)) as store:
        if arguments.print_sql:
            for what, statements in _made_by(store, "init_statements")().items():
                print(f"-- {what}", *(f"{each};" for each in statements), sep="\n")
            return 0
        done = _made_by(store, "init")()
        where = store.where if config.is_in_folders else config.table
    print(*done or [f"{where} exists already, nothing to do"], sep="\n")
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
