"""Few connections for many leases: nobody keeps one with `notify = false`; a server that is full gives no answer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.connections import database_message, name_of
from spark_lease.database.dialects import usable_url
from spark_lease.election.keepalive import Keepalive
from spark_lease.election.ports import Denied
from spark_lease.election.record import taken
from spark_lease.errors import ConfigError, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.store import SqlStore
from tests.services.mariadb import MariaDb
from tests.services.postgres import own_postgres
from tests.support.drivers import until, wait_until_noted


def store_of(contender: LocalHold) -> Any:
    return contender._locker._store  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "service",
    [
        pytest.param("pg_url", id="postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
    ],
)
def test_without_notify_a_holder_has_no_connection_between_renewals(
    service: str, request: pytest.FixtureRequest, table: str
) -> None:
    found = request.getfixturevalue(service)
    url = found if isinstance(found, str) else found.url
    lease = open_contender(configure(name="n", url=url, table=table, create_table="true", notify=False), BootClock())
    store = store_of(lease)
    opened, connect = [], store._session._connect
    store._session._connect = lambda: (opened.append(1), connect())
    for step in (lease.acquire, lease.renew, lease.renew, lease.release):
        opened.clear()
        step()
        assert store._session.connection is None
        # The grant looks, again once the table is there, tries its right, writes. The end is noted after the release.
        assert len(opened) == {lease.acquire: 4, lease.release: 2}.get(step, 1)
    lease.close()


@pytest.mark.postgres
def test_without_notify_a_standby_has_no_connection_while_it_sleeps_however_briefly(pg_url: str, table: str) -> None:
    settings: Any = {"name": "n", "url": pg_url, "table": table, "create_table": "true", "notify": False}
    lease, standby = (open_contender(configure(**settings, poll_period=0.01), BootClock()) for _ in range(2))
    lease.acquire()
    assert isinstance(standby.try_acquire(), Denied)
    standby._locker.wait(1.0, 0.01)
    assert store_of(standby)._session.connection is None
    for each in (lease, standby):
        each.close()


@pytest.mark.postgres
def test_with_notify_a_holder_keeps_its_connection(pg_url: str, table: str) -> None:
    lease = open_contender(configure(name="n", url=pg_url, table=table, create_table="true"), BootClock())
    lease.acquire()
    connection = store_of(lease)._session.connection
    lease.renew()
    assert connection is not None and store_of(lease)._session.connection is connection
    lease.close()


@pytest.mark.postgres
def test_a_clock_that_differs_is_said_once_and_not_at_each_connection(
    pg_url: str, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings: Any = {"name": "n", "url": pg_url, "table": table, "create_table": "true", "notify": False}
    lease = open_contender(configure(**settings, max_allowable_diff_from_db_time=1e-9), BootClock())
    lease.acquire()
    lease.renew()
    assert caplog.text.count("off the database's") == 1
    lease.close()


Fill = Callable[[], None]


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    engine = create_engine("postgresql://u:s3cret@h/d")
    for error in (psycopg2.OperationalError(), DBAPIError("SELECT 1", {}, psycopg2.OperationalError(" \n"))):
        told = database_message(engine, error)
        assert told == "OperationalError without a text; often no file descriptor is free (ulimit -n)"


@pytest.mark.postgres
def test_an_error_of_anothers_is_told_with_the_systems_words_alone() -> None:
    assert name_of(OSError(24, "Too many open files", "/s3cret")) == "OSError: Too many open files"
    assert name_of(RuntimeError("can't start new thread")) == "RuntimeError: can't start new thread"
    assert name_of(RuntimeError("token s3cret")) == "RuntimeError"


def test_a_letter_that_the_database_lacks_ends_the_wait(pg_url: str, table: str) -> None:
    name, admin = f"l{table}", psycopg2.connect(pg_url)
    admin.autocommit = True
    with contextlib.closing(admin), admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
        try:
            url = str(make_url(pg_url).set(database=name).render_as_string(hide_password=False))
            contender = open_contender(configure(name="日本", url=url, create_table="true"), BootClock())
            with contextlib.closing(contender), pytest.raises(ConfigError, match="lacks a letter of this name"):
                contender.acquire()
        finally:
            cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.mariadb
@pytest.mark.mariadb_alone
def test_only_a_server_that_is_read_only_is_told_to_be_one(mariadb: MariaDb) -> None:
    """Error 1290 is that of other options as well."""
    admin = create_engine(usable_url(configure(url=mariadb.url)), isolation_level="AUTOCOMMIT").connect()
    with contextlib.closing(admin):
        admin.exec_driver_sql(f"CREATE USER plain@'127.0.0.1' IDENTIFIED BY '{admin.engine.url.password}'")
        admin.exec_driver_sql("GRANT ALL ON leases.* TO plain@'127.0.0.1'")
        plain = create_engine(admin.engine.url.set(username="plain"), poolclass=NullPool)
        try:
            admin.exec_driver_sql("SET GLOBAL read_only = 1")
            with pytest.raises(DBAPIError) as read_only, plain.connect() as connection:
                connection.exec_driver_sql("CREATE TABLE never (a INT)")
        finally:
            admin.exec_driver_sql("SET GLOBAL read_only = 0")
        with pytest.raises(DBAPIError) as other, plain.connect() as connection:
            connection.exec_driver_sql("SET SESSION max_session_mem_used = 8192")
            connection.exec_driver_sql("SELECT group_concat(repeat('a', 10000)) FROM seq_1_to_100")
        admin.exec_driver_sql("DROP USER plain@'127.0.0.1'")
    told = [database_message(plain, each.value) for each in (read_only, other)]
    assert all("1290" in each for each in told), told
    assert told[0].endswith(": it is a replica, or read-only: name the primary")
    assert "max-session-mem-used" in told[1] and "read-only" not in told[1]


@pytest.mark.mariadb
def test_no_setting_of_mariadbs_cuts_a_list_off_or_hides_the_columns_of_a_table(mariadb: MariaDb, table: str) -> None:
    config = configure(name="n", url=mariadb.url, table=table, create_table="true")
    admin = create_engine(usable_url(config), isolation_level="AUTOCOMMIT").connect()
    with contextlib.closing(admin), contextlib.closing(SqlStore(config)) as store:
        admin.exec_driver_sql("SET GLOBAL sql_select_limit = 1, GLOBAL sql_quote_show_create = 0")
        try:
            for name in ("a", "b"):
                assert store.swap(name, None, taken(None, holder="me", duration=30.0))
            assert sorted(store.names()) == ["a", "b"]
        finally:
            admin.exec_driver_sql("SET GLOBAL sql_select_limit = DEFAULT, GLOBAL sql_quote_show_create = DEFAULT")


@pytest.fixture(params=["postgres", "lease"])
def full(request: pytest.FixtureRequest) -> Iterator[tuple[str, Fill, Fill]]:
    """The URL of a server; take all its connections; give them back. The last few are a superuser's alone."""
    taken: list[Any] = []
    with own_postgres(max_connections=8) as server:
        url = server.url.replace("postgres@", f"{request.param}@")
        with contextlib.closing(psycopg2.connect(server.url)) as dba, dba.cursor() as cursor:
            cursor.execute("CREATE ROLE lease LOGIN; GRANT ALL ON SCHEMA public TO lease")
            dba.commit()

        def fill() -> None:
            words = "too many clients" if request.param == "postgres" else "remaining connection slots are reserved"
            with pytest.raises(psycopg2.OperationalError, match=words):
                while True:
                    taken.append(psycopg2.connect(url))

        def free() -> None:
            while taken:
                taken.pop().close()

        yield url, fill, free
        free()


