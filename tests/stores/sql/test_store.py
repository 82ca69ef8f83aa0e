"""The SQL store against real databases: the contract, the table, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

import spark_lease
from spark_lease import hold_lease
from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.database.connections import _by_all
from spark_lease.election.keepalive import renew_once
from spark_lease.election.ports import Denied
from spark_lease.election.record import LeaseRecord, renewed, taken, with_directive
from spark_lease.errors import ConfigError, RecordUnreadable, StoreError
from spark_lease.holds import open_contender
from spark_lease.stores.sql.row_lock import SessionLock
from spark_lease.stores.sql.store import SqlStore
from spark_lease.testing import LeaseStoreContract
from tests.services.mariadb import MariaDb
from tests.services.postgres import own_postgres, with_psycopg
from tests.services.proxy import Proxy
from tests.support.command import COMMAND, last_line
from tests.support.command import spark_lease as run_command
from tests.support.drivers import until
from tests.support.users import unprivileged

BACKENDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.postgres),
    pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=BACKENDS)
def config(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> Config:
    match request.param:
        case "sqlite":
            url = f"sqlite:///{tmp_path}/lease.db"
        case "postgresql":
            url = request.getfixturevalue("pg_url")
        case "mariadb":
            url = request.getfixturevalue("mariadb").url
    return configure(name="n", url=url, table=table, create_table="true")


@pytest.fixture
def open_store(config: Config) -> Iterator[Callable[[], SqlStore]]:
    opened: list[SqlStore] = []

    def open_one(**changes: Any) -> SqlStore:
        from dataclasses import replace

        opened.append(SqlStore(replace(config, **changes)))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def execute(config: Config) -> Callable[[str], list[Any]]:
    """Run SQL past the store, as a DBA or a broker would."""
    url = config.url.replace("postgresql:", "postgresql+psycopg2:").replace("mysql:", "mysql+pymysql:")

    def run(statement: str) -> list[Any]:
        engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with engine.connect() as connection:
            done = connection.execute(text(statement))
            return [tuple(row) for row in done] if done.returns_rows else []

    return run


class TestContract(LeaseStoreContract):
    """The fixture `open_store` is this module's."""


def test_the_row_is_activemqs_with_ours_added(open_store: Any, config: Config, execute: Any) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    statement = f"SELECT ID, TIME, BROKER_NAME, NAME, EPOCH, DURATION FROM {config.table}"
    assert execute(statement) == [(2, record.stamp, "me", "n", record.epoch, 30000)]


def test_an_epoch_is_the_databases_time_of_the_grant_and_grows_over_a_row_that_was_deleted(
    open_store: Any, config: Config, execute: Any
) -> None:
    """A broker that drops the table, a restored backup, an admin's DELETE: the fence must still tell who is newer."""
    store = open_store()
    first = store.swap("n", None, taken(None, holder="me", duration=30.0))
    assert 0 <= first.stamp - 30_000 - first.epoch + 5 <= 10
    execute(f"DELETE FROM {config.table}")
    second = open_store().swap("n", None, taken(None, holder="other", duration=30.0))
    assert second.epoch > first.epoch
    ahead = dataclasses.replace(second, epoch=second.epoch + 3_600_000)  # granted before the clock was set back
    execute(f"UPDATE {config.table} SET EPOCH = {ahead.epoch}")
    third = store.swap("n", ahead, taken(ahead, holder="third", duration=30.0))
    assert third.epoch == ahead.epoch + 1


def test_ids_start_beside_activemqs_row(open_store: Any, config: Config, execute: Any) -> None:
    store = open_store()
    for number, name in enumerate(("x", "y", "z"), start=2):
        store.swap(name, None, taken(None, holder="me", duration=30.0))
        assert execute(f"SELECT ID FROM {config.table} WHERE NAME = '{name}'") == [(number,)]


def test_expiry_is_stamped_by_the_databases_clock(open_store: Any) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    (now,) = store._rows("now", {})[0]
    assert record.stamp - 30000 == pytest.approx(now, abs=2000)
    assert store.read("n").expires_in == pytest.approx(30, abs=2)


def test_two_processes_that_make_the_table_at_once_both_succeed(config: Config) -> None:
    script = textwrap.dedent(f"""
        import sys
        from spark_lease.config.sources import configure
        from spark_lease.stores.sql.store import SqlStore
        store = SqlStore(configure(name="n", url={config.url!r}, table={config.table!r}, create_table="true"))
        print("ready", flush=True)
        sys.stdin.readline()
        store.read("n")
        store.close()
    """)
    makers = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    for maker in makers:
        maker.communicate(timeout=30)
    assert [maker.returncode for maker in makers] == [0, 0, 0, 0]


