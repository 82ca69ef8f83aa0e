"""What `spark-lease doctor` checks in the lease store, without changing a lease."""

from __future__ import annotations

import contextlib
import shlex
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ..clock import BootClock
from ..config.settings import Config
from ..config.urls import redacted
from ..errors import FenceUnreachable, RecordUnreadable, StoreError
from ..fencing.sql.databases import open_database
from ..stores.folders.probe import exercise
from ..stores.registry import open_store
from ..system.call_timeout import CallTimeout
from .findings import Check, Finding, fail, ok, warn
from .look import cell, described

_SQL = ("postgresql", "mysql", "mariadb", "sqlite")
_FOLDERS = ("file", "delta")
_READS = 20
_APART = 1.0
"""Difference between two clocks, in seconds, that a reader of their times notices."""
_RENEWAL_IN_OBJECTS = 7
"""A renewal in an object store takes the time of so many looks (13 requests and 2)."""
if TYPE_CHECKING:
    from ..stores.sql.probe import SqlProbe

T = TypeVar("T")
_CLOCK = BootClock()

_NOT_YET = "the first job makes it, or spark-lease init"
_INIT = "where the table is missing: spark-lease init"


def checks(config: Config, *, makes_tables: bool) -> Iterator[Check]:
    """The first check is that of the store; without it no other can be made.

    `makes_tables`: the first job creates missing tables."""
    scheme = config.scheme
    place = "table" if scheme in _SQL else "store"
    yield Check("store", lambda: store(config, makes_tables=makes_tables))
    if scheme == "postgresql":
        if "," in config.url or config.url.count("host=") > 1:
            yield Check("hosts", lambda: hosts(config), needs="store")
        yield Check("schemas", lambda: schemas(config), needs="store")
    if scheme in _SQL:
        yield Check("table", lambda: table(config, makes_tables=makes_tables), needs="store")
    if scheme == "postgresql" and "." not in config.table:
        yield Check("namesakes", lambda: namesakes(config), needs="table")
    yield Check("lease", lambda: lease(config), needs=place)
    yield Check("timings", lambda: timings(config, reads(config)), needs=place)
    if scheme in _SQL:
        yield Check("notes", lambda: notes(config), needs="table")
        yield Check("rights", lambda: rights(config), needs="table")
        if scheme != "sqlite":
            yield Check("durability", lambda: durability(config), needs="store")
        yield Check(
            "clock", lambda: clocks(config, *_ask(config, lambda probe: probe.clock_difference())), needs="store"
        )
    elif scheme in _FOLDERS:
        no_clock = f"the store has no clock: after a crash a standby waits {config.lease_duration:g} s"
        yield Check("rights", lambda: folder(config), needs="store")
        yield Check("clock", lambda: ok(no_clock), needs="store")
    if scheme == "postgresql":
        yield Check("pooler", lambda: pooler(config, *_ask(config, sessions)), needs="store")
        if not config.fence_url:
            yield Check("fence tables", lambda: fence_tables(config), needs="store")
    if config.fence_url:
        yield Check("fence", lambda: fence(config))
        if config.fence_url.startswith("postgresql"):
            guarded = replace(config, url=config.fence_url, password=config.fence_password)
            yield Check("fence tables", lambda: fence_tables(config), needs="fence")
            yield Check("fence schemas", lambda: schemas(guarded), needs="fence")


def _ask(config: Config, what: Callable[[SqlProbe], T]) -> T:
    from ..stores.sql.probe import SqlProbe  # SQLAlchemy: imported only if needed

    with closing(SqlProbe(config)) as probe:
        return what(probe)


def store(config: Config, *, makes_tables: bool) -> Finding:
    if not config.enabled:
        return fail("enabled = false: NOTHING IS GUARDED: every process is master", "set enabled = true")
    from ..database.dialects import missing_file

    if makes_tables and (file := missing_file(config)):
        return warn(f"{file} is not there yet", _NOT_YET)
    try:
        answer, took = first_answer(config)
    except RecordUnreadable:
        raise
    except StoreError as error:
        advice = "is it up, and are address, network and password right? A pooler must not be in statement mode"
        return fail(str(error), advice)
    return ok(f"{redacted(config.url)}: {answer}, the first answer after {took * 1000:.0f} ms")


def hosts(config: Config) -> Finding:
    """Two primaries in one URL mean two masters: each contender asks the primary that it reaches first."""
    from ..stores.sql.probe import SqlProbe, one_host_each

    every = one_host_each(config)
    primaries, down = dict[str, str](), dict[str, StoreError]()
    for host, alone in every.items():
        try:
            if server := _ask(alone, SqlProbe.primary):
                primaries.setdefault(server, host)
        except StoreError as error:
            down[host] = error
    if len(primaries) > 1:
        message = f"{' and '.join(primaries.values())} accept writes: two masters may work at one time"
        return fail(message, "stop all but the primary, and list only it and its replicas")
    if not primaries:
        return fail(f"none of {', '.join(every)} accepts writes", "list the primary, or promote a replica")
    if down:
        message = "; ".join(f"{host}: {error}" for host, error in down.items())
        return warn(message, "start it, or take it out of the URL")
    return ok(f"of {', '.join(every)} only {', '.join(primaries.values())} accepts writes")


