"""MariaDB once, from the lease to the fence, in `make test`: what else is shown on it is for `make test-all`."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from sqlalchemy import Engine, make_url
from sqlalchemy.exc import DBAPIError

from spark_lease import Fenced
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.connections import SocketWatchdog, make_engine
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
def test_a_server_that_chains_transactions_and_has_narrow_rows_keeps_every_grant() -> None:
    """Else the grant would stand in a transaction that nothing commits."""
    with running_mariadb("--completion-type=CHAIN", "--innodb-default-row-format=compact") as server:
        config = configure(name="n", url=server.url, create_table="true")
        with closing(open_contender(config, BootClock())) as mine, closing(open_store(config)) as other:
            epoch = mine.acquire()
            seen = other.read("n").record
            assert seen and (seen.holder, seen.epoch) == (mine.holder, epoch)
            mine.release()


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