def test_who_closes_it_amid_a_request_of_another_thread_breaks_nothing(config: Config) -> None:
    """In a process of its own: SQLite's library crashes if its connection is closed there."""
    script = textwrap.dedent(f"""
        import random, threading, time
        from spark_lease.config.sources import configure
        from spark_lease.errors import StoreError
        from spark_lease.stores.sql.store import SqlStore

        def read():
            begun.set()
            while not closed.is_set():
                try:
                    store.read("n")
                except StoreError:  # it was cut off
                    pass
                except BaseException as error:  # whatever else it is, is the fault that is looked for
                    print(repr(error))

        for _ in range(40):
            store = SqlStore(configure(name="n", url={config.url!r}, table={config.table!r}, create_table="true"))
            store.read("n")
            begun, closed = threading.Event(), threading.Event()
            reader = threading.Thread(target=read)
            reader.start()
            begun.wait()
            time.sleep(random.random() / 1000)
            store.close()
            closed.set()
            reader.join()
            assert store._session.connection is None
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_threads_that_make_the_table_at_once_both_succeed(open_store: Any) -> None:
    stores, start, errors = [open_store() for _ in range(6)], threading.Barrier(6), []

    def make(store: SqlStore) -> None:
        start.wait(10)
        try:
            store.init()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=make, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []


def test_init_adds_our_columns_to_a_table_that_activemq_made(open_store: Any, config: Config, execute: Any) -> None:
    execute(f"CREATE TABLE {config.table}(ID BIGINT NOT NULL, TIME BIGINT, BROKER_NAME VARCHAR(250), PRIMARY KEY (ID))")
    execute(f"INSERT INTO {config.table}(ID) VALUES (1)")
    with pytest.raises(ConfigError, match=r"lacks name, epoch, duration, protection, directive, name \(unique\): run"):
        open_store().read("n")
    store = open_store()
    assert store.init()
    assert store.init() == []
    assert store.swap("n", None, taken(None, holder="me", duration=30.0)) is not None
    assert execute(f"SELECT ID, BROKER_NAME, EPOCH FROM {config.table} ORDER BY ID")[0] == (1, None, 0)
    execute(f"UPDATE {config.table} SET BROKER_NAME='b', TIME=1 WHERE (TIME IS NULL OR TIME < 5) AND ID = 1")


@pytest.mark.parametrize("config", ["sqlite"], indirect=True)
def test_a_renewal_is_six_calls_of_ours_deep(config: Config) -> None:
    """From the one that decides when to renew to the one that asks the driver."""
    root, deepest = str(Path(spark_lease.__file__).parent), list[str]()

    def look(frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ == "execute":
            frames = [each.f_code for each, _ in traceback.walk_stack(frame)]
            deepest[:] = max(
                deepest, [each.co_qualname for each in frames if each.co_filename.startswith(root)], key=len
            )

    lease = open_contender(config, BootClock())
    lease.acquire()
    sys.setprofile(look)
    try:
        renew_once(lease, config, BootClock())
    finally:
        sys.setprofile(None)
    lease.close()
    assert len(deepest) <= 6, deepest


def test_init_carries_over_a_table_of_an_earlier_version(open_store: Any, config: Config, execute: Any) -> None:
    """With the pause that stands in it. Until then the newer version takes nothing, nor does the earlier one after."""
    before = open_store()
    before.init()
    record = before.swap("n", None, taken(None, holder="me", duration=30.0))
    paused = before.swap("n", record, with_directive(record, '{"by":"anna"}'))
    assert paused
    execute(f"ALTER TABLE {config.table} RENAME COLUMN directive TO wish")
    with pytest.raises(RecordUnreadable, match="its columns are gone"):
        before.swap("n", paused, renewed(paused, duration=30.0))
    after = open_store()
    with pytest.raises(ConfigError, match="lacks directive: run spark-lease init"):
        after.swap("n", paused, renewed(paused, duration=30.0))
    assert [each for each in after.init() if each.endswith("RENAME COLUMN wish TO directive")]
    assert after.init() == []
    assert after.read("n").record == paused
    assert after.swap("n", paused, renewed(paused, duration=30.0))


def test_a_table_where_a_name_may_stand_twice_is_refused(open_store: Any, config: Config, execute: Any) -> None:
    """Two contenders would insert a row each, and both be master."""
    columns = "ID BIGINT PRIMARY KEY, TIME BIGINT, BROKER_NAME VARCHAR(250), NAME VARCHAR(250)"
    columns += ", EPOCH BIGINT DEFAULT 0 NOT NULL, DURATION BIGINT, PROTECTION TEXT, DIRECTIVE TEXT"
    execute(f"CREATE TABLE {config.table}({columns})")
    store = open_store()
    with pytest.raises(ConfigError, match=r"lacks name \(unique\): run spark-lease init"):
        store.swap("n", None, taken(None, holder="me", duration=30.0))
    assert [each for each in store.init() if "UNIQUE" in each]
    assert store.swap("n", None, taken(None, holder="me", duration=30.0)) is not None


@pytest.mark.parametrize("config", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_an_index_over_some_rows_only_is_no_unique_key(open_store: Any, config: Config, execute: Any) -> None:
    columns = "ID BIGINT PRIMARY KEY, TIME BIGINT, BROKER_NAME VARCHAR(250), NAME VARCHAR(250)"
    columns += ", EPOCH BIGINT DEFAULT 0 NOT NULL, DURATION BIGINT, PROTECTION TEXT, DIRECTIVE TEXT"
    execute(f"CREATE TABLE {config.table}({columns})")
    execute(f"CREATE UNIQUE INDEX {config.table}_part ON {config.table}(NAME) WHERE BROKER_NAME IS NULL")
    store = open_store()
    with pytest.raises(ConfigError, match=r"lacks name \(unique\): run spark-lease init"):
        store.swap("n", None, taken(None, holder="me", duration=30.0))
    execute(f"INSERT INTO {config.table}(ID, NAME, BROKER_NAME, EPOCH) VALUES (1, 'n', 'a', 1), (2, 'n', 'b', 2)")
    with pytest.raises(RecordUnreadable, match="has 2 rows NAME='n'"):
        store.read("n")
    execute(f"DELETE FROM {config.table}")
    assert [each for each in store.init() if "UNIQUE" in each]
    assert store.swap("n", None, taken(None, holder="me", duration=30.0)) is not None


@pytest.mark.parametrize("config", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_an_index_whose_making_has_failed_is_no_unique_key(open_store: Any, config: Config, execute: Any) -> None:
    store = open_store()
    store.init()
    execute(f"ALTER TABLE {config.table} DROP CONSTRAINT {config.table}_name")
    execute(f"INSERT INTO {config.table}(ID, NAME) VALUES (1, 'a'), (2, 'a')")
    with pytest.raises(Exception, match="could not create unique index"):
        execute(f"CREATE UNIQUE INDEX CONCURRENTLY {config.table}_name ON {config.table}(NAME)")
    execute(f"DELETE FROM {config.table}")
    with pytest.raises(ConfigError, match=r"lacks name \(unique\): run spark-lease init"):
        store.swap("n", None, taken(None, holder="me", duration=30.0))
    with pytest.raises(ConfigError, match=f"DROP INDEX .*{config.table}_name"):
        store.init()
    execute(f"DROP INDEX {config.table}_name")
    assert store.init()
    assert store.swap("n", None, taken(None, holder="me", duration=30.0)) is not None


@pytest.mark.parametrize("config", [pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_a_table_that_a_crash_empties_is_refused(open_store: Any, config: Config, execute: Any) -> None:
    open_store().init()
    execute(f"ALTER TABLE {config.table} SET UNLOGGED")
    for ask in (open_store().init, lambda: open_store().swap("n", None, taken(None, holder="me", duration=30.0))):
        with pytest.raises(ConfigError, match=f"unlogged, .*: run ALTER TABLE {config.table} SET LOGGED"):
            ask()


@pytest.mark.parametrize("config", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_a_table_that_is_not_innodb_is_refused_by_init_and_at_first_use(
    open_store: Any, config: Config, execute: Any
) -> None:
    """MyISAM locks no rows, and a crash of the server may take back what it had confirmed."""
    store = open_store()
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    execute(f"ALTER TABLE {config.table} ENGINE=MyISAM")
    locked = SessionLock(config)
    for ask in (open_store().init, lambda: open_store().read("n"), open_store(locker="lease").names, locked.try_lock):
        with pytest.raises(ConfigError, match=f"kept by MyISAM: run ALTER TABLE {config.table} ENGINE=InnoDB"):
            ask()
    execute(f"ALTER TABLE {config.table} ENGINE=InnoDB")
    assert open_store().read("n").record == record
    locked.close()


def test_two_leases_that_are_first_taken_at_once_are_both_taken(open_store: Any, config: Config) -> None:
    """They compute the same ID. The slower one is told "no" and asks again, and does not take that for a master."""
    from spark_lease.election.locker import RecordRules
    from spark_lease.election.ports import Grant
    from spark_lease.testing import VirtualClock

    class Beaten(SqlStore):
        def swap(self, name: str, old: Any, new: Any) -> Any:
            if not self.beaten:
                self.beaten = True
                return None
            return super().swap(name, old, new)

        beaten = False

    store = Beaten(config)
    locker = RecordRules(store, config, VirtualClock(), holder="me")
    assert isinstance(locker.try_acquire(), Grant)
    store.close()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is a letter, and not a database, and it is long enough to be seen as one" * 9)
    with pytest.raises(ConfigError, match="is a file of another kind"):
        SqlStore(configure(name="n", url=f"sqlite:///{tmp_path}/x.db")).read("n")


def test_a_table_of_somebody_elses_is_refused_and_left_alone(open_store: Any, config: Config, execute: Any) -> None:
    execute(f"CREATE TABLE {config.table}(ID BIGINT NOT NULL, amount BIGINT)")
    for refused in (lambda: open_store().read("n"), lambda: open_store().init()):
        with pytest.raises(ConfigError, match="another program's table: it has no column time, broker_name"):
            refused()
    execute(f"INSERT INTO {config.table}(ID, amount) VALUES (1, 2)")


def test_a_missing_table_says_what_to_do(open_store: Any) -> None:
    with pytest.raises(ConfigError, match=r"(run spark-lease init)"):
        open_store(create_table="false").read("n")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("EPOCH = -1", "EPOCH=-1"),
        ("TIME = NULL", "TIME=None"),
        ("TIME = -5", "TIME=-5"),
        ("BROKER_NAME = ''", "BROKER_NAME=''"),
        ("DURATION = -1", "DURATION=-1"),
    ],
)
def test_a_row_with_garbage_is_refused_and_not_overwritten(
    open_store: Any, config: Config, execute: Any, change: str, named: str
) -> None:
    store = open_store()
    store.swap("n", None, taken(None, holder="me", duration=30.0))
    execute(f"UPDATE {config.table} SET {change} WHERE NAME = 'n'")
    before = execute(f"SELECT * FROM {config.table}")
    with pytest.raises(RecordUnreadable, match="row NAME='n' has") as raised:
        store.read("n")
    assert named in str(raised.value)
    assert execute(f"SELECT * FROM {config.table}") == before


def test_text_where_sqlite_allows_it_is_garbage(tmp_path: Path, table: str) -> None:
    store = SqlStore(configure(name="n", url=f"sqlite:///{tmp_path}/l.db", table=table))
    store.swap("n", None, taken(None, holder="me", duration=30.0))
    store._rows("names", {})
    store._session.cursor.execute(f"UPDATE {table} SET epoch = 'seven'")
    with pytest.raises(RecordUnreadable, match="EPOCH='seven'"):
        store.read("n")
    store.close()


@pytest.mark.parametrize("vanish", ["DROP TABLE {}", "ALTER TABLE {} DROP COLUMN epoch"])
def test_a_table_that_vanishes_under_us_is_not_made_again(
    open_store: Any, config: Config, execute: Any, vanish: str
) -> None:
    store = open_store()
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    execute(vanish.format(config.table))
    with pytest.raises(RecordUnreadable, match="or its columns are gone"):
        store.swap("n", record, record)


def test_ddl_for_a_dba_asks_no_database() -> None:
    store = SqlStore(configure(name="n", url="postgresql://nobody@nowhere.invalid/x", table="ops.leases"))
    notes, new, added, grants = store.init_statements().values()
    assert notes[0].startswith("CREATE TABLE IF NOT EXISTS ops.leases_notes")
    assert new[0].startswith("CREATE TABLE IF NOT EXISTS ops.leases ( id BIGINT NOT NULL, time BIGINT, broker_name")
    assert "-- ALTER TABLE ops.leases ADD COLUMN epoch BIGINT DEFAULT 0 NOT NULL" in added
    assert "-- GRANT SELECT, INSERT, UPDATE ON ops.leases TO …" in grants


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql//u:hunter2@db/x", "is not a URL like"),
        ("postgresql://db:port/x", "is not a URL like"),
        ("nonsense", "is not a URL like"),
        ("oracle://db/x", "no lease store that is known here"),
        ("sqlite://", "excludes no other process"),
        ("sqlite:///:memory:", "excludes no other process"),
        ("sqlite:////no/such/folder/at/all/x.db", "does not exist: create it"),
        ("postgresql://u:hunter2@hunter2@db/x", "write an @ in a password as %40"),
        ("postgresql://u:hunter2@db:port/x", r"u:\*\*\*@db"),
    ],
)
def test_urls_that_cannot_be_used_are_refused_before_anything_is_asked(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        SqlStore(configure(name="n", url=url))
    assert "hunter2" not in str(raised.value)


def test_a_relative_sqlite_path_is_refused_with_the_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two working folders would be two stores, and two masters."""
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///leases.db", "sqlite+pysqlite:///./leases.db", "sqlite:///file:leases.db?uri=true"):
        with pytest.raises(ConfigError, match=f"relative: .* Write it as sqlite:///{tmp_path}/"):
            SqlStore(configure(name="n", url=url))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = SqlStore(configure(name="n", url="sqlite:///~/leases.db"))
    assert store.read("n").record is None
    assert (tmp_path / "leases.db").exists()
    store.close()


def test_a_password_is_in_no_message(pg_url: str) -> None:
    store = SqlStore(configure(name="n", url="postgresql://u:hunter2@127.0.0.1:1/x", attempt_timeout=1))
    with pytest.raises(StoreError) as raised:
        store.read("n")
    assert "hunter2" not in f"{raised.value} {store.where} {store._config}"


def in_no_database(url: str, driver: str) -> URL:
    return make_url(url).set(drivername=f"postgresql+{driver}", database="none")


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_what_waiting_cannot_heal_ends_the_wait_at_once(pg_url: str, driver: str) -> None:
    url = in_no_database(pg_url, driver).render_as_string(hide_password=False)
    with closing(open_contender(configure(name="n", url=url), BootClock())) as contender:
        with pytest.raises(ConfigError, match=r'"none" does not exist.*: correct the URL .*if_denied = "wait"'):
            contender.acquire()
    patient = configure(name="n", url=url, if_denied="wait", acquire_timeout=0.3, poll_period=0.1)
    with closing(open_contender(patient, BootClock())) as contender, pytest.raises(StoreError, match="does not exist"):
        contender.acquire()


LOGINS = [
    "ALTER ROLE {} NOLOGIN",
    "REVOKE CONNECT ON DATABASE {database} FROM PUBLIC",
]


@pytest.mark.postgres
@pytest.mark.parametrize("refusing", LOGINS)
def test_a_login_that_is_refused_is_not_waited_for(pg_url: str, table: str, refusing: str) -> None:
    database = f"of_{table}"
    with poor_role(pg_url, table, table) as (poor, name, owner):
        owner.exec_driver_sql(f"CREATE DATABASE {database}")
        try:
            owner.exec_driver_sql(refusing.format(name, database=database))
            url = make_url(poor).set(database=database).render_as_string(hide_password=False)
            with closing(SqlStore(configure(name="n", url=url))) as store, pytest.raises(ConfigError) as raised:
                store.read("n")
        finally:
            owner.exec_driver_sql(f"DROP DATABASE {database}")
    assert "correct the URL or the password, let this role log in, or have the rights granted" in str(raised.value)


@pytest.mark.postgres
def test_a_role_that_may_not_update_becomes_no_master(pg_url: str, table: str) -> None:
    with poor_role(pg_url, table, f"{table}_notes") as (poor, name, owner):
        owner.exec_driver_sql(f"GRANT SELECT, INSERT ON {table} TO {name}")
        config = configure(name="n", url=poor, table=table)
        with closing(open_contender(config, BootClock())) as contender:
            with pytest.raises(ConfigError, match=f"permission denied for table {table}: have the rights granted"):
                contender.acquire()
        assert owner.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


RETURNS_NULL = (
    "CREATE FUNCTION {0}_drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE TRIGGER drops BEFORE UPDATE ON {0} FOR EACH ROW EXECUTE FUNCTION {0}_drops()",
)
ROW_SECURITY = (
    "ALTER TABLE {0} ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY reads ON {0} FOR SELECT USING (true)",
    "CREATE POLICY adds ON {0} FOR INSERT WITH CHECK (true)",
)


@pytest.mark.postgres
@pytest.mark.parametrize("dropping", [RETURNS_NULL, ROW_SECURITY], ids=["trigger", "policy"])
def test_where_our_updates_are_dropped_it_is_said(pg_url: str, table: str, dropping: tuple[str, ...]) -> None:
    hint = "a policy or a trigger on its table may drop our writes"
    with poor_role(pg_url, table, f"{table}, {table}_notes") as (poor, _, owner):
        config = configure(name="n", url=poor, table=table, acquire_timeout=0.1, lease_duration=6)
        with closing(open_contender(dataclasses.replace(config, name="held"), BootClock())) as master:
            master.acquire()
            for each in dropping:
                owner.exec_driver_sql(each.format(table))
            with pytest.raises(StoreError, match=f"keeps changing under its own holder: {hint}"):
                master.renew()
        with closing(SqlStore(config)) as store:
            until(lambda: (store.read("held").expires_in or 0) <= 0)
        with closing(open_contender(dataclasses.replace(config, name="held"), BootClock())) as later:
            with pytest.raises(StoreError, match=f"did not take effect after 3 attempts: {hint}"):
                later.acquire()


@pytest.mark.postgres
def test_a_parameter_that_is_a_number_may_stand_in_the_url(pg_url: str, table: str) -> None:
    url = with_psycopg(pg_url) + ("&" if "?" in pg_url else "?") + "prepare_threshold="
    assert not SqlStore(configure(url=f"{url}0", table=table, name="n", create_table="true")).names()
    with pytest.raises(ConfigError, match="cannot be used"):
        SqlStore(configure(url=f"{url}many", table=table, name="n")).names()


@pytest.mark.postgres
def test_of_a_replica_it_is_said_what_to_do(pg_url: str, table: str) -> None:
    with poor_role(pg_url, table, table) as (poor, name, owner):
        owner.exec_driver_sql(f"ALTER ROLE {name} SET default_transaction_read_only = on")
        with closing(SqlStore(configure(name="n", url=poor, table=table))) as store:
            with pytest.raises(StoreError, match=r"read-only transaction: it is a replica, or .*: name the primary"):
                store.swap("n", None, LeaseRecord("me", 1, 30.0))


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_host_whose_logins_are_refused_is_not_waited_for(driver: str) -> None:
    with own_postgres() as server:
        with create_engine(server.url, poolclass=NullPool).connect() as connection:
            file = Path(str(connection.exec_driver_sql("SHOW hba_file").scalar()))
        file.write_text("host all another_role 127.0.0.1/32 trust\n")
        server.stop()
        server.start()
        url = server.url.replace("postgresql", f"postgresql+{driver}", 1)
        with closing(SqlStore(configure(name="n", url=url))) as store:
            with pytest.raises(ConfigError, match=r"no pg_hba\.conf entry .*: correct the URL"):
                store.read("n")


DENIED = "FATAL: password authentication failed"
A_REFUSES, B_DENIES = (
    'to server at "a" (10.0.0.1), port 1 failed: refused',
    f'at "b" (10.0.0.2), port 1 failed: {DENIED}',
)


@pytest.mark.parametrize(
    ("said", "by_all"),
    [
        (f"{A_REFUSES.replace('10.0.0.1', '::1')}\nconnection to server {B_DENIES.replace('b', 'a', 1)}", 1),
        (f"{A_REFUSES}\nconnection to server {B_DENIES}", 0),
        (f"to server {B_DENIES.replace(DENIED, 'SSL SYSCALL error')}\nconnection to server {B_DENIES}", 0),
        (f"to server {B_DENIES}\nconnection to server {B_DENIES}", 1),
        (f'could not translate host name "a" to address\nconnection to server {B_DENIES}', 0),
        (f'{A_REFUSES}\nconnection to server at "a" (10.0.0.1), port 2 failed: {DENIED}', 0),
    ],
)
def test_which_hosts_have_denied(said: str, by_all: int) -> None:
    assert _by_all(Exception(f"connection {said}"), ("password authentication failed",)) == bool(by_all)


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_host_that_is_down_may_be_the_one_that_lets_us_in(pg_url: str, driver: str) -> None:
    there = in_no_database(pg_url, driver)
    both = ["127.0.0.1:1", f"{there.host}:{there.port}"] if there.host else ["/none", there.query["host"]]
    url = there.set(host=None, port=None, query={"host": both}).render_as_string(hide_password=False)
    with closing(SqlStore(configure(name="n", url=url))) as store, pytest.raises(StoreError, match="does not exist"):
        store.read("n")


@contextmanager
def poor_role(pg_url: str, table: str, granted: str) -> Iterator[tuple[str, str, Any]]:
    """A role with all rights on the tables `granted`, and no more: its URL and name, and a connection of the owner."""
    name, owner = f"poor_{table}", create_engine(pg_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    SqlStore(configure(url=pg_url, table=table)).init()
    with owner.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        connection.exec_driver_sql(f"GRANT ALL ON {granted} TO {name}")
        try:
            yield make_url(pg_url).set(username=name).render_as_string(hide_password=False), name, connection
        finally:
            connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.postgres
@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_holder_whose_rights_are_taken_away_is_not_released_and_says_so(
    pg_url: str, table: str, keeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    with poor_role(pg_url, table, f"{table}, {table}_notes") as (poor, name, connection):
        with hold_lease("n", url=poor, table=table, keeper=keeper):
            connection.exec_driver_sql(f"REVOKE ALL ON {table} FROM {name}")
    assert "n: not released, it runs out: " in caplog.text and "permission denied" in caplog.text


@pytest.mark.postgres
def test_a_right_to_the_notes_that_is_missing_is_78_with_what_to_do(pg_url: str, table: str) -> None:
    with poor_role(pg_url, table, f"{table}") as (poor, _, _):
        words = ["--lease", "n", "--url", poor, "--table", table, "--run-key", "monday", "--", "true"]
        done = run_command("run", *words)
    assert done.returncode == 78, done.stderr
    reason = str(last_line(done)["reason"])
    assert f"permission denied for table {table}_notes" in reason and "init --print-sql names" in reason
    assert (
        "nothing is noted of n, so there is nothing to check"
        in run_command("history", "n", "--url", pg_url, "--table", table).stdout
    )


@pytest.mark.postgres
@pytest.mark.parametrize("is_given_back", [True, False])
def test_work_that_is_done_is_patient_with_a_right_that_is_missing(
    pg_url: str, table: str, is_given_back: bool, tmp_path: Path
) -> None:
    with poor_role(pg_url, table, f"{table}, {table}_notes") as (poor, name, connection):
        words = ["--lease", "n", "--url", poor, "--table", table, "--run-key", "monday", "--lease-duration", "9"]
        command = f"touch {tmp_path}/begun; until test -e {tmp_path}/go; do sleep 0.1; done"
        run = subprocess.Popen(
            [COMMAND, "run", *words, "--", "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert run.stderr and "acquired" in run.stderr.readline()
        until((tmp_path / "begun").exists)
        connection.exec_driver_sql(f"REVOKE ALL ON {table}_notes FROM {name}")
        (tmp_path / "go").touch()
        if is_given_back:
            time.sleep(1)  # a try or two
            connection.exec_driver_sql(f"GRANT ALL ON {table}_notes TO {name}")
        out, err = run.communicate(timeout=30)
    outcome = "finished" if is_given_back else "unreachable"
    assert (run.returncode, json.loads(out.splitlines()[-1])["outcome"]) == (0 if is_given_back else 69, outcome), err


@pytest.mark.mariadb
def test_a_certificate_that_is_none_is_one_sentence(mariadb: MariaDb, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    done = run_command("status", "n", "--url", f"{mariadb.url}?ssl_ca={tmp_path}/ca.pem")
    assert (done.returncode, "Traceback" in done.stderr) == (69, False), done.stderr


def test_a_file_that_is_read_only_ends_the_wait_at_once(tmp_path: Path) -> None:
    file = tmp_path / "leases.db"
    SqlStore(configure(url=f"sqlite:///{file}")).init()
    words, environ = unprivileged(
        ["-m", "spark_lease", "run", "--lease", "n", f"--url=sqlite:///{file}", "--", "true"], tmp_path
    )
    file.chmod(0o444)
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    assert "attempt to write a readonly database: make the file and its folder writable for this user" in done.stderr


def test_a_file_that_this_user_may_not_make_ends_the_wait_at_once(tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir(0o555)
    url = f"sqlite:///{tmp_path}/sealed/leases.db"
    words, environ = unprivileged(["-m", "spark_lease", "run", "--lease", "n", f"--url={url}", "--", "true"], tmp_path)
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    assert "leases.db does not exist, and this user may not make it" in done.stderr


def test_a_password_of_its_own_reaches_the_driver() -> None:
    store = SqlStore(configure(name="n", url="postgresql://u@db/x", password="hunter2"))
    assert store._engine.url.password == "hunter2"


@pytest.mark.postgres
def test_sqlalchemy_2_0_and_psycopg2_alone_will_do(pg_url: str, table: str) -> None:
    """SQLAlchemy 2.1 takes `postgresql://` for psycopg 3; the tests otherwise run with the newest."""
    older = Path(sys.prefix, "sqlalchemy20")
    assert older.is_dir(), "run the tests by `make test`, which installs it"
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(older)!r})
        import sqlalchemy
        assert sqlalchemy.__version__.startswith("2.0."), sqlalchemy.__version__
        from spark_lease.config.sources import configure
        from spark_lease.clock import BootClock
        from spark_lease.holds import open_contender
        for url in ({pg_url!r}, "sqlite:///" + sys.argv[1]):
            config = configure(name="n", url=url, table={table!r}, create_table="true")
            lease = open_contender(config, BootClock())
            assert lease.acquire()
            lease.renew()
            assert lease.release()
            lease.close()
        print("held on", sqlalchemy.__version__)
    """)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "error", "-c", script, f"{folder}/l.db"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("held on 2.0."), done.stderr


def test_importing_spark_lease_loads_nothing_heavy() -> None:
    script = (
        "import sys, spark_lease; print(sorted({'sqlalchemy', 'pyspark', 'deltalake', 'psycopg2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.postgres
@pytest.mark.parametrize("notify", [True, False])
def test_a_release_wakes_the_standby(pg_url: str, table: str, notify: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would look again after `poll_period` only."""
    settings = {"name": "n", "url": pg_url, "table": table, "create_table": "true", "notify": notify}
    clock, config = BootClock(), configure(**settings, poll_period=20.0, if_held="wait", acquire_timeout=3.0)
    holder, standby = open_contender(config, clock), open_contender(config, clock)
    holder.acquire()
    granted: list[float] = []
    asleep, wait = threading.Event(), standby._locker.wait

    def told(timeout: float, poll: float) -> None:
        asleep.set()
        wait(timeout, poll)

    monkeypatch.setattr(standby._locker, "wait", told)

    def acquire() -> None:
        standby.acquire()
        granted.append(clock.now())

    waiting = threading.Thread(target=acquire)
    waiting.start()
    assert asleep.wait(10)
    released = clock.now()
    assert holder.release()
    waiting.join(10)
    assert (granted[0] - released < 1) == notify  # the other one looks once more at the end of its patience
    for each in (holder, standby):
        each.close()


@pytest.mark.postgres
@pytest.mark.shows("P6")
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
@pytest.mark.parametrize("notify", [True, False])
def test_a_release_by_any_holder_is_seen_within_a_poll_period(
    pg_url: str, table: str, driver: str, notify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby listens. Only a holder with psycopg2 and `notify` tells it; one of an older version does not."""
    settings = {"name": "n", "table": table, "create_table": "true", "lease_duration": 30}
    clock = BootClock()
    theirs = str(make_url(pg_url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False))
    with closing(open_contender(configure(**settings, url=theirs, notify=notify), clock)) as holder:
        holder.acquire()
        with closing(open_contender(configure(**settings, url=pg_url, poll_period=0.5), clock)) as standby:
            assert isinstance(standby.try_acquire(), Denied)
            store: Any = standby._locker._store  # type: ignore[attr-defined]
            answered: list[str] = []
            run = store._rows
            monkeypatch.setattr(store, "_rows", lambda what, values: (run(what, values), answered.append(what))[0])
            waiting = threading.Thread(target=standby.acquire)
            waiting.start()
            until(lambda: len(answered) >= 2)  # its look before it listened, and the one after
            released = clock.now()
            assert holder.release()
            waiting.join(10)
            assert clock.now() - released < 5  # and not the 30 s of the lease
            standby.release()


@pytest.mark.postgres
def test_a_listener_that_is_closed_wakes_up(pg_url: str, table: str) -> None:
    store = SqlStore(configure(name="n", url=pg_url, table=table, create_table="true"))
    store.read("n")
    assert store.await_release("n", 0.0, 0.0)
    waiting = threading.Thread(target=lambda: store.await_release("n", 60.0, 60.0))
    waiting.start()
    store.close()
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.mark.postgres
@pytest.mark.parametrize("notify", [True, False])
def test_a_standby_asks_once_in_a_poll_period_and_has_one_connection_or_none(
    pg_url: str, table: str, notify: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"name": "n", "url": pg_url, "table": table, "create_table": "true", "notify": notify}
    clock = BootClock()
    holder = open_contender(configure(**settings), clock)
    standby = open_contender(configure(**settings, poll_period=1.0), clock)
    holder.acquire()
    store: Any = standby._locker._store  # type: ignore[attr-defined]
    asked: list[str] = []
    run = store._rows
    monkeypatch.setattr(store, "_rows", lambda what, values: (asked.append(what), run(what, values))[1])
    connected = []
    waiting = threading.Thread(target=standby.acquire)
    waiting.start()
    end = clock.now() + 3.4
    while clock.now() < end:
        connected.append(store._session.connection is not None)
        clock.wait(threading.Event(), 0.02)
    # One look in each poll period, and one more for a release before it listened.
    assert len(asked) <= (5 if notify else 4), asked
    assert connected[-1] == notify
    assert connected.count(True) < len(connected) / 4 or notify
    holder.release()
    waiting.join(10)
    assert standby.check()
    for each in (holder, standby):
        each.close()


@pytest.mark.postgres
def test_who_is_woken_knows_what_the_release_left_and_takes_that_or_nothing(pg_url: str, table: str) -> None:
    settings = {"name": "n", "url": pg_url, "table": table, "create_table": "true"}
    contenders = [open_contender(configure(**settings), BootClock()) for _ in range(3)]
    holder, slow, fast = contenders
    holder.acquire()
    store = slow._locker._store  # type: ignore[attr-defined]
    slow.try_acquire()
    store.await_release("n", 0.0, 0.0)  # begins to listen
    holder.release()
    left = store.await_release("n", 10.0, 10.0)
    seen = store.read("n").record
    assert left == dataclasses.replace(seen, duration=0.0, protection="")
    fast.acquire()
    slow._locker._freed = left  # type: ignore[attr-defined]  # as if it had been told just now
    assert isinstance(slow.try_acquire(), Denied)
    assert fast.check()
    for each in contenders:
        each.close()


def test_types_and_statements_can_be_replaced(open_store: Any, config: Config, execute: Any) -> None:
    first = open_store()
    ours = first._sql
    first._cut_off.close()
    named = {what: re.sub(r"%\((\w+)\)s", r":\1", words) for what, words in ours.items()}
    renew = named["renew"].replace("UPDATE ", "UPDATE /* mine */ ")
    store = open_store(column_types={"broker_name": "VARCHAR(300)"}, statements={"renew": renew})
    assert "/* mine */" in store._sql["renew"]
    record = store.swap("n", None, taken(None, holder="me", duration=30.0))
    again = store.swap("n", record, renewed(record, duration=20.0))
    assert again == store.read("n").record
    assert "VARCHAR(300)" in store.init_statements()["a new table"][0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"statements": {"obtain": "SELECT 1"}}, "there is none called 'obtain': directive, insert, names"),
        ({"statements": {"renew": "UPDATE t SET time = 1 WHERE name = :name"}}, "renew: lacks :duration, :epoch"),
        ({"statements": {"read": "SELECT 1 WHERE :name = :who"}}, "read: has :who, which there is not. Ours: SELECT"),
        ({"statements": "renew"}, "is not a table of texts"),
        ({"column_types": {"when": "DATE"}}, "there is no column when: id, time, broker_name"),
        ({"column_types": {"time": "BIGINT); DROP TABLE x"}}, "is no type for time"),
    ],
)
def test_what_does_not_fit_is_refused_at_start(settings: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        SqlStore(configure(name="n", url="postgresql://x@127.0.0.1:1/x", **settings))


def test_a_statement_that_is_none_is_said_as_the_settings_fault(open_store: Any) -> None:
    store = open_store(statements={"names": "SELEKT name FROM nowhere"})
    store.read("n")
    with pytest.raises(ConfigError, match="statements: names"):
        store.names()


@pytest.mark.postgres
def test_a_standby_whose_requests_fail_asks_no_more_often_than_it_polls(pg_url: str, table: str) -> None:
    holder = open_contender(configure(name="n", url=pg_url, table=table, create_table="true"), BootClock())
    holder.acquire()
    renew = "UPDATE {} SET time = :duration / 0 WHERE name = :name AND epoch = :old_epoch AND broker_name = :old_holder"
    broken = " AND time = :old_time AND :old_directive IS NULL AND :epoch > 0 AND :holder <> '' AND :protection <> ''"
    returning = " RETURNING time, epoch"
    settings = {"name": "n", "url": pg_url, "table": table, "poll_period": 0.5, "acquire_timeout": 2.2}
    standby = open_contender(
        configure(**settings, statements={"take": renew.format(table) + broken + returning}), BootClock()
    )
    holder.release()
    asked: list[float] = []
    ask = standby._locker.try_acquire

    def counted() -> Any:
        asked.append(0)
        return ask()

    standby._locker.try_acquire = counted  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        standby.acquire()
    assert len(asked) <= 7
    for each in (holder, standby):
        each.close()


@pytest.mark.parametrize(
    "url", ["mysql://u@127.0.0.1:1/d?foo=1", "mysql://u@h/d?passwd=s3cret", "postgresql://u@h/d?pass%77ord=s3cret"]
)
def test_parameters_that_a_driver_has_not_and_passwords_however_spelled(url: str) -> None:
    store = SqlStore(configure(name="n", url=url, attempt_timeout=0.5))
    assert "s3cret" not in store.where
    if "foo" in url:
        with pytest.raises(ConfigError, match=r"cannot be used: .*unexpected keyword argument 'foo'"):
            store.read("n")
    store.close()


def test_a_holder_that_does_not_fit_a_brokers_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit a broker's table: use ASCII"):
        SqlStore(configure(name="n", url="mysql://u@h/d", table="ACTIVEMQ_LOCK", holder="東京"))


@pytest.mark.postgres
@pytest.mark.parametrize("words", ["\u00b2", "9" * 5000, "1" * 19, "-1", ""])
def test_a_notification_that_is_no_epoch_wakes_the_standby_and_no_more(pg_url: str, table: str, words: str) -> None:
    """Any role that may connect can send one."""
    store, other = (SqlStore(configure(name="n", url=pg_url, table=table, create_table="true")) for _ in range(2))
    other.read("n")
    store.await_release("n", 0.0, 0.0)  # begins to listen
    with create_engine(pg_url, poolclass=NullPool).begin() as connection:
        connection.execute(text("SELECT pg_notify(:channel, :words)"), {"channel": store._channel("n"), "words": words})
    assert store.await_release("n", 5.0, 5.0) is True
    for each in (store, other):
        each.close()


@pytest.mark.postgres
def test_a_lease_has_any_name_whatever_the_encoding_of_the_client(pg_url: str, table: str) -> None:
    place = ["--url", pg_url, "--table", table, "--create-table", "true"]
    bare = {**os.environ, "PGCLIENTENCODING": "LATIN1"}
    done = run_command("run", "--lease", "Łódź", "--run-key", "日", *place, "--", "true", env=bare)
    assert done.returncode == 0, done.stderr


@pytest.mark.postgres
@pytest.mark.parametrize("parameter", ["sslmode=requrie", "nothing=1", "options=-c%20no_such_setting=1"])
def test_a_typo_in_the_url_ends_at_once(pg_url: str, parameter: str) -> None:
    done = run_command("run", "--lease", "n", "--url", f"{pg_url}&{parameter}", "--", "true")
    assert (done.returncode, "Traceback" in done.stderr) == (78, False), done.stderr


@pytest.mark.postgres
def test_a_transaction_timeout_of_the_role_does_not_end_a_row_that_is_locked_for_life(pg_url: str, table: str) -> None:
    place = ["--url", f"{pg_url}&options=-c%20transaction_timeout=1000", "--table", table, "--create-table", "true"]
    done = run_command("run", "--lease", "n", "--locker", "database", *place, "--", "sleep", "2.5")
    assert done.returncode == 0, done.stderr


@pytest.mark.postgres
def test_the_strings_of_a_role_may_have_backslashes(pg_url: str, table: str) -> None:
    place = ["--url", f"{pg_url}&options=-c%20standard_conforming_strings=off", "--table", table]
    done = run_command("run", "--lease", "n\\4", *place, "--create-table", "true", "--", "true")
    assert done.returncode == 0, done.stderr


def test_notes_in_the_session_of_the_renewals_take_no_other(open_store: Any, config: Config, execute: Any) -> None:
    store = open_store()
    mine = store.swap("n", None, taken(None, holder="me", duration=30.0))
    before = store._session.connection
    assert store.notes.append("n", "kind", "key", "text")
    assert store.notes.add("n", "kind", "other", "more", holder="me", epoch=mine.epoch) == "more"
    assert store.notes.all("n", "kind") == {"key": "text", "other": "more"}
    assert store._session.connection is before
    assert store.swap("n", mine, renewed(mine, duration=30.0))


def test_a_request_in_the_session_that_fails_costs_the_next_renewal_a_connection_and_no_more(
    open_store: Any, config: Config
) -> None:
    store = open_store()
    mine = store.swap("n", None, taken(None, holder="me", duration=30.0))
    before = store._session.connection
    with pytest.raises(SQLAlchemyError), store.session() as connection:
        connection.exec_driver_sql("SELECT nothing FROM nowhere")
    mine = store.swap("n", mine, renewed(mine, duration=30.0))
    assert mine
    assert store._session.connection is not before
    store.close()
    with store.session() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    assert store._session.connection is None, "a store that is closed keeps none"
    seldom = open_store(notify=False)
    assert seldom.notes.all("n", "kind") == {}
    assert seldom._session.connection is None, "one that asks seldom keeps none in between"


@pytest.mark.postgres
def test_a_request_in_the_session_that_hangs_is_cut_off(pg_url: str, table: str) -> None:
    config = configure(name="n", url=pg_url, table=table, create_table="true", lease_duration=4)
    with closing(SqlStore(config)) as store:
        mine = store.swap("n", None, taken(None, holder="me", duration=1.0))
        assert mine
        begun = BootClock().now()
        with pytest.raises(SQLAlchemyError), store.session() as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("SELECT pg_sleep(60)")
        assert BootClock().now() - begun < 5
        assert store.read("n").record == mine


@pytest.mark.postgres
def test_a_request_that_was_cut_off_is_no_crash_of_the_server_and_the_next_error_is_its_own(
    pg_url: str, table: str
) -> None:
    proxy = Proxy(pg_url)
    config = configure(name="n", url=proxy.url, table=table, create_table="true", lease_duration=3)
    with closing(SqlStore(config)) as store:
        store.swap("n", None, taken(None, holder="me", duration=3.0))
        proxy.swallow_answers()
        with pytest.raises(StoreError, match=r"no answer within \S+ s \(attempt_timeout\): the connection was cut"):
            store.read("n")
        proxy.slam()
        proxy.close()
        with pytest.raises(StoreError, match=r"connection to server .* failed"):
            store.read("n")


def test_renewals_and_notes_of_many_threads_share_the_session(open_store: Any, config: Config) -> None:
    """One request at a time, and no connection is closed under another thread: SQLite's library would crash."""
    for notify in (True, False):
        store = open_store(notify=notify)
        mine = store.swap(f"n{notify}", None, taken(None, holder="me", duration=30.0))
        problems: list[Exception] = []

        def note(who: int, store: SqlStore = store, problems: list[Exception] = problems) -> None:
            try:
                for number in range(8):
                    store.notes.append("n", f"kind{store._config.notify}", f"{who} {number}", "text")
                    with suppress(SQLAlchemyError), store.session() as connection:
                        connection.exec_driver_sql("SELECT nothing FROM nowhere")
            except Exception as error:  # whatever it is, the test has to see it
                problems.append(error)

        threads = [threading.Thread(target=note, args=(who,)) for who in range(3)]
        for each in threads:
            each.start()
        while any(each.is_alive() for each in threads):
            mine = store.swap(f"n{notify}", mine, renewed(mine, duration=30.0))
            assert mine
        assert problems == []
        assert len(store.notes.all("n", f"kind{notify}")) == 24
