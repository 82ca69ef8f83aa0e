"""Real servers behind a door that hangs, swallows answers and slams; restarted ones; a real backend that is frozen."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.election.keepalive import Keepalive
from spark_lease.election.ports import Denied
from spark_lease.election.record import taken
from spark_lease.errors import LeaseLost, Loss, StoreError
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.store import SqlStore
from tests.services.mariadb import MariaDb
from tests.services.pooler import Pooler
from tests.services.postgres import PostgreSql, own_postgres, with_psycopg
from tests.services.proxy import Proxy
from tests.support.drivers import until, wait_until_noted
from tests.support.holders import Holder

LIMIT = 1.0


def limits(url: str, table: str, **settings: Any) -> Config:
    timings = {"lease_duration": 6, "attempt_timeout": LIMIT, "retry_period": LIMIT}
    return configure(**{"name": "n", "url": url, "table": table, "create_table": "true", **timings, **settings})


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest) -> str:
    mysql = request.param == "mariadb"
    return str(request.getfixturevalue("mariadb").url if mysql else request.getfixturevalue("pg_url"))


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    door = Proxy(url)
    yield door
    door.close()


@pytest.fixture
def lease(proxy: Proxy, table: str) -> Iterator[LocalHold]:
    lease = open_contender(limits(proxy.url, table, name=table, lease_duration=12), BootClock())
    lease.acquire()
    wait_until_noted(lease)
    yield lease
    lease.close()


@pytest.fixture(scope="module")
def trusting() -> Iterator[PostgreSql]:
    """Behind the poolers, which know no password."""
    with own_postgres() as server:
        yield server


def took(action: Any) -> float:
    start = time.monotonic()
    with pytest.raises(StoreError):
        action()
    return time.monotonic() - start


def test_a_server_that_hangs_raises_in_time(lease: LocalHold, proxy: Proxy) -> None:
    proxy.stall()
    assert took(lease.renew) < 2 * LIMIT + 0.5
    proxy.reopen()
    lease.renew()
    assert lease.check()


def test_a_connection_that_cannot_be_made_raises_in_time(proxy: Proxy, table: str) -> None:
    proxy.stall()
    store = SqlStore(limits(proxy.url, table))
    assert took(lambda: store.read("n")) < 2 + LIMIT + 1  # libpq's own limit has whole seconds, two at least
    store.close()


@pytest.mark.parametrize("moment", ["SET ", "version", "PREPARE", "SELECT"])
def test_a_server_that_freezes_while_a_connection_is_opened_raises_in_time(
    proxy: Proxy, table: str, moment: str
) -> None:
    if moment == "PREPARE" and proxy.url.startswith("mysql"):
        moment = "_password"  # of the plugin; nothing is prepared there
    proxy.stall_at(moment.encode())
    store = SqlStore(limits(proxy.url, table))
    assert took(lambda: store.read("n")) < 2 * LIMIT + 0.5
    assert proxy.mode == "stalled"
    store.close()


def test_closing_does_not_wait_for_a_request_that_hangs(lease: LocalHold, proxy: Proxy) -> None:
    proxy.stall()
    hanging = threading.Thread(target=took, args=(lease.renew,))
    hanging.start()
    time.sleep(LIMIT / 2)  # nothing to wait for: it is to be in the middle of its request
    start = time.monotonic()
    lease.close()
    assert time.monotonic() - start < LIMIT / 2
    hanging.join(5)
    assert not hanging.is_alive()


def test_a_lost_answer_is_adopted_for_real(lease: LocalHold, proxy: Proxy) -> None:
    left = lease.remaining()
    proxy.swallow_answers()
    with pytest.raises(StoreError):
        lease.renew()
    assert lease.remaining() < left
    proxy.reopen()
    lease.renew()
    assert lease.check()


def test_a_connection_that_was_cut_is_opened_again(lease: LocalHold, proxy: Proxy) -> None:
    proxy.slam()
    lease.renew()
    assert lease.check()


@pytest.mark.parametrize("url", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_frozen_backend_raises_in_time_and_another_is_used(lease: LocalHold, url: str) -> None:
    backend = until(lambda: backend_of(f"spark_lease {lease.name}", url))
    os.kill(backend, signal.SIGSTOP)
    try:
        assert took(lease.renew) < 2 * LIMIT + 0.5
        lease.renew()
        assert lease.check()
    finally:
        os.kill(backend, signal.SIGCONT)


def test_a_row_that_somebody_locks_raises_in_time(lease: LocalHold, url: str, table: str) -> None:
    with create_engine(usable_url(limits(url, table))).begin() as other:
        other.exec_driver_sql(f"SELECT * FROM {table} FOR UPDATE")
        assert took(lease.renew) < 2 * LIMIT + 0.5
    lease.renew()


@pytest.mark.mariadb
def test_a_mariadb_that_is_killed_and_comes_back_costs_a_warning(mariadb: MariaDb, table: str) -> None:
    ride_out(mariadb.url, table, lambda: mariadb.stop(signal.SIGKILL), mariadb.start)


@pytest.fixture
def postgres() -> Iterator[PostgreSql]:
    with own_postgres() as server:
        yield server


@pytest.fixture
def keep() -> Iterator[Callable[[LocalHold, Config], threading.Event]]:
    """Have a lease renewed and watched; the event says that it was lost."""
    started: list[Keepalive] = []

    def start(lease: LocalHold, config: Config) -> threading.Event:
        lost = threading.Event()
        started.append(Keepalive(lease, config, clock=BootClock(), on_lost=lambda error: lost.set()))
        started[-1].start()
        return lost

    yield start
    for each in started:
        each.stop()


@pytest.mark.postgres
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_postgresql_that_is_restarted_costs_a_warning(
    postgres: PostgreSql, table: str, number: int, keep: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = limits(postgres.url, table, lease_duration=18)
    lease = open_contender(config, BootClock())
    epoch = lease.acquire()
    lost = keep(lease, config)
    postgres.stop(number)
    until(lambda: "renewal failed" in caplog.text)
    postgres.start()
    seen = lease.remaining()
    until(lambda: lease.remaining() > seen)
    assert lease.check() == epoch and not lost.is_set()
    assert {each.levelname for each in caplog.records} == {"WARNING"}
    lease.close()


@pytest.mark.postgres
@pytest.mark.parametrize("through", [str, with_psycopg], ids=["psycopg2", "psycopg"])
@pytest.mark.parametrize("is_pooled", [False, True], ids=["", "pooler"])
def test_what_a_grant_a_claim_and_a_note_were_told_outlives_a_crash_where_commits_may_be_lost(
    through: Callable[[str], str], is_pooled: bool
) -> None:
    with own_postgres(synchronous_commit="off", wal_writer_delay="10s") as server, contextlib.ExitStack() as opened:
        config = limits(through(server.url), "spark_lease")
        pooler = opened.enter_context(contextlib.closing(Pooler(server.url))) if is_pooled else server
        lease = open_contender(limits(through(pooler.url), "spark_lease", notify=False), BootClock())
        epoch = lease.acquire()
        claim(Holder("n", epoch), create_engine(config.url, poolclass=NullPool))
        lease.renew()
        assert lease.note("run", "2026-01-01", "done") == "done"
        server.stop(signal.SIGQUIT)
        server.start()
        standby = open_contender(config, BootClock())
        assert isinstance(standby.try_acquire(), Denied)
        assert standby.noted("run") == {"2026-01-01": "done"}
        assert FenceTable(create_engine(config.url, poolclass=NullPool)).newest("n") == epoch
        for each in (lease, standby):
            each.close()


@pytest.mark.postgres
def test_after_a_longer_outage_somebody_is_master_again_and_nobody_was_too_early(
    postgres: PostgreSql, table: str, keep: Any
) -> None:
    config = limits(postgres.url, table, lease_duration=4, attempt_timeout=0.7, retry_period=0.7)
    lease, standby = open_contender(config, BootClock()), open_contender(config, BootClock())
    lease.acquire()
    lost, granted = keep(lease, config), []
    waiting = threading.Thread(target=lambda: granted.append((standby.acquire(), BootClock().now())))
    waiting.start()
    until(lambda: store_of(standby)._session._listening_to)
    postgres.stop()
    assert lost.wait(10) and not granted
    with pytest.raises(LeaseLost) as raised:
        lease.check()
    assert raised.value.reason is Loss.EXPIRED
    postgres.start()
    waiting.join(20)
    (epoch, since), *_ = granted
    assert epoch > lease.epoch and since > lease.stop_by()
    standby.release()
    for each in (lease, standby):
        each.close()


@pytest.mark.postgres
def test_a_standby_that_listened_over_a_restart_is_still_woken_by_the_release(postgres: PostgreSql, table: str) -> None:
    """Only a release, heard on its next connection, can wake it before the lease of half a minute runs out."""
    config = limits(postgres.url, table, lease_duration=30, poll_period=0.2)
    lease, standby = open_contender(config, BootClock()), open_contender(config, BootClock())
    lease.acquire()
    wait_until_noted(lease)
    waiting = threading.Thread(target=standby.acquire)
    waiting.start()
    until(lambda: store_of(standby)._session._listening_to)
    before = store_of(standby)._session.connection
    postgres.stop(signal.SIGQUIT)
    until(lambda: store_of(standby)._session.connection is None)
    postgres.start()
    until(lambda: store_of(standby)._session._listening_to)
    assert store_of(standby)._session.connection is not before
    lease.renew()
    lease.release()
    waiting.join(10)
    assert standby.check() > lease.epoch
    for each in (lease, standby):
        each.close()


def store_of(lease: LocalHold) -> Any:
    return lease._locker._store  # type: ignore[attr-defined]


def ride_out(url: str, table: str, kill: Callable[[], Any], start: Callable[[], Any]) -> None:
    """An outage that is shorter than what is left of the lease."""
    config = limits(url, table, lease_duration=18)
    lease, standby = open_contender(config, BootClock()), open_contender(config, BootClock())
    lease.acquire()
    kill()
    with pytest.raises(StoreError):
        lease.renew()
    with pytest.raises(StoreError):
        standby.try_acquire()
    start()
    lease.renew()
    assert lease.check()
    assert isinstance(standby.try_acquire(), Denied)
    lease.release()
    assert standby.acquire() > lease.epoch
    for each in (lease, standby):
        each.close()


@pytest.mark.postgres
def test_a_session_that_forgets_what_was_prepared_is_served_plainly(pg_url: str, table: str) -> None:
    """A pooler that hands every transaction to another session does that."""
    store = SqlStore(limits(pg_url, table))
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    store._session.cursor.execute("DEALLOCATE ALL")
    with pytest.raises(StoreError, match="does not exist"):
        store.read("n")
    assert store.read("n").record == record
    store._session.cursor.execute("DEALLOCATE ALL")
    assert store.read("n").record == record
    store.close()


@pytest.mark.postgres
@pytest.mark.parametrize("refuses", [False, True], ids=["passes over options", "refuses options"])
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
@pytest.mark.parametrize("locker", ["lease", "database"])
def test_no_timeout_of_ours_stays_in_the_session_of_a_pooler(
    trusting: PostgreSql, table: str, driver: str, refuses: bool, locker: str
) -> None:
    pooler = Pooler(trusting.url, sessions=4 if locker == "database" else 1, refuses_options=refuses)
    url = pooler.url.replace("postgresql:", f"postgresql+{driver}:")
    engine = create_engine(url, poolclass=NullPool)
    names = "'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'tcp_keepalives_idle'"
    look = text(f"SELECT name, setting FROM pg_settings WHERE name IN ({names}) ORDER BY name")
    with contextlib.closing(pooler):
        with engine.connect() as connection:
            before = list(connection.execute(look))
        lease = open_contender(limits(url, table, notify=False, locker=locker), BootClock())
        with contextlib.closing(lease):
            lease.acquire()
            lease.renew()
            with engine.connect() as connection:
                assert list(connection.execute(look)) == before
            lease.release()
        with engine.connect() as connection:
            assert list(connection.execute(look)) == before


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_behind_a_pooler_a_row_that_stays_locked_is_told_apart_from_a_server_that_hangs(
    trusting: PostgreSql, table: str, driver: str
) -> None:
    pooler = Pooler(trusting.url, sessions=3)
    lease = open_contender(limits(pooler.url.replace(":", f"+{driver}:", 1), table, notify=False), BootClock())
    engine = create_engine(trusting.url)
    with contextlib.closing(pooler), contextlib.closing(lease):
        lease.acquire()
        with engine.begin() as connection:
            connection.execute(text(f"SELECT 1 FROM {table} FOR UPDATE"))
            with pytest.raises(StoreError, match="locked by another transaction"):
                lease.renew()
        lease.renew()
    engine.dispose()


def test_while_the_store_hangs_the_holder_stops_before_another_is_master(proxy: Proxy, url: str, table: str) -> None:
    clock = BootClock()
    config = limits(proxy.url, table)
    lease = open_contender(config, clock)
    standby = open_contender(limits(url, table), clock)
    lost = threading.Event()
    lease.acquire()
    keepalive = Keepalive(lease, config, clock=clock, on_lost=lambda error: lost.set())
    keepalive.start()
    proxy.stall()
    taken_at: list[float] = []

    def take_over() -> None:
        standby.acquire()
        taken_at.append(clock.now())

    taking = threading.Thread(target=take_over)
    taking.start()
    last_check = 0.0
    while True:
        asked = clock.now()
        try:
            lease.check()
        except LeaseLost as error:
            assert error.reason is Loss.EXPIRED
            break
        last_check = asked
        clock.wait(lost, 0.005)
    stop_by = lease.stop_by()
    assert lost.wait(5)
    taking.join(20)
    assert taken_at, "the standby never got it"
    assert last_check < stop_by < taken_at[0]
    assert standby.check()
    proxy.reopen()
    keepalive.stop()
    standby.release()
    for each in (lease, standby):
        each.close()


def backend_of(application: str, url: str) -> int:
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", (application,))
        found = cursor.fetchall()
    connection.close()
    return int(found[0][0]) if len(found) == 1 else 0  # that of a note has not ended yet
