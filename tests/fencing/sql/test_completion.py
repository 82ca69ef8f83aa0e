"""Run keys that are completed with their data: both are there, or neither, and nobody completes one twice."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from spark_lease import leased
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.errors import AlreadyDone, ConfigError, Fenced, StoreError
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.tables import DONE
from spark_lease.fencing.sql.transaction import Completion, completing_sql
from spark_lease.holds import open_contender
from spark_lease.lease import Lease
from tests.services.proxy import Proxy
from tests.support.guarded import DOORS, SERVERS, commit_of, engine_for, rows
from tests.support.holders import Holder

NAME, KEY = "nightly", "2026-11-20"


@pytest.fixture
def lease(url: str) -> Iterator[Lease]:
    """A lease that is held, in a store that is not the database."""
    config, clock = configure(name=NAME, url=url), BootClock()
    hold = open_contender(config, clock)
    hold.acquire()
    yield Lease(hold, config, clock)
    hold.release()
    hold.close()


@pytest.fixture
def door(database: str) -> Iterator[Proxy]:
    door = Proxy(database)
    yield door
    door.close()


@pytest.fixture
def through(door: Proxy, engine: Engine) -> Iterator[Engine]:
    engine = engine_for(door.url)
    yield engine
    engine.dispose()


def insert(connection: Connection, epoch: int) -> None:
    connection.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": epoch})


def complete(engine: Engine, holder: Holder, noted: list[tuple[str, int]], *, retention: float = 3600.0) -> None:
    def note(key: str, epoch: int) -> None:
        noted.append((key, epoch))

    with completing_sql(holder, engine, Completion(KEY, note, retention)) as connection:
        insert(connection, holder.epoch)


def test_a_key_is_done_with_its_data_and_not_done_again(engine: Engine, lease: Lease) -> None:
    with lease.fenced_sql(engine, completes=KEY) as connection:
        insert(connection, lease.epoch)
    assert (rows(engine), lease.is_done(KEY)) == (1, True)
    with pytest.raises(AlreadyDone) as raised, lease.fenced_sql(engine, completes=KEY) as connection:
        raise AssertionError("the block was entered")
    assert (raised.value.key, raised.value.epoch, rows(engine)) == (KEY, lease.epoch, 1)
    with lease.fenced_sql(engine, completes="2026-11-21") as connection:
        insert(connection, lease.epoch)
    assert rows(engine) == 2


def test_what_fails_leaves_neither_data_nor_key(engine: Engine, lease: Lease) -> None:
    with pytest.raises(KeyError), lease.fenced_sql(engine, completes=KEY) as connection:
        insert(connection, lease.epoch)
        raise KeyError
    with pytest.raises(IntegrityError), lease.fenced_sql(engine, completes=KEY) as connection:
        for _ in range(2):
            connection.execute(text("INSERT INTO spark_lease_fence (name, epoch) VALUES ('x', 1)"))
    assert (rows(engine), lease.is_done(KEY), FenceTable(engine).done_under(NAME, KEY)) == (0, False, None)


@SERVERS
def test_of_two_masters_that_finish_one_key_at_the_same_time_one_writes(engine: Engine) -> None:
    """Under one epoch, as two stores that do not know of each other may give it: the fence tells them not apart."""
    noted: list[tuple[str, int]] = []
    slow, fast = Holder(NAME, 5), Holder(NAME, 5)
    with pytest.raises(AlreadyDone, match="was done under epoch 5"):
        with completing_sql(slow, engine, Completion(KEY, lambda *told: noted.append(told), 60)) as connection:
            insert(connection, 1)
            complete(engine, fast, noted)
    assert (rows(engine, 1), rows(engine, 5), slow.lost) == (0, 1, [])
    assert noted == [(KEY, 5), (KEY, 5)]


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_what_is_not_committed_is_not_done_though_the_engine_reads_it(engine: Engine) -> None:
    """A master that is frozen before its COMMIT has the day's row there, and will never commit it."""
    claim(Holder(NAME, 5), engine)
    dirty = engine_for(engine.url.render_as_string(hide_password=False), isolation_level="READ UNCOMMITTED")
    with engine.connect() as frozen, dirty.connect() as reader:
        frozen.execute(DONE.insert(), {"name": NAME, "run_key": KEY, "epoch": 5, "finished": 0})
        assert reader.scalar(select(DONE.c.epoch)) == 5
        assert FenceTable(dirty).done_under(NAME, KEY) is None
        frozen.rollback()
    dirty.dispose()


