"""Changes of hands are noted beside the lease, whatever its store, and never at its expense."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.election import journal_entries as changes
from spark_lease.election.journal_entries import KINDS
from spark_lease.election.ports import Denied, LeaseStore
from spark_lease.election.record import released, taken
from spark_lease.errors import LeaseLost, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.monitoring.history import Hold, holds_of, not_exact, overlaps
from spark_lease.stores.registry import open_notes, open_store
from spark_lease.stores.sql.store import SqlStore
from tests.services.objects import BUCKET, ObjectServer
from tests.services.proxy import Proxy
from tests.support.command import COMMAND

SQL = ["sqlite", "postgresql", "mariadb"]
WITHOUT_CLOCK = ("file", "delta", "objects")
SHORT: dict[str, Any] = {
    "lease_duration": 4.0,
    "renew_deadline": 2.0,
    "retry_period": 0.5,
    "attempt_timeout": 1.0,
    "stop_budget": 1.0,
    "kill_budget": 0.5,
}


@pytest.fixture(params=[*SQL, "pooler", "broker", "database", *WITHOUT_CLOCK])
def config(request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str) -> Config:
    if request.param == "objects":
        server: ObjectServer = request.getfixturevalue("objects")
        return configure(name="n", url=f"delta+s3://{BUCKET}/{table}", storage_options=server.options())
    more: dict[str, dict[str, Any]] = {
        "pooler": {"notify": False},
        "broker": {"broker_row": "true"},
        "database": {"locker": "database"},
    }
    kind = "postgresql" if request.param in more else request.param
    return configure(name="n", url=url_of(kind), table=table, create_table="true", **more.get(request.param, {}))


@pytest.fixture
def store(config: Config) -> Iterator[LeaseStore]:
    with closing(open_store(config)) as found:
        yield found


def noted(config: Config) -> dict[str, dict[str, str]]:
    with closing(open_notes(config)) as notes:
        return notes.every(config.row_of(config.name), KINDS)


def history(config: Config) -> list[Hold]:
    with closing(open_store(config)) as store:
        return holds_of("n", noted(config), store.read(config.name), where=store.where)


def contender(config: Config) -> LocalHold:
    found = open_contender(config, BootClock())
    found.acquire()
    return found


def has_clock(config: Config) -> bool:
    return not config.url.startswith(WITHOUT_CLOCK[:2])


def test_who_held_it_and_when_it_was_given_back(config: Config) -> None:
    held = []
    endings = [("released", ""), ("failed", "exit 3 \"'{}"), ("finished", "")]
    for ending in endings:
        lease = contender(config)
        lease.renew()
        lease.ends_as(*ending)
        held.append((lease.epoch, lease.holder))
        assert lease.release()
        lease.close()
    last = contender(config)
    found = until(lambda: history(config), lambda found: all(hold.host for hold in found))
    assert [(hold.epoch, hold.holder) for hold in found] == [*held, (last.epoch, last.holder)]
    assert [(hold.why, hold.detail) for hold in found] == [*endings, ("", "")]
    assert all(hold.start is not None and hold.host for hold in found)
    assert all(hold.end is not None and hold.start <= hold.end for hold in found[:3])  # type: ignore[operator]
    assert not overlaps(found) and not_exact(found) == (0 if has_clock(config) else 3)
    last.release()
    last.close()


def test_a_hold_that_was_never_given_back_ran_out(config: Config, store: LeaseStore) -> None:
    paris = contender(changed(config, **SHORT))
    paris.renew()
    until(lambda: history(config), lambda found: bool(found[0].host))
    record = store.read("n").record
    paris.close()
    lyon = contender(changed(config, poll_period=0.1))
    first, second = until(lambda: history(config), lambda found: [bool(hold.host) for hold in found] == [True] * 2)
    assert (first.why, second.why) == ("ran out", "")
    assert record and first.end == (record.stamp if has_clock(config) else second.epoch)
    assert not overlaps([first, second])
    lyon.close()


def until(ask: Callable[[], list[Hold]], wanted: Callable[[list[Hold]], bool]) -> list[Hold]:
    """A grant does not wait for its note."""
    end = time.monotonic() + 10
    while not wanted(found := ask()):
        assert time.monotonic() < end, found
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("config", [*SQL, "pooler", "broker", *WITHOUT_CLOCK], indirect=True)
def test_a_loss_is_noted_with_its_reason(config: Config, store: LeaseStore) -> None:
    lease = contender(config)
    record = store.read("n").record
    assert record
    theirs = store.swap("n", record, taken(record, holder="lyon:1", duration=30.0))
    time.sleep(0.5)  # both hold it; the end is counted from the answer to the grant, which may have come that late
    with pytest.raises(LeaseLost, match="taken"):
        lease.renew()
    lease.note_loss()
    lease.close()
    mine, other = history(config)
    assert theirs and (mine.epoch, other.epoch) == (lease.epoch, theirs.epoch)
    assert (mine.why, mine.detail) == ("taken", "held by lyon:1")
    # It was taken before it had run out: by the store's clock both held it until the first one noticed.
    assert len(overlaps([mine, other])) == (1 if has_clock(config) else 0)


def test_renewals_and_lost_races_are_no_change_of_hands(config: Config, store: LeaseStore) -> None:
    lease = contender(config)
    lease.renew()
    with closing(open_contender(config, BootClock())) as other:
        assert isinstance(other.try_acquire(), Denied)
    record = store.read("n").record
    assert record and store.swap("n", replace(record, epoch=record.epoch - 1), released(record)) is None
    found = until(lambda: history(config), lambda found: bool(found[0].host))
    assert [(hold.epoch, hold.holder, hold.why) for hold in found] == [(lease.epoch, lease.holder, "")]
    lease.close()


def test_what_is_too_old_is_forgotten_once_a_day(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def hold(config: Config) -> int:
        lease = contender(config)
        lease.release()
        lease.close()
        return lease.epoch

    pause, retention = (2.6, 1.5) if config.url.startswith("delta+s3:") else (1.6, 1.5)  # its stamps are whole seconds
    first = hold(config)
    time.sleep(pause)
    short = changed(config, history_retention=retention)
    second = hold(short)
    assert [hold.epoch for hold in history(config)] == [first, second]
    monkeypatch.setattr(changes, "_DAY", 1)
    third = hold(short)
    assert third in (left := [hold.epoch for hold in history(config)]) and first not in left


def changed(config: Config, **settings: Any) -> Config:
    return config.__class__(**{key: getattr(config, key) for key in config.__slots__} | settings)


@pytest.mark.parametrize(
    ("config", "missing"),
    [*((kind, what) for kind in SQL for what in ("table", "column")), ("postgresql", "right")],
    indirect=["config"],
)
def test_without_a_place_for_notes_the_lease_works_and_says_so_once(
    config: Config, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    contender(config).release()
    engine = create_engine(usable_url(config))
    with engine.begin() as connection:
        match missing, engine.dialect.name:
            case "table", _:
                connection.execute(text(f"DROP TABLE {config.notes_table}"))
            case "column", _:
                connection.execute(text(f"ALTER TABLE {config.notes_table} RENAME COLUMN noted TO noted2"))
            case _:
                no = f"FUNCTION {config.table}_no()"
                ban = "LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$"
                connection.execute(text(f"CREATE {no} RETURNS trigger {ban}"))
                connection.execute(text(f"CREATE TRIGGER no BEFORE INSERT ON {config.notes_table} EXECUTE {no}"))
    engine.dispose()
    older = changed(config, create_table="false")
    caplog.set_level(logging.INFO)
    lease = contender(older)
    lease.renew()
    assert lease.release()
    again = lease
    lease.close()
    lease = contender(older)
    assert lease.epoch > again.epoch and lease.release()
    lease.close()
    said = [each.getMessage() for each in caplog.records if "history" in each.getMessage()]
    assert len(said) == 2, said  # once for each contender
    assert missing == "right" or all(config.notes_table in each and "spark-lease init" in each for each in said)


@pytest.mark.parametrize("config", ["sqlite"], indirect=True)
@pytest.mark.parametrize("what", ["open_notes", "CallTimeout.begin", "CallTimeout.call"])
def test_whatever_a_note_raises_costs_one_line_and_nothing_else(
    config: Config, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver that cannot decode the server's refusal, a machine that has no thread left."""

    def fails(*_: object, **__: object) -> None:
        raise UnicodeDecodeError("utf-8", b"", 0, 1, "no text")

    monkeypatch.setattr(f"spark_lease.journal.changes.{what}", fails)
    lease = contender(config)
    lease.renew()
    assert lease.release()
    lease.close()
    assert caplog.text.count("n: its history cannot be written: UnicodeDecodeError") == 1


