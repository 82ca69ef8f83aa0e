"""The database lock: a session that locks a row for life, beside the record. Real servers, sessions really killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.dialects import is_mariadb, usable_url
from spark_lease.election.ports import Denied, Grant
from spark_lease.errors import ConfigError, LeaseLost, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.row_lock import SessionLock
from tests.services.proxy import Proxy
from tests.support.broker import TABLE, Broker
from tests.support.drivers import until

Open = Callable[..., LocalHold]


PATIENT: dict[str, Any] = {"lease_duration": 6, "attempt_timeout": 1.9, "poll_period": 0.1}
"""The table is looked at before the first grant, which takes a second where the machine has much to do."""


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def config(request: pytest.FixtureRequest, table: str) -> Config:
    mysql = request.param == "mariadb"
    url = request.getfixturevalue("mariadb").url if mysql else request.getfixturevalue("pg_url")
    return configure(name="n", url=url, table=table, locker="database", create_table="true", **PATIENT)


@pytest.fixture
def contender(config: Config) -> Iterator[Open]:
    opened: list[LocalHold] = []

    def open_one(**changes: Any) -> LocalHold:
        wanted = {"name": "n", "url": config.url, "table": config.table, "locker": "database", "create_table": "true"}
        settings = wanted | PATIENT | changes
        opened.append(open_contender(configure(**settings), BootClock()))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def dba(config: Config) -> Iterator[Connection]:
    engine = create_engine(usable_url(config), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def session_of(lease: LocalHold) -> Connection:
    session = lease._locker._lock._session  # type: ignore[attr-defined]
    assert isinstance(session, Connection)
    return session


def kill(lease: LocalHold, dba: Connection) -> None:
    """End the session that locks the row, as an administrator does."""
    mysql = dba.dialect.name != "postgresql"
    pid = session_of(lease).exec_driver_sql("SELECT CONNECTION_ID()" if mysql else "SELECT pg_backend_pid()").scalar()
    dba.exec_driver_sql(f"KILL {pid}" if mysql else f"SELECT pg_terminate_backend({pid}, 5000)")


def test_a_killed_session_is_a_loss_at_the_next_renewal(contender: Open, dba: Connection) -> None:
    mine, other = contender(), contender()
    mine.acquire()
    mine.renew()
    kill(mine, dba)
    # Its holder does not know yet: whoever finds the row unlocked still waits for the record to run out.
    assert isinstance(other.try_acquire(), Denied)
    with pytest.raises(LeaseLost, match="the lock is gone: the session or file that held it has ended"):
        mine.renew()
    assert other.acquire() > mine.epoch


def test_a_living_session_keeps_all_others_out_whatever_the_record_says(
    contender: Open, dba: Connection, config: Config
) -> None:
    """A clock that was set forward, a restored backup, an administrator's DELETE."""
    mine, other = contender(), contender()
    mine.acquire()
    for damage in (f"UPDATE {config.record_table} SET TIME = 1", f"DELETE FROM {config.record_table}"):
        dba.exec_driver_sql(damage)
        assert isinstance(other.try_acquire(), Denied)
    mine.close()
    assert isinstance(other.try_acquire(), Grant)


def test_a_lease_on_the_same_row_and_the_lock_exclude_each_other(contender: Open) -> None:
    longer = {"lease_duration": 12, "attempt_timeout": 3.7}  # MySQL may be two seconds late to end a wait
    locked, leased = contender(**longer), contender(locker="lease", **longer)
    leased.acquire()
    assert isinstance(locked.try_acquire(), Denied)
    leased.release()
    locked.acquire()
    with pytest.raises(StoreError, match="is locked by another transaction"):
        leased.try_acquire()
    locked.release()
    assert isinstance(leased.try_acquire(), Grant)


