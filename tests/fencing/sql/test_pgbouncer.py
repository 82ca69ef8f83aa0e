"""Behind PgBouncer in transaction mode: whatever we do there, the next client finds the session as it was."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.errors import ConfigError, Fenced
from spark_lease.fencing.dataframe.load import _load, rows_of
from spark_lease.fencing.dataframe.staging import staging
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.session import application_prefix, session_environment, setting_of
from spark_lease.fencing.sql.transaction import fenced_sql
from spark_lease.holds import open_contender
from tests.services.pgbouncer import running_pgbouncer
from tests.services.postgres import PostgreSql, own_postgres
from tests.support.guarded import create_guarded
from tests.support.holders import Holder

pytestmark = [pytest.mark.postgres, pytest.mark.pgbouncer]
NAME, EPOCHS = "n", itertools.count(5)
STATE = {
    "settings": "SELECT name, setting FROM pg_settings ORDER BY name",
    "epoch": f"SELECT coalesce(current_setting('{setting_of(NAME)}', true), '')",
    "channels": "SELECT * FROM pg_listening_channels()",
    "locks": "SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'",
    "cursors": "SELECT name FROM pg_cursors",
    "prepared": "SELECT name FROM pg_prepared_statements",
    "temporary": "SELECT relname FROM pg_class WHERE relpersistence = 't'",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with own_postgres() as server:
        create_guarded(create_engine(server.url, poolclass=NullPool))
        yield server


@pytest.fixture(params=[{"ignore_startup_parameters": "options"}, {}], ids=["passes over options", "refuses options"])
def url(request: pytest.FixtureRequest, server: PostgreSql) -> Iterator[str]:
    with running_pgbouncer(server.url, sessions=1, **request.param) as url:
        yield url


def state(engine: Engine) -> dict[str, list[Any]]:
    with engine.connect() as connection:
        return {what: [tuple(each) for each in connection.execute(text(look))] for what, look in STATE.items()}


def test_a_task_stages_its_rows_through_it(url: str, server: PostgreSql) -> None:
    engine, lease = create_engine(url), Holder(NAME, next(EPOCHS))
    with staging(lease, engine, "guarded", [SimpleNamespace(staged="bigint")]) as place:  # type: ignore[list-item]
        number = _load(place, iter([pyarrow.RecordBatch.from_pydict({"c0": [1, 2]})]), 0)
        with engine.connect() as connection:
            assert connection.execute(text(f"SELECT count(*) FROM {rows_of(place, [number])}")).scalar() == 2
    assert place.words["application_name"].startswith(application_prefix(NAME, lease.epoch)), "a claim ends it by that"
    engine.dispose()


def keep_a_lease(url: str, engine: Engine) -> None:
    config = configure(name=NAME, url=url, create_table="true", notify=False)
    with closing(open_contender(config, BootClock())) as lease:
        lease.acquire()
        lease.renew()
        lease.note("kind", "key", "text")
        lease.release()


def stand_by(url: str, engine: Engine) -> None:
    """With `notify` as it is by default."""
    config, looks, has_looked_twice = configure(name=NAME, url=url, create_table="true", poll_period=0.1), [], Event()

    def look() -> None:
        looks.append(1)
        if len(looks) > 2:
            has_looked_twice.set()

    master, standby = open_contender(config, BootClock()), open_contender(config, BootClock())
    with closing(master), closing(standby):
        master.acquire()
        waiting = Thread(target=standby.acquire, kwargs={"still_wanted": look})
        waiting.start()
        assert has_looked_twice.wait(20)
        master.renew()
        master.release()
        waiting.join(20)
        assert standby.check() and standby.release()


def raise_a_fence(url: str, engine: Engine) -> None:
    epoch = next(EPOCHS)
    claim(Holder(NAME, epoch), engine)
    assert FenceTable(engine).newest(NAME) == epoch


def write_under_it(url: str, engine: Engine) -> None:
    epoch = next(EPOCHS)
    with fenced_sql(Holder(NAME, epoch), engine) as connection:
        connection.exec_driver_sql(f"INSERT INTO guarded (epoch) VALUES ({epoch})")
    claim(Holder(NAME, next(EPOCHS)), engine)
    with pytest.raises(Fenced), fenced_sql(Holder(NAME, epoch), engine) as connection:
        connection.exec_driver_sql(f"INSERT INTO guarded (epoch) VALUES ({epoch})")
    with engine.connect() as connection:
        assert connection.execute(text(f"SELECT count(*) FROM guarded WHERE epoch = {epoch}")).scalar() == 1


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
@pytest.mark.parametrize("work", [keep_a_lease, stand_by, raise_a_fence, write_under_it])
def test_the_next_client_finds_the_session_as_it_was(
    url: str, driver: str, work: Callable[[str, Engine], None]
) -> None:
    with_driver = url.replace("postgresql:", f"postgresql+{driver}:")
    engine = create_engine(with_driver, poolclass=NullPool)
    work(with_driver, engine)  # its tables are made
    before = state(engine)
    work(with_driver, engine)
    assert state(engine) == before
    assert not any(before[what] for what in ("channels", "locks", "prepared", "temporary"))
    assert before["epoch"] == [("",)]


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_with_pgoptions_in_the_environment_a_pooler_that_refuses_it_is_no_obstacle_to_a_lease(
    server: PostgreSql, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver under `submit` renews with it from threads, and a command under `run` may guard something itself."""
    monkeypatch.setenv("PGOPTIONS", session_environment(NAME, 5, {})["PGOPTIONS"])
    with running_pgbouncer(server.url, sessions=2) as url:
        with_driver = url.replace("postgresql:", f"postgresql+{driver}:")
        keep_a_lease(with_driver, create_engine(with_driver, poolclass=NullPool))


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_script_whose_pooler_refuses_pgoptions_is_told_at_once_what_to_do(
    server: PostgreSql, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in session_environment(NAME, 5, {}).items():
        monkeypatch.setenv(name, value)
    with running_pgbouncer(server.url, sessions=1) as url:
        engine = create_engine(url.replace("postgresql:", f"postgresql+{driver}:"), poolclass=NullPool)
        began = time.monotonic()
        with pytest.raises(ConfigError, match="ignore_startup_parameters = options") as raised:
            claim(Holder(NAME, 5), engine, timeout=10)
        assert time.monotonic() - began < 5
        assert raised.value.exit_code == 78
        monkeypatch.delenv("PGOPTIONS")  # as it says
        claim(Holder(NAME, next(EPOCHS)), engine)


def keep(stack: contextlib.ExitStack, engine: Engine, session: int) -> None:
    """Keep this session to itself, until `stack` is closed."""
    with contextlib.ExitStack() as others:
        while True:
            transaction = contextlib.ExitStack()
            found = transaction.enter_context(engine.begin()).execute(text("SELECT pg_backend_pid()")).scalar_one()
            if found == session:
                stack.push(transaction)
                return
            others.push(transaction)


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_each_transaction_may_get_another_session(server: PostgreSql, driver: str) -> None:
    with running_pgbouncer(server.url, sessions=3, ignore_startup_parameters="options") as url:
        with_driver = url.replace("postgresql:", f"postgresql+{driver}:")
        engine, others, lease = create_engine(with_driver), create_engine(with_driver), Holder(NAME, next(EPOCHS))
        used = list[int]()
        config = configure(name=NAME, url=with_driver, create_table="true", notify=False)
        with closing(open_contender(config, BootClock())) as kept, contextlib.ExitStack() as stack:
            kept.acquire()
            for _ in range(3):
                kept.renew()
                with fenced_sql(lease, engine) as connection:
                    used.append(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())
                keep(stack, others, used[-1])
            stack.close()
            kept.release()
        assert len(set(used)) == 3
        engine.dispose()
        others.dispose()