def _timed(what: Callable[[], T]) -> tuple[T, float]:
    began = _CLOCK.now()
    return what(), _CLOCK.now() - began


def first_answer(config: Config) -> tuple[str, float]:
    """The store's description of itself, and the seconds until it came."""
    if config.scheme in _SQL:
        return _ask(config, lambda probe: _timed(probe.server))
    with closing(open_store(config)) as opened:
        return _timed(lambda: f"{len(opened.names())} leases")


def lease(config: Config) -> Finding | None:
    if not config.name:
        return None
    try:
        with closing(open_store(replace(config, notify=False))) as opened:
            seen = opened.read(config.name)
            row = described(opened.where, config.name, seen, config)
    except RecordUnreadable as error:
        return fail(str(error), "correct the row by hand, or remove it while no contender runs")
    if row["state"] == "unknown":
        return ok(f"{config.name} was never taken")
    message = f"{config.name} is {row['state']}" + (f", by {row['holder']}, epoch {row['epoch']}" * bool(row["holder"]))
    if seen.is_set_back:
        return warn(row["note"], "a standby waits for that long, then takes over: check NTP on the store's host")
    if row["in_doubt"]:
        return warn(row["note"], "check its holder, and its connection to the store")
    if row["directive"]:
        advice = f"spark-lease resume {shlex.quote(config.name)} cancels it"
        return warn(f"{message}; {row['directive']}", advice)
    return ok(message + (f", expires in {cell(row['expires_in'])} s" * (row["state"] == "held")))


def reads(config: Config) -> list[float]:
    """Seconds of each of several looks, the first with connecting. Raises StoreError."""
    took: list[float] = []
    with closing(open_store(config)) as opened:
        with contextlib.suppress(StoreError):  # a pooler that shares sessions refuses prepared statements once
            took.append(_timed(lambda: opened.read(config.name or "doctor"))[1])
        while len(took) <= _READS and sum(took) < config.attempt_timeout:
            took.append(_timed(lambda: opened.read(config.name or "doctor"))[1])
    return took


def timings(config: Config, took: Sequence[float]) -> Finding:
    """Compare what `reads` found with the time that a renewal has."""
    first, rest = took[0], list(took[1:]) or list(took)
    median, longest = statistics.median(rest), max(rest)
    share = _RENEWAL_IN_OBJECTS if config.url.startswith("delta+") else 1
    renewal = max(longest * share, first)
    message = (
        f"{len(rest)} looks: median {median * 1000:.1f} ms, longest {longest * 1000:.1f} ms, with connecting "
        f"{first * 1000:.1f} ms; an attempt may take {config.attempt_timeout:g} s, every {config.retry_period:g} s of "
        f"a lease of {config.lease_duration:g} s"
    )
    enough = f"take --lease-duration {max(config.lease_duration * 2, 24 * renewal):.0f}, all else follows it"
    if median * share > config.attempt_timeout / 2:
        return fail(message, f"most renewals come too late: {enough}")
    if renewal > config.attempt_timeout / 2:
        return warn(message, f"some renewals come too late: {enough}")
    return ok(message)


def table(config: Config, *, makes_tables: bool) -> Finding:
    lacking = _ask(config, lambda probe: probe.lacking())
    for name, missing in lacking.items():
        if missing is None:
            if makes_tables:
                return warn(f"{name} is not there yet", _NOT_YET)
            return fail(f"{name} does not exist", "run spark-lease init")
        if missing:
            return fail(f"{name} lacks {', '.join(missing)}", "run spark-lease init")
    return ok(f"{' and '.join(lacking)}: all columns and keys are there")


def namesakes(config: Config) -> Finding:
    """Roles with different search paths would find different tables, and each table would have a master."""
    name, others = _ask(config, lambda probe: probe.namesakes())
    if not others:
        return ok("no other schema has a table of this name")
    message = f"another table of this name: {', '.join(others)}"
    return warn(message, f'all contenders must use the same: set table = "{name}"')


def notes(config: Config) -> Finding:
    name, is_there = _ask(config, lambda probe: probe.notes())
    if is_there:
        return ok(f"{name} is there")
    return warn(f"{name} does not exist: no run keys, no fence for Delta", "run spark-lease init")


def rights(config: Config) -> Finding:
    from ..database.connections import BINARY_LOG

    try:
        _ask(config, lambda probe: probe.exercise())
    except StoreError as error:
        if "readonly database" in str(error):
            return fail(str(error), "make the file and its folder writable for this user")
        if "disk is full" in str(error):
            return fail(str(error), "free space on its disk")
        if "binlog_format" in str(error).lower():
            return fail(str(error), BINARY_LOG)
        tables = " and ".join(dict.fromkeys((config.table, config.record_table)))
        return fail(str(error), f"{_INIT}; else grant SELECT, INSERT, UPDATE on {tables}")
    if refused := _ask(config, lambda probe: probe.exercise_notes()):
        problem = next(iter(refused.values()))
        advice = f"{_INIT}; else grant SELECT, INSERT, UPDATE, DELETE on {config.notes_table}"
        _, are_there = _ask(config, lambda probe: probe.notes())
        begins = config.fence_delta == "off" or "SELECT" not in refused
        begins &= not config.run_key or refused.keys() == {"DELETE"}
        if are_there and not begins:
            return fail(f"no master can begin, without its run keys and fenced tables: {problem}", advice)
        if refused.keys() == {"DELETE"}:
            return warn(f"what is noted beside the leases is never removed: {problem}", advice)
        return warn(f"no run keys, no fence for Delta: {problem}", advice)
    done = "no row of it was touched" if config.has_broker_record else "rolled back"
    return ok(f"this user may take, renew and release a lease, and note things beside it ({done})")