@pytest.mark.parametrize("config", ["sqlite"], indirect=True)
def test_a_grant_that_was_never_heard_of_and_is_given_back_has_no_end(
    config: Config, store: LeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = open_contender(config, BootClock())
    swap = SqlStore.swap

    def lost(self: SqlStore, *record: Any) -> None:
        swap(self, *record)
        raise StoreError("here", "the answer was lost")

    monkeypatch.setattr(SqlStore, "swap", lost)
    with pytest.raises(StoreError):
        lease.try_acquire()
    monkeypatch.undo()
    assert lease.release()
    lease.close()
    assert noted(config)["ended"] == {}


@pytest.mark.parametrize("config", ["postgresql", "mariadb"], indirect=True)
def test_a_table_of_notes_that_is_locked_delays_no_grant(config: Config) -> None:
    limited = changed(config, attempt_timeout=1.5)
    contender(config).release()
    lease = open_contender(limited, BootClock())
    engine = create_engine(usable_url(config))
    with engine.connect() as other:
        if engine.dialect.name == "postgresql":
            other.execute(text(f"LOCK TABLE {config.notes_table}"))
        else:
            other.execute(text(f"LOCK TABLES {config.notes_table} WRITE"))
        started = time.monotonic()
        lease.acquire()
        assert time.monotonic() - started < 1.0  # not after the 1.2 s for which a note waits
        assert lease.release()
        assert time.monotonic() - started < 4 * 1.5 + 2
        if engine.dialect.name != "postgresql":
            other.execute(text("UNLOCK TABLES"))
    engine.dispose()
    lease.close()


@pytest.mark.parametrize("config", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("which", "code"), [("table", "25006"), ("notes_table", "40P01")])
def test_a_refusal_that_passes_does_not_end_the_history(config: Config, which: str, code: str) -> None:
    """A server that takes no writes for a while, a deadlock over a note."""
    contender(config).release()
    no, engine = f"{config.table}_no()", create_engine(usable_url(config))
    with engine.begin() as connection:
        ban = f"LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$"
        connection.execute(text(f"CREATE FUNCTION {no} RETURNS trigger {ban}"))
        on = f"BEFORE INSERT OR UPDATE ON {getattr(config, which)}"
        connection.execute(text(f"CREATE TRIGGER no {on} EXECUTE FUNCTION {no}"))
    lease = open_contender(config, BootClock())
    if which == "table":
        with pytest.raises(StoreError):
            lease.try_acquire()
    else:
        lease.acquire()
        assert lease.release()
    with engine.begin() as connection:
        connection.execute(text(f"DROP FUNCTION {no} CASCADE"))
    engine.dispose()
    lease.acquire()
    assert lease.release()
    last = history(config)[-1]
    assert (last.epoch, last.why, bool(last.host)) == (lease.epoch, "released", True)
    lease.close()


@pytest.mark.postgres
def test_the_end_is_noted_in_the_session_of_the_renewals(pg_url: str, table: str, proxy: Proxy) -> None:
    """The next master begins at this moment: a new session would take the server's time from it."""
    config = configure(name="n", url=pg_url, table=table, create_table="true")
    lease = contender(configure(name="n", url=proxy.url, table=table, create_table="true"))
    until(lambda: history(config), lambda found: bool(found[0].host))
    before = proxy.let_in
    lease.ends_as("failed", "exit 3")
    assert lease.release()
    lease.close()
    assert [(each.why, each.detail) for each in history(config)] == [("failed", "exit 3")]
    assert proxy.let_in == before


@pytest.mark.postgres
def test_a_contender_that_is_frozen_in_its_grant_leaves_no_row_locked(pg_url: str, table: str, proxy: Proxy) -> None:
    """The grant is on its way, the answer is not read: the note and the lease are committed, or neither is."""
    config = configure(name="n", url=pg_url, table=table, create_table="true")
    contender(config).release()
    through = configure(name="n", url=proxy.url, table=table, attempt_timeout=2.0, lease_duration=12)
    lease = open_contender(through, BootClock())
    store: Any = lease._locker._store  # type: ignore[attr-defined]
    store.read("n")
    proxy.swallow_answers_from(store._session._plans["take"].execute.partition(" (")[0].encode())

    def take() -> None:
        with contextlib.suppress(StoreError):
            lease.try_acquire()

    frozen = threading.Thread(target=take, daemon=True)
    frozen.start()
    until(lambda: history(config), lambda found: len(found) == 2)
    engine = create_engine(usable_url(config))
    with engine.begin() as other:
        other.execute(text("SET lock_timeout = 100"))
        assert other.execute(text(f"SELECT 1 FROM {table} FOR UPDATE NOWAIT")).all()
    engine.dispose()
    assert history(config)[-1].holder == lease.holder
    proxy.reopen()
    frozen.join(20)


@pytest.mark.postgres
def test_statements_of_the_configuration_are_noted_as_well(pg_url: str, table: str) -> None:
    ours = configure(name="n", url=pg_url, table=table, create_table="true")
    contender(ours).release()
    with closing(open_store(ours)) as store:
        take = store._sql["take"]  # type: ignore[attr-defined]
    theirs = re.sub(r"%\((\w+)\)s", r":\1", take)
    lease = contender(configure(name="n", url=pg_url, table=table, statements={"take": theirs}))
    last = until(lambda: history(ours), lambda found: bool(found[-1].host))[-1]
    assert last.holder == lease.holder
    lease.release()
    lease.close()


@pytest.mark.parametrize("kind", ["postgresql", "file"])
def test_a_command_that_is_killed_and_one_that_loses_its_lease(
    kind: str, url_of: Callable[[str], str], table: str, tmp_path: Path
) -> None:
    url = url_of(kind)
    settings = ["--lease", "n", "--url", url, "--table", table, "--create-table", "true", "--lease-duration", "5"]
    started = subprocess.Popen([COMMAND, "run", *settings, "--", "sleep", "60"], stderr=subprocess.PIPE, text=True)
    assert started.stderr
    while "acquired" not in (line := started.stderr.readline()):
        assert line
    os.kill(started.pid, signal.SIGKILL)
    started.wait()
    started.stderr.close()
    subprocess.run([COMMAND, "run", *settings, "--", "true"], check=True, capture_output=True)
    config = configure(name="n", url=url, table=table)
    killed, finished = history(config)
    assert (killed.why, finished.why) == ("ran out", "finished")
    assert killed.end and finished.start and killed.end <= finished.start
    assert not overlaps([killed, finished])