def test_a_former_master_completes_nothing_and_the_next_one_does(engine: Engine) -> None:
    noted: list[tuple[str, int]] = []
    old, new = Holder(NAME, 5), Holder(NAME, 6)
    claim(old, engine)
    claim(new, engine)
    with pytest.raises(Fenced):
        complete(engine, old, noted)
    assert noted == []
    complete(engine, new, noted)
    assert (rows(engine), noted) == (1, [(KEY, 6)])


@DOORS
def test_an_answer_to_commit_that_was_lost_leaves_the_key_done_once(
    engine: Engine, through: Engine, door: Proxy
) -> None:
    noted: list[tuple[str, int]] = []
    claim(Holder(NAME, 5), through)
    door.cut_after(commit_of(engine))
    complete(through, Holder(NAME, 5), noted)
    assert (door.cuts, rows(engine), noted) == (1, 1, [(KEY, 5)])
    with pytest.raises(AlreadyDone):
        complete(through, Holder(NAME, 5), noted)
    assert rows(engine) == 1


@DOORS
def test_a_commit_that_never_arrived_leaves_the_key_to_another_try(
    engine: Engine, through: Engine, door: Proxy
) -> None:
    noted: list[tuple[str, int]] = []
    claim(Holder(NAME, 5), through)
    door.cut_before(commit_of(engine))
    with pytest.raises(DBAPIError):
        complete(through, Holder(NAME, 5), noted)
    assert (door.cuts, rows(engine), noted) == (1, 0, [])
    complete(through, Holder(NAME, 5), noted)
    assert (rows(engine), noted) == (1, [(KEY, 5)])


def test_a_crash_between_commit_and_note_is_healed_by_the_next_run(engine: Engine, lease: Lease) -> None:
    address = engine.url.render_as_string(hide_password=False)
    script = f"""
        import os
        from sqlalchemy import create_engine, text
        from spark_lease.fencing.sql.transaction import Completion, completing_sql
        from tests.support.holders import Holder
        engine, crash = create_engine({address!r}), lambda *_: os._exit(9)
        with completing_sql(Holder({NAME!r}, 5), engine, Completion({KEY!r}, crash, 60)) as connection:
            connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=60)
    assert (done.returncode, rows(engine, 5), lease.is_done(KEY)) == (9, 1, False)
    with pytest.raises(AlreadyDone, match="was done under epoch 5"), lease.fenced_sql(engine, completes=KEY):
        pass
    assert lease.is_done(KEY)
    with pytest.raises(AlreadyDone, match="under epoch 5"):
        lease._hold.runs.begin(KEY)


def test_a_note_that_cannot_be_made_takes_nothing_back(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    def fail(key: str, epoch: int) -> None:
        raise StoreError("somewhere", "is down")

    with completing_sql(Holder(NAME, 5), engine, Completion(KEY, fail, 60)) as connection:
        insert(connection, 5)
    assert (rows(engine), FenceTable(engine).done_under(NAME, KEY)) == (1, 5)
    assert "is done, and not noted beside the lease: lease store somewhere: is down" in caplog.text


def test_keys_are_forgotten_after_their_retention(engine: Engine) -> None:
    noted: list[tuple[str, int]] = []
    complete(engine, Holder(NAME, 5), noted)
    assert FenceTable(engine).done_under(NAME, KEY) == 5
    begun = time.monotonic()
    while FenceTable(engine).done_under(NAME, KEY):  # by the database's clock
        FenceTable(engine).forget_done(NAME, 0.2)
        assert time.monotonic() - begun < 10
    complete(engine, Holder(NAME, 5), noted, retention=0.0)
    assert rows(engine) == 2


@pytest.mark.parametrize("key", ["a\nb", "x" * 251])
def test_a_key_that_is_none_is_refused(engine: Engine, lease: Lease, key: str) -> None:
    with pytest.raises(ConfigError, match="printable text of 1 to 250"), lease.fenced_sql(engine, completes=key):
        pass


def test_a_main_whose_key_was_done_elsewhere_ends_like_one_that_was_left_out(engine: Engine, url: str) -> None:
    complete(engine, Holder(NAME, 5), [])

    @leased(NAME, url=url, keeper="thread")
    def main(lease: Lease) -> None:
        with lease.fenced_sql(engine, completes=KEY):
            raise AssertionError("the block was entered")

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
