"""`spark-lease pause`, `resume` and `transfer`: write an operator's directive into the record of a lease."""

import argparse
import contextlib
import json
import logging
import math
import shlex
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from ..clock import BootClock, wall_time
from ..config.parsers import seconds
from ..config.settings import Config
from ..election.directive import LONGEST, Directive, directive_of, label_of
from ..election.journal_entries import GRANT
from ..election.ports import LeaseStore
from ..election.record import LeaseRecord, Snapshot, UnchangedSince, expires_in, is_forced, with_directive
from ..errors import ConfigError, LeaseHeldByOther, RecordUnreadable, SparkLeaseError, StoreError
from ..journal.standbys import standbys_of
from ..logs import say
from ..stores.registry import open_notes, open_store
from .look import for_programs, no_such_lease
from .settings import of_one_lease, who

log = logging.getLogger(__name__)

IsDone = Callable[[LeaseRecord, float, bool], bool]
"""Takes the record, the seconds that it has left, and whether it has been renewed since the directive."""
_TRIES = 10
_LOOK_AGAIN, _SAY_AGAIN = 0.25, 5.0
_NOTED_WITHIN = 2.0
"""Seconds after a grant until its journal entry is there, if one can be written."""
_READ_WITHIN = 2.0
"""Lease durations until a master that reads directives has certainly seen one, and its lease has run out."""


def pause(arguments: argparse.Namespace) -> int:
    """Write the directive and return; with --now, return once the lease is free."""
    reason, until = _reason(arguments), seconds("--for", arguments.duration)

    def wanted(now: float) -> Directive:
        return Directive(who(), reason, until=now + until, give_up=now if arguments.now else math.inf)

    config = of_one_lease(arguments)
    with closing(open_store(config)) as store:
        before, seen = _put(store, config.name, wanted)
        if arguments.now:
            duration_of = max(seen.record.duration if seen.record else 0.0, config.lease_duration)
            end = BootClock().now() + _READ_WITHIN * duration_of
            seen = _wait(store, config.name, lambda record, left, _: record.holder is None or left <= 0, seen, end)
    return _show(arguments, config.name, seen, before=before)


def resume(arguments: argparse.Namespace) -> int:
    config = of_one_lease(arguments)
    with closing(open_store(config)) as store:
        before, seen = _put(store, config.name, lambda now: None)
    was = directive_of(before.directive)
    return _show(arguments, config.name, seen, f"no longer {was}" if was else "there was no pause or transfer")


