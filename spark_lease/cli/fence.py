"""`spark-lease fence`: which tables of a database are written only under a lease."""

from __future__ import annotations

import argparse
import json
import sys

from ..clock import BootClock
from ..config import Config, redacted
from ..errors import ConfigError
from ..fences import postgres
from ..fences.databases import open_database
from ..fences.sql_claim import Desk
from .settings import need_name, resolved
from .table import print_table

ACTIONS = ("add", "drop", "list", "forget")


def fence(arguments: argparse.Namespace) -> int:
    config = resolved(arguments).config
    if arguments.action in ("add", "drop") and not arguments.tables:
        raise ConfigError("table", f"which one? spark-lease fence {arguments.action} --on TABLE")
    if arguments.action in ("add", "forget"):
        need_name(config.name)
    done: int = globals()[f"_{arguments.action}"](arguments, config)
    return done


def _add(arguments: argparse.Namespace, config: Config) -> int:
    with open_database(_of_postgres(config), BootClock()) as engine:
        for table in arguments.tables:
            _refuse_path(table)
            options = {"allow_unleased": arguments.allow_unleased}
            if arguments.print_sql:
                statements = postgres.statements_of(table, config.name, **options)
                print(*(f"{each};" for each in statements), sep="\n")
                continue
            postgres.add(engine, table, config.name, **options)
            print(f"{table} is written only under the lease {config.name}")
    return 0


def _drop(arguments: argparse.Namespace, config: Config) -> int:
    with open_database(_of_postgres(config), BootClock()) as engine:
        for table in arguments.tables:
            _refuse_path(table)
            was = postgres.drop(engine, table)
            print(f"{table} is written by everybody again" if was else f"{table} was not fenced, nothing to do")
    return 0


def _list(arguments: argparse.Namespace, config: Config) -> int:
    with open_database(_of_postgres(config), BootClock()) as engine:
        desk, tables = Desk(engine, timeout=config.attempt_timeout), postgres.fenced_tables(engine, config.name)
        epochs = {name: desk.newest(name) for name in {each.lease for each in tables}}
    rows = [
        {"table": each.name, "lease": each.lease, "epoch": epochs[each.lease], "allow_unleased": each.allow_unleased}
        for each in tables
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        shown = [[str(value) for value in row.values()] for row in rows]
        print_table([["TABLE", "LEASE", "EPOCH", "ALLOW UNLEASED"], *shown])
    else:
        print(f"no table is fenced in {redacted(config.fence_url or config.url)}")
    return 0


def _forget(arguments: argparse.Namespace, config: Config) -> int:
    with open_database(config, BootClock()) as engine:
        before = Desk(engine, timeout=config.attempt_timeout).forget(config.name)
    if before:
        print(f"the fence of {config.name} was at epoch {before} and is cleared; the next master claims it anew")
    else:
        print(f"there is no fence of {config.name}, nothing to do", file=sys.stderr)
    return int(not before)


def _of_postgres(config: Config) -> Config:
    if not (config.fence_url or config.url).startswith("postgresql"):
        raise ConfigError(
            "fence_url", "fenced tables are PostgreSQL's: give --fence-url postgresql://user@host/database"
        )
    return config


def _refuse_path(table: str) -> None:
    """What has a slash in it is a folder or a URL, and no name of a table in a database."""
    if "/" in table:
        raise ConfigError("table", f"{table!r} is a path, and only tables of PostgreSQL can be fenced yet")
