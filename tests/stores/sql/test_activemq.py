"""An ActiveMQ broker and a job contend for one row. This broker speaks ActiveMQ's exact statements, by its clock."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.ports import Denied, Grant
from spark_lease.errors import LeaseLost, Loss, StoreError
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.sql.store import SqlStore
from tests.support.broker import TABLE, Broker
from tests.support.command import COMMAND


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    mysql = request.param == "mariadb"
    url = str(request.getfixturevalue("mariadb").url if mysql else request.getfixturevalue("pg_url"))
    dba = Broker(url)
    yield url
    dba.sql(f"DROP TABLE IF EXISTS {TABLE}")
    dba.connection.close()


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    broker = Broker(url)
    broker.start()
    yield broker
    broker.connection.close()


@pytest.fixture
def job(url: str) -> Iterator[Callable[..., LocalHold]]:
    opened: list[LocalHold] = []

    def open_one(**settings: Any) -> LocalHold:
        wanted = {"url": url, "table": TABLE, "name": "nightly", "lease_duration": 6, "poll_period": 0.1}
        opened.append(open_contender(configure(**wanted | settings), BootClock()))
        return opened[-1]

    yield open_one
    for lease in opened:
        lease.close()


def init(url: str, *words: str) -> str:
    done = subprocess.run(
        [COMMAND, "init", "--url", url, "--table", TABLE.lower(), *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_init_on_its_table_disturbs_no_broker_and_names_need_no_upper_case(url: str, broker: Broker, job: Any) -> None:
    assert broker.obtain()
    init(url)
    assert broker.keep()
    held = job(table="activemq_lock").try_acquire()
    assert isinstance(held, Denied)
    assert (held.holder, held.expires_in) == ("paris", pytest.approx(30, abs=2))
    broker.release()
    broker.start()  # another start, on a table that is there
    assert broker.obtain()
    assert len(broker.sql(f"SELECT * FROM {TABLE}")) == 1


def test_a_job_waits_for_the_broker_and_takes_what_ran_out(url: str, broker: Broker, job: Any) -> None:
    init(url)
    mine = job(lease_duration=600)
    mine.acquire()
    mine.release()  # its duration stays in the row, and says nothing about the broker's
    broker.lease = 1.0
    assert broker.obtain()
    asked = time.time()
    next_job = job()
    assert next_job.acquire() > mine.epoch
    assert 0.9 < time.time() - asked < 3
    assert not broker.keep()  # by which a broker knows that it has to stop


def test_what_a_broker_gave_up_is_taken_at_once_and_the_other_way_round(url: str, broker: Broker, job: Any) -> None:
    init(url)
    assert broker.obtain()
    mine = job()
    assert isinstance(mine.try_acquire(), Denied)
    broker.release()
    assert isinstance(mine.try_acquire(), Grant)
    assert not broker.obtain()
    mine.renew()
    assert not broker.obtain()
    assert mine.release()
    assert broker.sql(f"SELECT BROKER_NAME, TIME FROM {TABLE} WHERE ID = 1") == [(None, 0)]
    assert broker.obtain()
    status = subprocess.run(
        [COMMAND, "status", "--json", "--url", url, "--table", TABLE], capture_output=True, text=True, check=True
    )
    (row,) = json.loads(status.stdout)
    assert row["holder"] == "paris"


def test_the_row_is_made_if_it_is_missing_and_never_another(url: str, broker: Broker, job: Any) -> None:
    broker.sql(f"DELETE FROM {TABLE}")
    init(url)
    one, other = job(name="a"), job(name="b")  # whatever they are called: there is one row
    one.acquire()
    assert isinstance(other.try_acquire(), Denied)
    one.release()
    assert isinstance(other.try_acquire(), Grant)
    assert [row[0] for row in broker.sql(f"SELECT ID FROM {TABLE}")] == [1]


def test_where_we_made_the_table_a_broker_finds_its_row(url: str, job: Any) -> None:
    init(url)
    mine = job()
    mine.acquire()
    broker = Broker(url)
    broker.start()
    assert not broker.obtain()
    mine.release()
    assert broker.obtain()
    broker.connection.close()


@pytest.mark.parametrize("change", [str.upper, lambda holder: holder + " "], ids=["upper case", "a blank behind"])
def test_holders_are_equal_to_the_letter(url: str, broker: Broker, job: Any, change: Callable[[str], str]) -> None:
    """MariaDB's default collation, and that of a broker's table there, takes them for equal."""
    init(url)
    mine = job(holder="site-a")
    mine.acquire()
    broker.sql(f"UPDATE {TABLE} SET BROKER_NAME=%s WHERE ID = 1", change(mine.holder))
    with pytest.raises(LeaseLost) as lost:
        mine.renew()
    assert lost.value.reason is Loss.TAKEN


def test_a_renewal_in_the_same_millisecond_is_no_loss(url: str, broker: Broker, job: Any) -> None:
    """MariaDB counts the rows that changed, unless it is asked for those that it found."""
    init(url)
    mine = job()
    mine.acquire()
    for _ in range(50):
        mine.renew()


def test_a_broker_that_makes_the_table_anew_is_a_loss_at_the_next_renewal(url: str, broker: Broker, job: Any) -> None:
    """deleteAllMessagesOnStartup=true, before the lock is asked for."""
    init(url)
    mine = job()
    mine.acquire()
    broker.sql(f"DROP TABLE {TABLE}")
    broker.start()
    assert broker.obtain()
    with pytest.raises(LeaseLost, match=r"(?i)table activemq_lock or its columns are gone") as lost:
        mine.renew()
    assert lost.value.reason is Loss.UNREADABLE
    assert broker.keep()


def test_a_broker_that_locks_every_row_makes_a_sentence_and_no_wait_without_end(
    url: str, broker: Broker, job: Any
) -> None:
    """The database locker: SELECT * … FOR UPDATE in a transaction that lasts as long as the broker is master."""
    init(url)
    mine = job(lease_duration=12, attempt_timeout=3.7, retry_period=1)
    broker.connection.rollback()
    broker.connection.execution_options(isolation_level="READ COMMITTED")
    broker.sql(f"SELECT * FROM {TABLE} FOR UPDATE")
    asked = time.monotonic()
    with pytest.raises(StoreError, match="is locked by another transaction; an ActiveMQ broker"):
        mine.try_acquire()
    assert time.monotonic() - asked < 7.4
    waiting = threading.Thread(target=mine.acquire)
    waiting.start()
    broker.connection.rollback()
    waiting.join(10)
    assert mine.check()


def test_another_row_of_its_table_is_a_lease_of_its_own(url: str, broker: Broker, job: Any) -> None:
    init(url)
    assert broker.obtain()
    mine = job(broker_row="false")
    mine.acquire()
    assert broker.keep()
    assert mine.release()
    rows = broker.sql(f"SELECT ID, NAME FROM {TABLE} ORDER BY ID")
    assert rows == [(1, None), (2, "nightly")]


def test_a_store_of_that_row_has_one_lease(url: str, broker: Broker) -> None:
    init(url)
    store = SqlStore(configure(url=url, table=TABLE))
    assert list(store.names()) == ["activemq"]
    store.close()