def transfer(arguments: argparse.Namespace) -> int:
    """Write the directive and return; with --wait, return once a contender that it names has the lease."""
    if not (arguments.to and arguments.to.isprintable() and len(arguments.to) <= LONGEST // 3):
        raise ConfigError("--to", f"{arguments.to!r} is neither a holder, nor its label, nor a site")
    within, window = seconds("--within", arguments.within), seconds("--for", arguments.duration)
    reason = _reason(arguments)

    def wanted(now: float) -> Directive:
        return Directive(who(), reason, arguments.to, until=now + within + window, give_up=now + within)

    config, what = of_one_lease(arguments), ""
    with closing(open_store(config)) as store:
        if not arguments.anyway:
            _refuse_unknown(arguments.to, store, config)
        before, seen = _put(store, config.name, wanted)
        stays = False
        with contextlib.suppress(StoreError, ConfigError):  # if unknown, wait for it
            stays = _is_master(arguments.to, seen, config)
        if arguments.wait and not (stays and seen.left is not None):  # without a clock one look tells nothing

            def is_done(record: LeaseRecord, left: float, is_renewed: bool) -> bool:
                return record.epoch > before.epoch or (stays and is_renewed)

            seen = _wait(store, config.name, is_done, seen, BootClock().now() + within + window)
            if seen.record and seen.record.epoch > before.epoch:
                _refuse_another(arguments.to, before, seen, config)
                what = f"taken, epoch {seen.record.epoch}"
    return _show(arguments, config.name, seen, what, before=before, stays=stays)


def _is_master(to: str, seen: Snapshot, config: Config) -> bool:
    """True if `to` holds the lease, as far as the store knows: then it keeps the lease."""
    holder = seen.record.holder if seen.record else None
    if not holder or expires_in(seen, still_for=0.0) <= 0:
        return False
    sites = [each.get("site", "") for each in _noted(config) if each["holder"] == holder]
    return any(Directive("", to=to).is_for(holder, site) for site in ["", *sites])


def _refuse_another(to: str, before: LeaseRecord, seen: Snapshot, config: Config) -> None:
    """Raise LeaseHeldByOther if a journal entry says that another contender than `to` took the lease after `before`."""
    wanted = Directive("", to=to)
    if seen.record and seen.record.holder and wanted.is_for(seen.record.holder, ""):
        return
    clock, end = BootClock(), BootClock().now() + _NOTED_WITHIN
    while not (grant := _grant_after(before.epoch, config)) and clock.now() < end:
        clock.wait(threading.Event(), _LOOK_AGAIN)
    if grant and not wanted.is_for(holder := grant["holder"], grant.get("site", "")):
        problem = f"{holder} took it, not {to}: the transfer had ended, or was cancelled"
        raise LeaseHeldByOther(config.name, holder, max(expires_in(seen, still_for=0.0), 0.0), problem)


def _grant_after(epoch: int, config: Config) -> dict[str, Any]:
    """The note of the grant that came after the grant `epoch`; empty if there is none."""
    with contextlib.suppress(StoreError):
        return next((each for each in _noted(config) if (each.get("after") or {}).get("epoch") == epoch), {})
    return {}


def _refuse_unknown(to: str, store: LeaseStore, config: Config) -> None:
    """Raise ConfigError if no note names the contender `to`: a lease that waits for it would stay free."""
    record = store.read(config.name).record
    if record is None:
        return
    known = _noted(config)
    holders = {each["holder"] for each in known}
    holders |= {record.holder} if record.holder and not is_forced(record.holder) else set()
    sites, labels = {each.get("site", "") for each in known} - {""}, {label_of(each) for each in holders}
    if to not in holders | labels | sites:
        others = ", ".join(sorted(labels | sites)) or "none"
        raise ConfigError(
            "--to",
            f"no holder, label or site {to!r} is known for {config.name}. Known: {others}. Add --anyway if it will "
            "start later",
        )


def _noted(config: Config) -> list[dict[str, Any]]:
    """The notes of standbys and of grants; empty if the store keeps no notes."""
    name = config.row_of(config.name)
    with contextlib.suppress(ConfigError, ValueError), closing(open_notes(config)) as notes:
        grants = [json.loads(each) for each in notes.all(name, GRANT).values()]
        return [asdict(each) for each in standbys_of(notes, name, wall_time())] + grants
    return []


def _reason(arguments: argparse.Namespace) -> str:
    """The text of --reason, which each waiting contender logs. Raises ConfigError."""
    if not arguments.reason.isprintable():
        raise ConfigError("--reason", "is not a printable text of one line; for letters beyond ASCII, LC_ALL=C.UTF-8")
    return str(arguments.reason)


def _put(store: LeaseStore, name: str, wanted: Callable[[float], Directive | None]) -> tuple[LeaseRecord, Snapshot]:
    """Write the directive that `wanted` makes of the store's time. Returns the record before it, and the one now.

    The holder may renew, or change, meanwhile: then this tries again.
    Raises StoreError, ConfigError.
    """
    tried: LeaseRecord | None = None
    is_unchanged = False
    for _ in range(_TRIES):
        seen = store.read(name)
        if seen.record is None:
            raise SparkLeaseError(no_such_lease(name, store.where))
        directive = wanted(seen.wall)
        text = directive.text() if directive else ""
        if len(text) > LONGEST:
            raise ConfigError("--reason", f"is too long: {LONGEST} characters fit into a record, with who and when")
        if text == seen.record.directive and tried:  # it took effect; a contender wrote before the answer
            return tried, seen
        if text == seen.record.directive or store.swap(name, seen.record, with_directive(seen.record, text)):
            there = store.read(name)
            if there.record and there.record.directive != text and there.record.epoch == seen.record.epoch:
                raise ConfigError("url", f"{store.where} cannot store a pause or a transfer")
            return seen.record, there
        tried, is_unchanged = seen.record, seen.record == tried
    if is_unchanged:
        raise StoreError(
            store.where, f"{name} cannot be written: a policy or a trigger of the database drops the write"
        )
    raise StoreError(store.where, f"{name} was changed by its holder at each try: try again")


def _wait(store: LeaseStore, name: str, is_done: IsDone, seen: Snapshot, end: float) -> Snapshot:
    """Look until `is_done`. Raises LeaseHeldByOther after `end`, or once the directive was replaced or removed."""
    try:
        return _wait_until(store, name, is_done, seen, end)
    except (KeyboardInterrupt, StoreError):
        there = f"the pause or transfer stays in force: spark-lease resume {shlex.quote(name)} cancels it"
        say(f"{name}: {there}")
        raise


def _wait_until(store: LeaseStore, name: str, is_done: IsDone, seen: Snapshot, end: float) -> Snapshot:
    clock, shown_at, standstill, first = BootClock(), -math.inf, UnchangedSince(), seen.record
    while seen.record and first:
        is_renewed = seen.record.holder == first.holder and seen.record.stamp != first.stamp
        left = expires_in(seen, still_for=standstill.still_for(seen.record, clock.now()))
        if is_done(seen.record, left, is_renewed):
            return replace(seen, expires_in=left)  # a store without a clock does not know
        holder = seen.record.holder or ""
        who_has_it = f"{holder} holds it" if holder else "it has no master"
        at_most = f"{who_has_it}, {max(left, 0):.0f} s left" if holder else who_has_it
        is_taken_back = seen.record.epoch == first.epoch and seen.record.directive != first.directive
        if clock.now() > end or is_taken_back:
            changed = "the pause or transfer was replaced or cancelled: " if is_taken_back else ""
            there = directive_of(seen.record.directive) or "there is no pause or transfer now"
            if isinstance(there, Directive) and there.until <= seen.wall:
                there = f"{there}, which is over: any contender may take it"
            renewed = ", still renewed" if holder and is_renewed else ""
            raise LeaseHeldByOther(name, holder, left, f"{changed}{there}; {who_has_it}{renewed}")
        if clock.now() - shown_at > _SAY_AGAIN:
            shown_at = clock.now()
            what = directive_of(seen.record.directive) or "no pause or transfer"
            say(f"{name}: {what}; waiting: {at_most}")
        clock.wait(threading.Event(), _LOOK_AGAIN)
        try:
            seen = store.read(name)
        except StoreError as error:
            if clock.now() > end or isinstance(error, RecordUnreadable):
                raise
            log.warning("%s: cannot look, trying again: %s", name, error)
            clock.wait(threading.Event(), _SAY_AGAIN)
    raise SparkLeaseError(f"{name}: its record is gone from {store.where}")


def _show(
    arguments: argparse.Namespace,
    name: str,
    seen: Snapshot,
    what: str = "",
    *,
    before: LeaseRecord | None = None,
    stays: bool = False,
) -> int:
    """Print what was done: `what`, or else the directive in the record. `before`: the record that it replaced. `stays`:
    the master may keep the lease."""
    record = seen.record
    assert record
    directive, was = directive_of(record.directive), directive_of(before.directive if before else "")
    replaced = str(was) if was and seen.wall < was.until else ""
    is_held = expires_in(seen, still_for=0.0) > 0 and not is_forced(record.holder)
    holder = record.holder if is_held else None
    ordered = (directive.in_full() if holder else str(directive)) if directive else ""
    if arguments.json:
        shown = {"lease": name, "holder": holder, "epoch": record.epoch, "directive": ordered, "replaced": replaced}
        print(json.dumps(for_programs(shown)))
    else:
        if replaced:
            say(f"{name}: in place of: {replaced}")
        gives_up = directive and directive.give_up < math.inf and not stays
        then = " and must give it up" if gives_up else " already, and works on" if stays else " and works on"
        master = f"{holder} is master{then if directive else ''}" if holder else "it has no master"
        print(f"{name}: {what or ordered or 'no pause or transfer pending'}; {master}")
        if directive and math.isinf(directive.until):
            resume = f"spark-lease resume {shlex.quote(name)}"
            say(f"{name}: it has no end, and lasts until {resume}")
    return 0
