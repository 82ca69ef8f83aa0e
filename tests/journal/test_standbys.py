"""Contenders that wait are noted beside the lease, by every store that can, and wait for none of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from spark_lease.clock import BootClock, wall_time
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.errors import LeaseHeldByOther
from spark_lease.holds import LocalHold, open_contender
from spark_lease.journal.standbys import KIND, LATELY, Standby, standbys_of
from spark_lease.stores.registry import open_notes
from tests.services.objects import BUCKET, ObjectServer
from tests.support.drivers import until, wait_until_noted

SQL = ["sqlite", "postgresql", "mariadb"]


@pytest.fixture(params=[*SQL, "file", "delta", "objects"])
def config(request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str) -> Config:
    if request.param == "objects":
        server: ObjectServer = request.getfixturevalue("objects")
        return configure(name="n", url=f"delta+s3://{BUCKET}/{table}", storage_options=server.options())
    return configure(name="n", url=url_of(request.param), table=table, create_table="true", poll_period=0.05)


def standbys(config: Config) -> list[Standby]:
    with closing(open_notes(config)) as notes:
        return standbys_of(notes, "n", wall_time())


def waits(config: Config) -> tuple[LocalHold, threading.Thread]:
    standby = open_contender(config, BootClock())
    thread = threading.Thread(target=standby.acquire)
    thread.start()
    return standby, thread


def test_who_waits_is_seen_until_he_has_it(config: Config) -> None:
    with closing(open_contender(config, BootClock())) as master:
        master.acquire()
        assert standbys(config) == []
        standby, thread = waits(replace(config, site="lyon"))
        (seen,) = until(lambda: standbys(config))
        assert (seen.holder, seen.site, bool(seen.host)) == (standby.holder, "lyon", True)
        assert master.release()
    thread.join(20)
    assert standby.epoch
    until(lambda: standbys(config) == [])
    standby.release()
    standby.close()


def test_how_warm_it_is_is_noted_as_it_changes(config: Config) -> None:
    with closing(open_contender(config, BootClock())) as master:
        master.acquire()
        standby, thread = waits(config)
        cold = until(lambda: standbys(config))[0]
        assert cold.state == "cold"
        standby.stands_by("warming up")
        standby._standby_note.say()  # type: ignore[union-attr]
        (warm,) = until(lambda: [each for each in standbys(config) if each.state == "warming up"])
        assert (warm.holder, warm.since >= cold.at) == (standby.holder, True)
        assert master.release()
    thread.join(20)
    standby.release()
    standby.close()


def test_a_note_of_an_earlier_version_is_a_cold_standby(config: Config) -> None:
    with closing(open_contender(config, BootClock())) as master, closing(open_notes(config)) as notes:
        master.acquire()
        text = json.dumps({"holder": "old", "site": "", "host": "h", "at": wall_time()})
        notes.add("n", KIND, "old", text, holder=master.holder, epoch=master.epoch)
        assert [(each.holder, each.state) for each in standbys(config)] == [("old", "cold")]


def test_who_asks_once_leaves_no_note(config: Config) -> None:
    with closing(open_contender(config, BootClock())) as master:
        master.acquire()
        renewal = threading.Timer(0.3, master.renew)  # who has no clock to ask waits for one
        renewal.start()
        with closing(open_contender(replace(config, if_held="skip"), BootClock())) as other:
            with pytest.raises(LeaseHeldByOther):
                other.acquire()
        renewal.join()
        until(lambda: standbys(config) == [])
        master.release()


@pytest.mark.parametrize("config", SQL, indirect=True)
def test_without_a_place_for_notes_it_waits_all_the_same(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    with closing(open_contender(config, BootClock())) as master:
        master.acquire()
        wait_until_noted(master)  # in a table that would be made again
        engine = create_engine(usable_url(config))
        with engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {config.notes_table}"))
        caplog.set_level("DEBUG", "spark_lease.journal.standbys")
        standby, thread = waits(replace(config, create_table="false"))
        until(lambda: "this standby is not noted" in caplog.text)
        assert master.release()
    thread.join(20)
    assert standby.epoch
    standby.close()
    engine.dispose()


@pytest.mark.parametrize("config", ["sqlite"], indirect=True)
def test_what_is_old_or_nobodys_is_not_shown(config: Config) -> None:
    now = wall_time()
    with closing(open_contender(config, BootClock())) as master, closing(open_notes(config)) as notes:
        master.acquire()

        def note(key: str, said: str) -> Any:
            return notes.add("n", KIND, key, said, holder=master.holder, epoch=master.epoch)

        assert note("a", '{"holder": "a:1:2:3", "site": "", "host": "h", "at": ' + f"{now}}}")
        assert note("b", '{"holder": "b:1:2:3", "site": "", "host": "h", "at": ' + f"{now - LATELY - 1}}}")
        assert note("c", "garbage")
        assert [each.holder for each in standbys_of(notes, "n", now)] == ["a:1:2:3"]
        master.release()
