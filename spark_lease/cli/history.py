"""`spark-lease history`: shows who held a lease when, for people, for programs, and as a page."""

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from ..clock import instant_of, iso_text, wall_time
from ..config.parsers import absolute
from ..config.settings import Config
from ..config.urls import redacted
from ..election.journal_entries import KINDS
from ..errors import ConfigError
from ..journal.runs import runs_of
from ..logs import say
from ..monitoring.history import Hold, Overlap, holds_of, not_exact, overlaps, since, with_runs
from ..monitoring.history_page import page
from ..stores.registry import open_notes, open_store
from .look import moment, no_such_lease
from .settings import USAGE, of_one_lease
from .table import print_table

OVERLAP = 2
_COLUMNS = ("FROM (UTC)", "TO", "LASTED", "ENDED BY", "EPOCH", "HOLDER", "HOST", "APPLICATION", "RUN KEYS")


def history(arguments: argparse.Namespace) -> int:
    """Exit code 1 if there is no such lease, 2 if two held it at one time."""
    config = of_one_lease(arguments)
    name, now = config.name, wall_time()
    file = None if arguments.html is None else _file(arguments.html)
    try:
        earliest = round(instant_of(arguments.since, now=now) * 1000) if arguments.since else 0
    except (ValueError, OverflowError):
        say(f"--since: {arguments.since!r} is no time like 2026-11-20, or 36h")
        return USAGE
    holds = all_holds(config, name)
    if holds is None:
        say(no_such_lease(name, redacted(config.url)))
        return 1
    is_noted = bool(holds)
    both = [each for each in overlaps(holds) if each.end is None or each.end >= earliest]
    holds = since(holds, earliest)
    if file:
        where = redacted(config.url)
        _write(file, page(name, holds, both, earliest=earliest, now=round(now * 1000), where=where))
    if arguments.json:
        print(json.dumps(_as_json(name, holds, both), indent=2))
    elif file:
        print(f"{file} shows {len(holds)} holds")
        _tell(name, both)
    else:
        _show(name, holds, both, since_when=moment(earliest / 1000) if is_noted else "")
        _tell(name, both)
    return OVERLAP if both else 0


def all_holds(config: Config, name: str) -> list[Hold] | None:
    """All known holds; None if there is no such lease. Raises StoreError, ConfigError."""
    config = replace(config, create_table="false")
    with closing(open_store(config)) as store, closing(open_notes(config)) as notes:
        seen = store.read(name)
        holds = holds_of(name, notes.every(config.row_of(name), KINDS), seen, where=store.where)
        if not holds:
            return None if seen.record is None else []
        return with_runs(holds, runs_of(notes, name))


def _file(name: str) -> Path:
    """The file for --html, checked before any store is asked. Raises ConfigError."""
    file = Path(name)
    if file.is_dir() or name.endswith("/"):
        raise ConfigError("html", f"{name or file} is a folder: name a file")
    if not (folder := absolute("html", name).parent).is_dir():
        raise ConfigError("html", f"the folder {folder} does not exist: create it")
    return file


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("html", f"{file} cannot be written: {error.strerror}") from error


def _show(name: str, holds: Sequence[Hold], both: Sequence[Overlap], *, since_when: str) -> None:
    if holds:
        has_details = any(hold.detail for hold in holds)
        table = [[*_COLUMNS, "REASON"], *([*_row(hold), hold.detail] for hold in holds)]
        table = table if has_details else [row[:-1] for row in table]
        print_table(table, whole=("LASTED", "ENDED BY", "EPOCH"), spare=("EPOCH", "HOST", "APPLICATION", "RUN KEYS"))
    elif since_when:
        print(f"no contender has held {name} since {since_when}")
    else:
        print(
            f"nothing is noted of {name}, so there is nothing to check; spark-lease doctor says whether it can be noted"
        )
    if not both and holds:
        unsure = not_exact(holds)
        but = f"; of {unsure} it is not known to the millisecond when they began and ended" if unsure else ""
        print(f"\ncheck  no two of {len(holds)} held it at one time{but}")


def _tell(name: str, both: Sequence[Overlap]) -> None:
    for each in both:
        end = _time(each.end) if each.end is not None else "now"
        who = f"{each.first.holder} and {each.second.holder}"
        say(f"{name}: TWO HELD IT from {_time(each.start)} to {end}: {who}")


def _row(hold: Hold) -> list[str]:
    lasted = "" if hold.lasted is None else f"{hold.lasted:.1f} s"
    who = [hold.holder, hold.where, " ".join(hold.applications), " ".join(hold.run_keys)]
    return [*hold.times, lasted, hold.why or "holds it", str(hold.epoch or "–"), *who]


def _as_json(name: str, holds: Sequence[Hold], both: Sequence[Overlap]) -> dict[str, object]:
    found = [
        {"from": _iso(each.start), "to": _iso(each.end), "epochs": [each.first.epoch, each.second.epoch]}
        for each in both
    ]
    return {"lease": name, "holds": [_object(hold) for hold in holds], "overlaps": found, "not_exact": not_exact(holds)}


def _object(hold: Hold) -> dict[str, object]:
    """The hold for JSON: times in ISO 8601, None if unknown; epochs in milliseconds since 1970."""
    return {
        "epoch": hold.epoch,
        "holder": hold.holder,
        "host": hold.host,
        "site": hold.site,
        "from": _iso(hold.start),
        "to": _iso(hold.end),
        "lasted": hold.lasted,
        "exact": hold.ends_exactly,
        "holds": hold.goes_on,
        "ended_by": hold.why,
        "detail": hold.detail,
        "applications": list(hold.applications),
        "run_keys": list(hold.run_keys),
    }


def _iso(instant: int | None) -> str | None:
    return None if instant is None else _time(instant)


def _time(instant: int) -> str:
    return iso_text(instant / 1000)