@pytest.mark.postgres
@pytest.mark.parametrize("locker", ["lease", "database"])
def test_a_full_server_says_neither_yes_nor_no_to_who_starts(full: tuple[str, Fill, Fill], locker: str) -> None:
    url, fill, free = full
    wanted: Any = {"name": "n", "url": url, "create_table": "true", "locker": locker, "notify": False}
    starts, store = open_contender(configure(**wanted), BootClock()), SqlStore(configure(**wanted))
    fill()
    for ask in (starts.try_acquire, store.init, store.names):
        with pytest.raises(StoreError, match=r"too many clients|remaining connection slots"):
            ask()
    once = open_contender(configure(**wanted, if_held="fail", lease_duration=1), BootClock())
    with pytest.raises(StoreError):
        once.acquire()
    free()
    assert starts.acquire()
    for each in (starts, store, once):
        each.close()


@pytest.mark.postgres
def test_a_holder_that_finds_the_server_full_tries_again_and_is_not_lost(
    full: tuple[str, Fill, Fill], caplog: pytest.LogCaptureFixture
) -> None:
    url, fill, free = full
    config = configure(name="n", url=url, create_table="true", notify=False, lease_duration=9, retry_period=0.5)
    lease, other = open_contender(config, BootClock()), open_contender(config, BootClock())
    epoch = lease.acquire()
    wait_until_noted(lease)
    fill()
    keepalive = Keepalive(lease, config, clock=BootClock(), on_lost=lambda lost: None)
    keepalive.start()
    until(lambda: caplog.text.count("renewal failed") >= 2)
    free()
    seen = lease.remaining()
    until(lambda: lease.remaining() > seen)
    assert lease.check() == epoch
    assert isinstance(other.try_acquire(), Denied)
    assert {each.levelno for each in caplog.records} == {logging.WARNING}
    keepalive.stop()
    for each in (lease, other):
        each.close()