def durability(config: Config) -> Finding:
    if setting := _ask(config, lambda probe: probe.forgets()):
        name = setting.partition(" ")[0]
        message = f"{setting}: after a crash of the server or its machine, two masters may work at one time"
        return warn(message, f"have an administrator set {name} = {'on' if name == 'fsync' else 1}")
    return ok("what the server confirms outlives its crash")


def clocks(config: Config, ahead: float, error: float) -> Finding:
    """This machine's clock is `ahead` seconds ahead of the store's, give or take `error`."""
    message = f"this machine is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the store, ± {error:.3f} s"
    limit = config.max_allowable_diff_from_db_time or _APART
    if abs(ahead) - error <= limit:
        return ok(message)
    if config.has_broker_row:
        return warn(message, "a broker uses its own clock: synchronize the clocks (NTP)")
    return warn(f"{message}; leases do not depend on it", "times in logs mislead: check NTP")


def folder(config: Config) -> Finding:
    where = redacted(config.url)
    with closing(CallTimeout(where, timeout=config.attempt_timeout)) as bounded:
        is_there = bounded.call(lambda: exercise(config))
    if not is_there:
        return warn(f"{where} does not exist", "is it mounted here? spark-lease init --lease NAME makes it")
    return ok("this user may write, and the second of two writers is refused")


def schemas(config: Config) -> Finding:
    makers = _ask(config, lambda probe: probe.makers())
    if not makers:
        return ok("no other role may create functions in this role's search_path")
    found_by = ", ".join(f"{maker} in {schema}" for schema, maker in makers)
    message = f"other roles may create functions that would run with the rights of this role: {found_by}"
    advice = "; ".join(f"REVOKE CREATE ON SCHEMA {schema} FROM {maker}" for schema, maker in makers)
    return warn(message, advice)


def pooler(config: Config, shared: str, passes_options: bool, takes_options: bool) -> Finding:
    """`shared`: why sessions are not ours alone; empty if they are."""
    if shared and config.locker == "database":
        advice = "connect without the pooler"
        return fail(f"{shared}: a lock that belongs to a session cannot be kept", advice)
    found = shared or ("" if passes_options else "a pooler drops the options of a connection")
    message = f"{found}: a standby sees a release at its next look, every {config.poll_period:g} s"
    if not takes_options:
        problem = "it refuses PGOPTIONS: commands of run and submit cannot connect through it"
        return warn(f"{message}; {problem}", "set ignore_startup_parameters = options in pgbouncer.ini")
    return ok(message if found else "none that shares sessions")


def sessions(probe: SqlProbe) -> tuple[str, bool, bool]:
    return probe.sharing(), *probe.options()


def fence(config: Config) -> Finding:
    from ..fencing.sql.claim import FenceTable  # SQLAlchemy
    from ..fencing.sql.trial import try_claim

    try:
        with open_database(config) as engine:
            problem = try_claim(engine, config.name)
            newest = FenceTable(engine, timeout=config.attempt_timeout).newest(config.name)
    except FenceUnreachable as error:
        return fail(str(error), "correct this: until then no master begins its work")
    message = f"{config.name} was claimed under epoch {newest}" if newest else "no master has claimed it yet"
    if problem:
        return warn(f"{redacted(config.fence_url)}: {problem}; {message}", "run doctor again after the next run")
    return ok(f"{redacted(config.fence_url)}: a claim worked, and was undone; {message}")


def fence_tables(config: Config) -> Finding | None:
    from ..fencing.sql.triggers import fenced_tables

    with open_database(config) as engine:
        tables = [each for each in fenced_tables(engine, config.name) if each.state != "dropped"]
    lost, disabled = ([each.name for each in tables if each.state == state] for state in ("lost", "disabled"))
    if lost:
        again = f"spark-lease fence add --lease {shlex.quote(config.name or 'NAME')} --on {shlex.quote(lost[0])}"
        advice = f"the next master fences it again if its role owns it; or run {again}"
        return warn(f"{', '.join(lost)}: made again without its fence, or with a new partition", advice)
    if disabled:
        advice = "ALTER TABLE … ENABLE ALWAYS TRIGGER spark_lease"
        return warn(f"{', '.join(disabled)}: its trigger is off, any session may write", advice)
    if not tables and not config.fence_url:
        return None
    return ok(f"{len(tables)} fenced" + (f" under {config.name}" if config.name else ""))
