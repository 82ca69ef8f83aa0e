"""MariaDB once, from the lease to the fence, in `make test`: what else is shown on it is for `make test-all`."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import DBAPIError

from spark_lease import Fenced
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.connections import SocketWatchdog, make_engine
from spark_lease.errors import FenceUnreachable
from spark_lease.fencing.sql.claim import claim
from spark_lease.fencing.sql.transaction import fenced_sql
from spark_lease.holds import open_contender
from spark_lease.stores.registry import open_store
from tests.services.mariadb import MariaDb, running_mariadb
from tests.support.command import spark_lease
from tests.support.guarded import clear, create_guarded, engine_for, rows
from tests.support.holders import Holder


@pytest.fixture
def engine(mariadb: MariaDb) -> Engine:
    engine = engine_for(mariadb.url)
    clear(engine)
    create_guarded(engine)
    return engine


@pytest.mark.mariadb
@pytest.mark.shows("P2", "P4")
def test_a_lease_on_mariadb_grows_its_epoch_and_an_older_epoch_writes_nothing(
    mariadb: MariaDb, engine: Engine, table: str
) -> None:
    place = ["--url", mariadb.url, "--table", table]
    assert spark_lease("init", *place).returncode == 0
    epochs = []
    for _ in range(2):
        done = spark_lease("run", "--lease", "n", *place, "--", "true")
        assert done.returncode == 0, done.stderr
        epochs.append(json.loads(done.stdout.splitlines()[-1])["epoch"])
    assert epochs[0] < epochs[1]
    with closing(open_store(configure(url=mariadb.url, table=table))) as store:
        record = store.read("n").record
        assert record is not None and (record.holder, record.epoch) == (None, epochs[1])

    def write(epoch: int) -> None:
        with fenced_sql(Holder("n", epoch), engine) as connection:
            connection.exec_driver_sql(f"INSERT INTO guarded (epoch) VALUES ({epoch})")

    write(epochs[1])
    with pytest.raises(Fenced):
        write(epochs[0])
    assert (rows(engine, epochs[1]), rows(engine)) == (1, 1)
    engine.dispose()


@pytest.mark.mariadb
@pytest.mark.parametrize(
    "options", [["--completion-type=CHAIN", "--innodb-default-row-format=compact"], ["--autocommit=0"]], ids=str
)
def test_a_server_with_transactions_of_its_own_kind_keeps_every_grant(options: list[str]) -> None:
    """Else the grant would stand in a transaction that nothing commits."""
    with running_mariadb(*options) as server:
        config = configure(name="n", url=server.url, create_table="true")
        with closing(open_contender(config, BootClock())) as mine, closing(open_store(config)) as other:
            epoch = mine.acquire()
            seen = other.read("n").record
            assert seen and (seen.holder, seen.epoch) == (mine.holder, epoch)
            mine.release()
        guarded = engine_for(server.url)
        create_guarded(guarded)
        with fenced_sql(Holder("n", 5), guarded) as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5)")
        assert rows(guarded) == 1
        guarded.dispose()


@pytest.mark.mariadb
def test_a_host_that_may_not_connect_is_told_so_at_once(mariadb: MariaDb) -> None:
    engine = engine_for(mariadb.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP USER IF EXISTS elsewhere@'192.0.2.1'")
        connection.exec_driver_sql("CREATE USER elsewhere@'192.0.2.1' IDENTIFIED BY 'x'")
    engine.dispose()
    url = make_url(mariadb.url).set(username="elsewhere", password="x").render_as_string(hide_password=False)
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "true")
    assert done.returncode == 78, done.stderr


@pytest.mark.mariadb
def test_without_rights_for_a_fence_it_is_said_what_to_run(mariadb: MariaDb, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP USER IF EXISTS plain@'127.0.0.1'")
        connection.exec_driver_sql("CREATE USER plain@'127.0.0.1' IDENTIFIED BY 'x'")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE ON leases.guarded TO plain@'127.0.0.1'")
    plain = create_engine(engine.url.set(username="plain", password="x"))
    with pytest.raises(FenceUnreachable, match="have an administrator run: CREATE TABLE") as raised:
        claim(Holder("n", 5), plain)
    with engine.begin() as connection:
        for statement in str(raised.value).partition(" run: ")[2].partition(" ((")[0].rstrip(")").split("; "):
            connection.exec_driver_sql(statement.replace("this role", "plain@'127.0.0.1'"))
    claim(Holder("n", 5), plain)
    plain.dispose()


@pytest.mark.mariadb
def test_a_binary_log_that_is_not_synced_may_forget() -> None:
    with running_mariadb("--log-bin=log", "--sync-binlog=0", "--server-id=1") as server:
        assert spark_lease("init", "--url", server.url).returncode == 0
        done = spark_lease("doctor", "--url", server.url)
        assert "sync_binlog = 0" in done.stdout and "set sync_binlog = 1" in done.stdout


@pytest.mark.mariadb
@pytest.mark.parametrize("password", ["sécrét", "pass€"])
def test_a_password_is_utf_8(mariadb: MariaDb, password: str) -> None:
    engine = engine_for(mariadb.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP USER IF EXISTS accented@'%%'")
        connection.exec_driver_sql("CREATE USER accented@'%%' IDENTIFIED BY %s", (password,))
    url = make_url(mariadb.url).set(username="accented")
    config = configure(name="n", url=url.render_as_string(), password=password)
    cut_off = SocketWatchdog(5.0)
    with pytest.raises(DBAPIError, match=r"1044.*to database"):  # it was let in, and has no rights there
        make_engine(config, cut_off).connect()
    cut_off.close()
    engine.dispose()


@pytest.mark.mariadb
def test_a_view_is_no_lease_table(mariadb: MariaDb, engine: Engine, table: str) -> None:
    """What it selects runs with the rights of who reads it."""
    place = ["--url", mariadb.url, "--table", f"{table}_view"]
    assert spark_lease("init", "--url", mariadb.url, "--table", table).returncode == 0
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE VIEW {table}_view AS SELECT * FROM {table}")
    for command in (["status"], ["run", "--lease", "n", "--acquire-timeout", "0"]):
        done = spark_lease(*command, *place, *(["--", "true"] if command[0] == "run" else []))
        assert done.returncode != 0
        assert "is a view, and a lease needs a table" in done.stderr
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP VIEW {table}_view")


@pytest.mark.mariadb
def test_a_pause_is_kept_in_any_words_whatever_the_servers_own_charset(mariadb: MariaDb, table: str) -> None:
    place = ["--url", mariadb.url, "--table", table]
    assert spark_lease("run", "--lease", "n", *place, "--create-table", "true", "--", "true").returncode == 0
    paused = spark_lease("pause", "n", "--reason", "wdrożenie 日本", *place)
    assert (paused.returncode, "wdrożenie 日本" in paused.stdout) == (0, True), paused.stderr