def test_it_contends_with_a_broker_that_has_the_database_locker(contender: Open, config: Config) -> None:
    broker = Broker(config.url)
    broker.start()
    try:
        contender(table=TABLE)._locker._store.init()  # type: ignore[attr-defined]
        broker.connection.rollback()
        broker.connection.execution_options(isolation_level="READ COMMITTED")
        job = contender(table=TABLE)
        broker.sql(f"SELECT * FROM {TABLE} FOR UPDATE")
        assert isinstance(job.try_acquire(), Denied)
        broker.connection.rollback()
        job.acquire()
        job.renew()
        started = threading.Thread(target=broker.sql, args=(f"SELECT * FROM {TABLE} FOR UPDATE",))
        started.start()
        started.join(0.5)
        assert started.is_alive()  # a slave, until we give it back
        assert job.release()
        started.join(10)
        assert not started.is_alive()
    finally:
        broker.connection.rollback()
        for each in (TABLE, f"{TABLE}_epoch", f"{TABLE}_epoch".lower()):
            broker.sql(f"DROP TABLE IF EXISTS {each}")
        broker.connection.commit()
        broker.connection.close()


def test_a_server_that_hangs_is_a_loss_in_time(config: Config) -> None:
    """The session is cut off, and with it the lock is gone: there is nothing to be uncertain of."""
    door = Proxy(config.url)
    settings = {"name": "n", "url": door.url, "table": config.table, "locker": "database", "create_table": "true"}
    mine = open_contender(configure(**settings, lease_duration=6), BootClock())
    try:
        mine.acquire()
        door.stall()
        with pytest.raises(LeaseLost):
            mine.renew()
    finally:
        door.close()
        mine.close()


def test_the_server_ends_a_session_of_which_it_hears_nothing(contender: Open, config: Config) -> None:
    mine = contender()
    mine.acquire()
    session = session_of(mine)
    if session.dialect.name == "postgresql":
        assert session.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "6s"
        return
    assert session.exec_driver_sql("SELECT @@wait_timeout").scalar() == 6
    if is_mariadb(session):
        assert session.exec_driver_sql("SELECT @@idle_transaction_timeout").scalar() == 6


def test_it_needs_a_database() -> None:
    with pytest.raises(ConfigError, match="is no database"):
        open_contender(configure(name="n", url="delta:///x", locker="database"), BootClock())


def test_the_lock_alone_knows_whether_it_is_held(config: Config) -> None:
    one, other = SessionLock(config), SessionLock(config)
    assert not one.is_held()
    assert one.try_lock() and one.try_lock() and one.is_held()
    assert not other.try_lock()
    one.unlock()
    assert not one.is_held()
    until(other.try_lock)  # the server is about to end the session
    for each in (one, other):
        each.close()


def test_all_names_on_a_brokers_row_are_one_lease(contender: Open, config: Config, dba: Connection) -> None:
    """The session locks one row for all of them: so what runs out after its end has to be one as well."""
    broker = Broker(config.url)
    broker.start()
    one, other = (contender(table=TABLE, name=each, lease_duration=60) for each in ("one", "other"))
    try:
        one._locker._store.init()  # type: ignore[attr-defined]
        one.acquire()
        kill(one, dba)
        assert isinstance(other.try_acquire(), Denied)
    finally:
        for each in (one, other):
            each.close()
        for name in (TABLE, f"{TABLE}_epoch", f"{TABLE}_epoch".lower()):
            broker.sql(f"DROP TABLE IF EXISTS {name}")
        broker.connection.close()


def test_nothing_is_granted_without_the_lock_not_even_what_is_mine(contender: Open, dba: Connection) -> None:
    """The grant's answer was lost, and the session with it: a restart of the server does both."""
    mine, other = contender(), contender()
    mine.acquire()
    kill(mine, dba)
    lock = other._locker._lock  # type: ignore[attr-defined]
    assert lock.try_lock()
    assert isinstance(mine.try_acquire(), Denied)
    lock.unlock()
    assert isinstance(mine.try_acquire(), Grant)
