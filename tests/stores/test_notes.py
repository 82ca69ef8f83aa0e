"""Notes beside leases: durable, made once, and none by a holder whose lease is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.election.ports import Notes
from spark_lease.election.record import LeaseRecord, released, taken
from spark_lease.errors import ConfigError, StoreError
from spark_lease.stores.folders.files import LocalFiles
from spark_lease.stores.registry import open_notes, open_store
from tests.services.objects import BUCKET, ObjectServer


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "broker", "file", "delta", "objects"])
def config(request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str) -> Config:
    if request.param == "objects":
        server: ObjectServer = request.getfixturevalue("objects")
        return configure(name="a", url=f"delta+s3://{BUCKET}/{table}", storage_options=server.options())
    url = url_of("postgresql" if request.param == "broker" else request.param)
    more: dict[str, Any] = {"broker_row": "true"} if request.param == "broker" else {}
    return configure(name="a", url=url, table=table, create_table="true", **more)


@pytest.fixture
def notes(config: Config) -> Iterator[Notes]:
    with closing(open_notes(config)) as found:
        yield found


def granted(config: Config, holder: str, *, over: LeaseRecord | None = None) -> LeaseRecord:
    with closing(open_store(config)) as store:
        there = store.read(config.name).record
        written = store.swap(config.name, over or there, taken(over or there, holder=holder, duration=30))
    assert written
    return written


def test_what_a_holder_noted_is_found_by_the_next_one(config: Config, notes: Notes) -> None:
    mine = granted(config, "paris:1")
    assert notes.all("a", "table") == {}
    assert notes.add("a", "table", "s3://lake/flights day=1", "of paris", holder="paris:1", epoch=mine.epoch)
    with closing(open_notes(config)) as others:
        assert others.all("a", "table") == {"s3://lake/flights day=1": "of paris"}
        assert others.all("a", "run") == {} == others.all("b", "table")
        assert others.remove("a", "table", "s3://lake/flights day=1")
        assert not others.remove("a", "table", "s3://lake/flights day=1")
    assert notes.all("a", "table") == {}


def test_whoever_is_second_is_told_what_stands_there(config: Config, notes: Notes) -> None:
    mine = granted(config, "paris:1")
    assert notes.add("a", "run", "2026-11-20", "first", holder="paris:1", epoch=mine.epoch) == "first"
    assert notes.add("a", "run", "2026-11-20", "second", holder="paris:1", epoch=mine.epoch) == "first"
    assert notes.all("a", "run") == {"2026-11-20": "first"}


def test_a_holder_whose_lease_is_gone_notes_nothing_and_is_told(config: Config, notes: Notes) -> None:
    mine = granted(config, "paris:1")
    assert notes.add("a", "table", "/t", "x", holder="lyon:1", epoch=mine.epoch) is None
    assert notes.add("a", "table", "/t", "x", holder="paris:1", epoch=mine.epoch - 1) is None
    with closing(open_store(config)) as store:
        store.swap("a", mine, released(mine))
    assert notes.add("a", "table", "/t", "x", holder="paris:1", epoch=mine.epoch) is None
    assert notes.all("a", "table") == {}


def test_a_key_may_be_longer_than_a_path_and_in_any_letters(config: Config, notes: Notes) -> None:
    mine = granted(config, "paris:1")
    keys = ["Ä" * 2000, "/a", "/A", "/a ", "../../etc", "日本/☃"]
    for each in keys:
        assert notes.add("a", "table", each, f"«{each[:9]}»", holder="paris:1", epoch=mine.epoch) == f"«{each[:9]}»"
    assert notes.all("a", "table") == {each: f"«{each[:9]}»" for each in keys}


def test_what_is_old_is_pruned_and_what_is_not_stays(config: Config, notes: Notes) -> None:
    mine = granted(config, "paris:1")
    for kind, key in (("run", "old"), ("table", "old")):
        notes.add("a", kind, key, "x", holder="paris:1", epoch=mine.epoch)
    notes.prune("a", ["run"], 3600.0)
    assert notes.get("a", "run", "old") == "x"
    time.sleep(1.1)  # the stamps of an object store have whole seconds
    notes.add("a", "run", "new", "y", holder="paris:1", epoch=mine.epoch)
    notes.prune("a", ["run"], 0.5)
    assert notes.all("a", "run") == {"new": "y"}
    assert notes.get("a", "run", "old") is None
    assert notes.all("a", "table") == {"old": "x"}


def test_a_long_history_is_read_though_each_note_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those in an object store far away do: one after the other they would take longer than one answer may."""
    config = configure(name="a", url=f"file://{tmp_path}", attempt_timeout=1.0)
    granted(config, "h")
    with closing(open_notes(config)) as notes:
        wanted = {f"k{number}": str(number) for number in range(300)}
        for key, text in wanted.items():
            notes.append("a", "table", key, text)
        get = LocalFiles.get
        monkeypatch.setattr(LocalFiles, "get", lambda *its: (time.sleep(0.02), get(*its))[1])
        assert notes.all("a", "table") == wanted
        monkeypatch.setattr(LocalFiles, "get", lambda *its: time.sleep(3))
        with pytest.raises(StoreError, match="no answer within 1 s"):
            notes.all("a", "table")


def test_a_store_that_is_down_gives_no_answer(tmp_path: Path) -> None:
    config = configure(name="a", url="postgresql://x@127.0.0.1:9/x", attempt_timeout=1.0)
    with closing(open_notes(config)) as notes, pytest.raises(StoreError):
        notes.all("a", "table")


@pytest.mark.parametrize("config", ["postgresql", "mariadb"], indirect=True)
def test_a_table_that_may_not_be_made_is_asked_for(config: Config) -> None:
    made = open_notes(config.__class__(**{**_fields(config), "create_table": "auto"}))
    with closing(made), pytest.raises(ConfigError, match="run spark-lease init"):
        made.all("a", "table")


@pytest.mark.mariadb
@pytest.mark.parametrize("config", ["mariadb"], indirect=True)
def test_tables_in_other_letters_are_found(config: Config) -> None:
    """Made by hand, on a server that tells upper and lower case apart."""
    with closing(open_store(config)) as store:
        store.init()  # type: ignore[attr-defined]
    engine = create_engine(usable_url(config))
    with engine.begin() as connection:
        for each in (config.table, f"{config.table}_notes"):
            connection.exec_driver_sql(f"RENAME TABLE {each} TO {each.upper()}")
    engine.dispose()
    mine = granted(config, "paris:1")
    never = config.__class__(**{**_fields(config), "create_table": "false"})
    with closing(open_notes(never)) as notes:
        assert notes.add("a", "table", "/t", "x", holder="paris:1", epoch=mine.epoch) == "x"
    with closing(open_notes(never)) as notes:
        assert notes.all("a", "table") == {"/t": "x"}
        assert notes.remove("a", "table", "/t")


def _fields(config: Config) -> dict[str, Any]:
    return {key: getattr(config, key) for key in config.__slots__}


def test_init_makes_the_notes_as_well(config: Config, notes: Notes) -> None:
    with closing(open_store(config)) as store:
        store.init()  # type: ignore[attr-defined]
        assert not [each for each in store.init() if "notes" in each]  # type: ignore[attr-defined]
    assert notes.all("a", "table") == {}
