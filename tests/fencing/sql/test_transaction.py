"""Fenced transactions on real databases: masters that are frozen, cut off and superseded write nothing more."""

from __future__ import annotations

import contextlib
import io
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg2.extensions
import psycopg2.sql
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool
from wrapt import ObjectProxy

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.connections import descriptor_of, has_hung_up
from spark_lease.errors import ConfigError, Fenced, FenceUnreachable, LeaseLost, Loss
from spark_lease.fencing.sql import claim as sql_claim
from spark_lease.fencing.sql import commit as sql_commit
from spark_lease.fencing.sql import refusals as sql_refusals
from spark_lease.fencing.sql import transaction as sql
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.transaction import Completion, completing_sql, fenced_sql
from spark_lease.holds import open_contender
from tests.services.pooler import Pooler
from tests.services.postgres import own_postgres, with_psycopg
from tests.services.proxy import Proxy
from tests.support.drivers import until
from tests.support.guarded import DOORS, DRIVERS, SERVERS, Writer, commit_of, end_session, engine_for, rows
from tests.support.holders import Holder

NAME = "nightly"
ROUNDS = 6
LEVELS = ["READ COMMITTED", "REPEATABLE READ"]
Start = Callable[..., Writer]
MARIADB_ALONE = pytest.mark.mariadb_alone
PSYCOPG2 = pytest.mark.parametrize(
    "database",
    [pytest.param(each, marks=pytest.mark.postgres) for each in ("postgresql", "postgresql, used before")],
    indirect=True,
)


def write(engine: Engine, lease: Holder) -> None:
    with fenced_sql(lease, engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": lease.epoch})


# -- what a transaction does


def test_the_newest_epoch_writes_and_waits_until_its_lease_is_certain(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    write(engine, lease)
    write(engine, lease)
    assert (rows(engine), lease.waited, FenceTable(engine).newest(NAME)) == (2, 2, 5)


def test_an_exception_in_the_block_rolls_back(engine: Engine) -> None:
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        raise KeyError
    assert rows(engine) == 0


def test_an_older_epoch_is_fenced_and_its_lease_is_lost(engine: Engine) -> None:
    old = Holder(NAME, 5)
    write(engine, old)
    claim(Holder(NAME, 6), engine)
    with pytest.raises(Fenced, match="claimed under epoch 6 and mine is 5: nothing was written") as raised:
        write(engine, old)
    assert (raised.value.newest, old.lost) == (6, [Loss.FENCED])
    with pytest.raises(LeaseLost):
        write(engine, old)
    assert rows(engine) == 1


@SERVERS
@pytest.mark.parametrize("isolation", LEVELS)
def test_a_claim_while_the_transaction_is_open_fences_it(engine: Engine, isolation: str) -> None:
    other, old = create_engine(engine.url, isolation_level=isolation), Holder(NAME, 5)
    with pytest.raises(Fenced), fenced_sql(old, other) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        claim(Holder(NAME, 6), engine)
    assert (rows(engine), old.lost, FenceTable(engine).newest(NAME)) == (0, [Loss.FENCED], 6)
    other.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_claim_on_sqlite_waits_for_the_transaction_that_is_open(engine: Engine) -> None:
    claiming = threading.Thread(target=claim, args=(Holder(NAME, 6), engine))
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        claiming.start()
    claiming.join(20)
    assert (rows(engine, 5), FenceTable(engine).newest(NAME)) == (1, 6)


def test_two_leases_in_one_database_do_not_fence_each_other(engine: Engine) -> None:
    write(engine, Holder("nightly", 9))
    write(engine, Holder("hourly", 3))
    assert rows(engine) == 2


def test_an_error_of_the_database_stays_what_it_is(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    with pytest.raises(IntegrityError), fenced_sql(lease, engine) as connection:
        for _ in range(2):
            connection.execute(text("INSERT INTO spark_lease_fence (name, epoch) VALUES ('x', 1)"))
    assert lease.lost == []
    write(engine, lease)


def test_a_fence_that_was_cleared_refuses_and_is_claimed_anew(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    write(engine, lease)
    assert FenceTable(engine).forget(NAME) == 5
    with pytest.raises(FenceUnreachable, match="was cleared meanwhile"):
        write(engine, lease)
    write(engine, lease)
    assert rows(engine) == 2


def test_without_a_guard_it_is_a_plain_transaction(engine: Engine) -> None:
    write(engine, Holder(NAME, 0))
    assert rows(engine, 0) == 1


def test_a_lease_that_was_lost_meanwhile_does_not_commit(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    with pytest.raises(LeaseLost), fenced_sql(lease, engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        lease.lose(Loss.EXPIRED)
    assert rows(engine) == 0


def test_a_lease_that_is_held_for_real_writes_until_a_newer_one_has_claimed(engine: Engine, url: str) -> None:
    old, new = (open_contender(configure(name=NAME, url=f"{url}{which}"), BootClock()) for which in ("1", "2"))
    old.acquire()
    new.acquire()  # from another store: nothing keeps the two apart
    assert new.epoch > old.epoch
    for lease in (old, new):
        with fenced_sql(lease, engine) as connection:
            connection.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": lease.epoch})
    with pytest.raises(Fenced), fenced_sql(old, engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": old.epoch})
    with pytest.raises(LeaseLost, match="fenced"):
        old.check()
    with pytest.raises(LeaseLost, match="fenced"):
        old.renew()
    assert (rows(engine, old.epoch), rows(engine, new.epoch)) == (1, 1)
    for lease in (old, new):
        lease.release()
        lease.close()


# -- what is refused inside


@pytest.mark.parametrize("words", ["COMMIT", " /* x */ rollback", "END", "BEGIN", "-- x\nCOMMIT"])
def test_statements_that_would_end_the_transaction_are_refused(engine: Engine, words: str) -> None:
    with pytest.raises(ConfigError, match="begins and ends"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.execute(text(words))
    assert rows(engine) == 0


@pytest.mark.postgres
@PSYCOPG2
def test_a_commit_that_is_interrupted_is_named_in_the_log(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """As by a lost lease: the driver waits for the answer, which came, and Python raises at once."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION doze() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(0.6); RETURN NULL; END $$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON guarded DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
            "EXECUTE FUNCTION doze()"
        )
    sessions: list[int] = []

    def interrupt() -> None:
        dozes = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = "
        with engine.connect() as seen:
            until(lambda: sessions and seen.exec_driver_sql(f"{dozes}{sessions[0]}").scalar())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        sessions.append(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
    thread.join()
    assert rows(engine) == 1
    named = re.search(r"spark_lease_fence_run has (\w{32}) under 5", caplog.text)
    assert named and FenceTable(engine).was_committed(NAME, 5, named[1])


@pytest.mark.parametrize("database", ["postgresql", "psycopg"], indirect=True)
def test_a_commit_that_hides_behind_another_statement_lets_nothing_follow(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="has ended inside the block"), fenced_sql(Holder(NAME, 5), engine) as session:
        session.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5); COMMIT")
        session.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (6)")
    assert rows(engine, 6) == 0


@pytest.mark.parametrize(
    "database",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)
def test_a_lost_answer_is_found_although_others_were_master_since(engine: Engine) -> None:
    write(engine, Holder(NAME, 5))
    fence_table = FenceTable(engine)
    with engine.begin() as connection:
        (run,) = connection.execute(text("SELECT run FROM spark_lease_fence_run WHERE epoch = 5")).scalars()
    for epoch in (6, 7):
        claim(Holder(NAME, epoch), engine)
    assert fence_table.was_committed(NAME, 5, run)


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_commit_and_rollback_inside_are_refused_and_nothing_is_left_open(engine: Engine, method: str) -> None:
    with pytest.raises(ConfigError, match="inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        getattr(connection, method)()
    with engine.begin() as connection:  # the same connection of the pool
        connection.execute(text("SELECT 1"))
    assert rows(create_engine(engine.url, poolclass=NullPool)) == 0


@pytest.mark.parametrize("ends", [True, False], ids=["fails", "ends"])
def test_a_connection_that_is_given_back_inside_is_no_harm_to_the_next(engine: Engine, ends: bool) -> None:
    with pytest.raises((ConfigError, KeyError)), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.connection.close()
        if ends:
            raise KeyError
    with contextlib.suppress(DBAPIError), engine.begin() as connection:
        connection.execute(text("SELECT 1"))
    with pytest.raises(KeyError), engine.begin() as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (1)"))
        raise KeyError
    assert rows(engine) == 0


def test_a_block_begins_no_transaction_of_its_own(engine: Engine) -> None:
    problem = (ConfigError, InvalidRequestError)
    with pytest.raises(problem, match="begin"), fenced_sql(Holder(NAME, 5), engine) as connection, connection.begin():
        pass
    assert rows(engine) == 0


def test_many_comments_take_no_time() -> None:
    begun = time.monotonic()
    sql_refusals.refuse_end("/* a */ " * 5000 + "SELECT 1")
    assert time.monotonic() - begun < 5
    with pytest.raises(ConfigError):
        sql_refusals.refuse_end("/* a */ " * 5000 + "COMMIT")


def test_many_comments_that_are_run_take_no_time() -> None:
    begun = time.monotonic()
    for each in ("/*! a */ ", "/*! ", "/*!1/* a */"):
        sql_refusals.refuse_end(each * 2000 + "SELECT 1")
    assert time.monotonic() - begun < 5


@SERVERS
def test_a_connection_that_is_lost_inside_and_forgotten_is_no_success(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="lost inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        end_session(engine, connection)
        with pytest.raises(DBAPIError):
            connection.exec_driver_sql("SELECT 1")
        if (transaction := connection.get_transaction()) is not None:
            transaction.rollback()


@pytest.mark.parametrize(
    "end",
    [
        lambda connection: connection.close(),
        lambda connection: connection.get_transaction().commit(),
        lambda connection: connection.get_transaction().rollback(),
    ],
    ids=["close", "commit", "rollback"],
)
def test_an_end_that_goes_past_the_connections_methods_writes_nothing(
    engine: Engine, end: Callable[[Connection], object]
) -> None:
    with pytest.raises(ConfigError, match="inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        end(connection)
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
    write(engine, Holder(NAME, 5))
    assert rows(create_engine(engine.url, poolclass=NullPool)) == 1


@PSYCOPG2
def test_the_drivers_own_commit_commits_nothing(engine: Engine) -> None:
    with pytest.raises(Fenced), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        driver: Any = connection.connection.driver_connection
        driver.commit()
        with contextlib.suppress(DBAPIError):  # it ends the session of the older epoch
            claim(Holder(NAME, 6), engine)
    assert rows(engine) == 0


@PSYCOPG2
@pytest.mark.parametrize("method", ["execute", "executemany"])
def test_a_cursor_of_the_driver_refuses_to_end_the_transaction(engine: Engine, method: str) -> None:
    with pytest.raises(ConfigError, match="begins and ends"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        getattr(connection.connection.cursor(), method)("COMMIT", *([[()]] if method == "executemany" else []))
    assert rows(engine) == 0
    with engine.connect() as connection, connection.connection.cursor() as cursor:
        cursor.execute("COMMIT")  # outside it may


@DRIVERS
def test_a_pooled_session_that_the_server_has_ended_meanwhile_is_not_used(engine: Engine) -> None:
    """As after a standby's wait of eight hours on MariaDB, or a restart of the server."""
    number, end = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    }[engine.dialect.name]
    for _ in ("the claim", "a block after it"):
        with engine.connect() as connection, engine.connect() as another:
            both = (connection, another)
            sessions = {each.exec_driver_sql(number).scalar(): each.connection.driver_connection for each in both}
        with create_engine(engine.url, poolclass=NullPool).connect() as other:
            for session, driver in sessions.items():
                other.exec_driver_sql(end.format(session))
                until(partial(has_hung_up, descriptor_of(driver) or 0))
        write(engine, Holder(NAME, 5))
        engine.pool.dispose()  # the one that was not used is dead as well
    assert rows(engine) == 2


@SERVERS
def test_a_server_that_refuses_at_the_begin_of_a_block_is_sqlalchemys_error(engine: Engine) -> None:
    refused: list[Exception] = []

    def connect() -> Any:
        if refused:
            raise refused[0]
        return engine.dialect.connect(*words, **more)

    words, more = engine.dialect.create_connect_args(engine.url)
    through = create_engine(engine.url, creator=connect, poolclass=NullPool)
    write(through, Holder(NAME, 5))
    refused.append(engine.dialect.loaded_dbapi.OperationalError(1040, "too many connections"))
    with pytest.raises(DBAPIError, match="too many connections"):
        write(through, Holder(NAME, 5))


@SERVERS
def test_a_connection_that_was_lost_inside_is_not_replaced_by_another(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="lost inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        end_session(engine, connection)
        with pytest.raises(DBAPIError):
            connection.exec_driver_sql("SELECT 1")
        if (transaction := connection.get_transaction()) is not None:
            transaction.rollback()
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
    assert rows(engine) == 0
    write(engine, Holder(NAME, 5))


@PSYCOPG2
def test_a_session_that_was_rolled_back_begins_nothing_new(engine: Engine) -> None:
    insert = text("INSERT INTO guarded (epoch) VALUES (5)")
    with pytest.raises(ConfigError, match="inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        session = Session(bind=connection)
        session.execute(insert)
        session.rollback()
        with contextlib.suppress(ConfigError):
            session.connection(execution_options={"isolation_level": "READ COMMITTED"})
            session.execute(insert)
            session.commit()
    assert rows(engine) == 0


def _by_with(driver: Any, insert: str) -> None:
    with driver, driver.cursor() as cursor:
        cursor.execute(insert)


def _out_of_autocommit(driver: Any, insert: str) -> None:
    driver.autocommit = False
    driver.cursor().execute(insert)
    driver.commit()


def _as_bytes(driver: Any, insert: str) -> None:
    driver.cursor().execute(insert.encode())
    driver.cursor().execute(b"COMMIT")


def _composed(driver: Any, insert: str) -> None:
    driver.cursor().execute(query=psycopg2.sql.SQL(insert), vars=None)
    driver.cursor().execute(psycopg2.sql.SQL("COMMIT"))


def _by_copy(driver: Any, insert: str) -> None:
    driver.cursor().execute(insert)
    driver.cursor().copy_expert("COMMIT", io.StringIO())


def _many_by_with(driver: Any, insert: str) -> None:
    with driver:
        driver.cursor().executemany(insert, [()])


def _copied_by_with(driver: Any, insert: str) -> None:
    with driver:
        driver.cursor().copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO("5\n"))


def _copied_from(driver: Any, insert: str) -> None:
    driver.autocommit = False
    driver.cursor().copy_from(io.StringIO("5\n"), "guarded", columns=("epoch",))
    driver.commit()


DRIVERS_WAYS = [
    *(_by_with, _out_of_autocommit, _as_bytes, _composed, _by_copy),
    *(_many_by_with, _copied_by_with, _copied_from),
]


@PSYCOPG2
@pytest.mark.parametrize("how", DRIVERS_WAYS)
def test_the_driver_itself_commits_nothing_past_the_check(engine: Engine, how: Callable[[Any, str], None]) -> None:
    with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), engine) as connection:
        how(connection.connection.driver_connection, "INSERT INTO guarded (epoch) VALUES (5)")
    assert rows(engine) == 0
    write(engine, Holder(NAME, 5))


@PSYCOPG2
def test_listeners_factories_and_tracers_of_the_user_go_on_working(engine: Engine) -> None:
    class Traced(psycopg2.extensions.connection):
        def cursor(self, *words: Any, **more: Any) -> Any:
            return ObjectProxy(super().cursor(*words, **more))

    def make(*words: Any, **more: Any) -> Any:
        return psycopg2.extensions.cursor(*words, **more)

    def listen(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))
        connection.commit()

    factory = create_engine(engine.url, connect_args={"cursor_factory": make})
    traced = create_engine(engine.url, connect_args={"connection_factory": Traced})
    listened = create_engine(engine.url)
    event.listen(listened, "engine_connect", listen)
    for number, other in enumerate([factory, listened, traced], 1):
        write(other, Holder(NAME, 5))
        assert rows(engine) == number
        other.dispose()


def test_a_savepoint_inside_may_be_rolled_back(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        with pytest.raises(KeyError), connection.begin_nested():
            connection.execute(text("INSERT INTO guarded (epoch) VALUES (6)"))
            raise KeyError
    assert (rows(engine, 5), rows(engine, 6)) == (1, 0)


def test_the_connection_is_an_ordinary_one_afterwards(engine: Engine) -> None:
    """psycopg2 does not notice a COMMIT in a longer message, and would go on in silent autocommit."""
    write(engine, Holder(NAME, 5))
    with pytest.raises(KeyError), engine.begin() as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (1)"))
        raise KeyError
    assert (rows(engine, 5), rows(engine, 1)) == (1, 0)


@PSYCOPG2
@pytest.mark.parametrize("isolation", LEVELS)
def test_the_isolation_level_is_the_engines_inside_and_afterwards(engine: Engine, isolation: str) -> None:
    other = create_engine(engine.url, isolation_level=isolation, pool_size=1, max_overflow=0)
    for _ in range(2):
        with fenced_sql(Holder(NAME, 5), other) as connection:
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == isolation.lower()
        with other.connect() as connection:
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == isolation.lower()
            assert connection.exec_driver_sql("SHOW application_name").scalar() == ""
    other.dispose()


@PSYCOPG2
def test_behind_a_pooler_that_keeps_no_prepared_statement_another_try_heals_it(engine: Engine) -> None:
    lease, other = Holder(NAME, 5), create_engine(engine.url, pool_size=1, max_overflow=0)
    write(other, lease)
    with pytest.raises(DBAPIError, match="does not exist"), fenced_sql(lease, other) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.exec_driver_sql("DEALLOCATE ALL")
    for _ in range(2):
        write(other, lease)
    other.dispose()
    another = create_engine(engine.url, pool_size=1, max_overflow=0)
    with another.begin() as connection:  # as another client of the pooler has left the session
        connection.exec_driver_sql("PREPARE spark_lease_commit_1 AS SELECT 1")
    write(another, lease)
    another.dispose()
    assert (rows(engine), lease.lost) == (4, [])


@pytest.mark.parametrize("database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
@pytest.mark.parametrize("words", ["CREATE TABLE x (a INT)", "truncate guarded", "ALTER TABLE guarded ADD x INT"])
def test_mariadb_refuses_what_commits_by_itself(engine: Engine, words: str) -> None:
    with pytest.raises(ConfigError, match="commits at"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.execute(text(words))
    assert rows(engine) == 0


@pytest.mark.parametrize("database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
@pytest.mark.parametrize(
    "words",
    [
        "INSERT INTO loose VALUES (1)",
        "insert ignore `leases`.`loose` values (1)",
        "INSERT /*+ SET_VAR(foreign_key_checks = 1) */ INTO/**/loose VALUES (1)",
        "UPDATE loose SET a = 2",
        "UPDATE`leases`.`loose`SET a = 2",
        "DELETE FROM loose",
        "DELETE loose FROM loose",
        "REPLACE INTO`loose`VALUES (1)",
        '/* with ANSI_QUOTES */ INSERT INTO "loose" VALUES (1)',
    ],
)
def test_mariadb_refuses_tables_that_do_not_roll_back(engine: Engine, words: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE loose (a INT) ENGINE=MEMORY")
    with pytest.raises(ConfigError, match="a table of MEMORY"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(words)
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM loose").scalar() == 0
        connection.exec_driver_sql("DROP TABLE loose")


@pytest.mark.parametrize("database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
@pytest.mark.parametrize("table", ["spark_lease_fence", "spark_lease_fence_run", "spark_lease_fence_done"])
def test_mariadb_refuses_a_fence_whose_rows_are_not_locked(engine: Engine, table: str) -> None:
    FenceTable(engine).raise_to(NAME, 1)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} ENGINE=MEMORY")
    with pytest.raises(ConfigError, match=f"{table} is kept by MEMORY: run ALTER TABLE {table} ENGINE=InnoDB"):
        write(engine, Holder(NAME, 5))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} ENGINE=InnoDB")
    write(engine, Holder(NAME, 5))
    assert rows(engine) == 1


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True)
def test_ddl_is_undone_with_all_else_where_the_database_can_do_that(engine: Engine) -> None:
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("CREATE TABLE made_inside (a INT)"))
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        raise KeyError
    assert (rows(engine), inspect(engine).has_table("made_inside")) == (0, False)


def test_a_table_that_does_not_exist_is_the_databases_own_error_and_no_loss(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    with pytest.raises(DBAPIError, match="nothing_there"), fenced_sql(lease, engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.execute(text("INSERT INTO nothing_there VALUES (1)"))
    assert (rows(engine), lease.lost) == (0, [])
    write(engine, lease)


@pytest.mark.parametrize("database", [pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_a_temporary_table_is_nobody_elses(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql("CREATE TEMPORARY TABLE mine (a INT)")
        connection.exec_driver_sql("INSERT INTO mine VALUES (5)")
        connection.exec_driver_sql("INSERT INTO guarded (epoch) SELECT a FROM mine")
    assert rows(engine, 5) == 1


def test_an_engine_in_autocommit_is_refused(engine: Engine) -> None:
    other = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigError, match="autocommit"):
        write(other, Holder(NAME, 5))
    assert rows(engine) == 0
    other.dispose()


@pytest.mark.postgres
def test_a_driver_that_is_not_known_is_refused(pg_url: str) -> None:
    engine = create_engine(pg_url)
    engine.dialect.driver = "pg8000"
    with pytest.raises(ConfigError, match="the driver pg8000 is not known here: use psycopg2 or psycopg"):
        claim(Holder(NAME, 5), engine)


@pytest.mark.postgres
def test_psycopg_may_prepare_every_statement(pg_url: str) -> None:
    engine = create_engine(with_psycopg(pg_url), connect_args={"prepare_threshold": 0}, poolclass=NullPool)
    with fenced_sql(Holder("prepares", 5), engine) as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="in memory"):
        claim(Holder(NAME, 5), create_engine("sqlite://"))


# -- the claim


def test_a_claim_done_twice_is_done_once(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    claim(lease, engine)
    claim(lease, engine)
    assert FenceTable(engine).newest(NAME) == 5


def test_a_claim_below_the_fence_says_what_it_may_mean_and_how_to_repair_it(engine: Engine) -> None:
    claim(Holder(NAME, 9), engine)
    lease = Holder(NAME, 5)
    with pytest.raises(Fenced, match=r"lost or restored from a backup .*spark-lease fence forget --lease nightly"):
        claim(lease, engine)
    assert not lease.lost
    with pytest.raises(Fenced), fenced_sql(lease, engine):
        pass
    assert lease.lost == [Loss.FENCED]
    assert FenceTable(engine).forget(NAME) == 9
    claim(Holder(NAME, 5), engine)


def test_an_epoch_that_is_no_number_is_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE spark_lease_fence (name VARCHAR(250) PRIMARY KEY, epoch VARCHAR(20))")
        connection.exec_driver_sql("INSERT INTO spark_lease_fence VALUES ('nightly', 'soon')")
    with pytest.raises(FenceUnreachable, match="EPOCH='soon' for nightly, which no lease has"):
        claim(Holder(NAME, 5), engine)


def test_many_claim_at_once_and_the_newest_stays(engine: Engine) -> None:
    refused: list[int] = []

    def one(epoch: int) -> None:
        try:
            claim(Holder(NAME, epoch), engine)
        except Fenced:
            refused.append(epoch)

    claiming = [threading.Thread(target=one, args=(epoch,)) for epoch in range(1, 13)]
    for each in claiming:
        each.start()
    for each in claiming:
        each.join(30)
    assert FenceTable(engine).newest(NAME) == 12
    assert 12 not in refused


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_role_that_may_not_make_the_tables_is_told_the_sql(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS weak")
        connection.exec_driver_sql("CREATE ROLE weak LOGIN")
    weak = create_engine(engine.url.set(username="weak"))
    with pytest.raises(ConfigError, match=r"cannot be made here .*Run: CREATE TABLE .*spark_lease_fence "):
        claim(Holder(NAME, 5), weak)
    FenceTable(engine).raise_to(NAME, 1)
    with pytest.raises(FenceUnreachable, match="GRANT SELECT, INSERT, UPDATE, DELETE ON spark_lease_fence"):
        claim(Holder(NAME, 5), weak)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON spark_lease_fence, spark_lease_fence_run TO weak"
        )
    claim(Holder(NAME, 5), weak)
    weak.dispose()
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY weak; DROP ROLE weak")


# -- answers that are lost


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def door(request: pytest.FixtureRequest, database: str) -> Iterator[Proxy]:
    door = Proxy(database)
    yield door
    door.close()


@pytest.fixture
def through(door: Proxy, engine: Engine) -> Iterator[Engine]:
    """An engine to the same database, through the door."""
    engine = engine_for(door.url)
    yield engine
    engine.dispose()


@DOORS
def test_an_answer_to_commit_that_was_lost_is_found_by_its_run(engine: Engine, through: Engine, door: Proxy) -> None:
    lease = Holder(NAME, 5)
    claim(lease, through)
    door.cut_after(commit_of(engine))
    write(through, lease)
    assert (door.cuts, rows(engine)) == (1, 1)


@pytest.mark.postgres
@pytest.mark.parametrize(("database", "door"), [("postgresql", "postgresql")], indirect=True)
@pytest.mark.parametrize("words", [b"PREPARE", b"ROLLBACK"])
@pytest.mark.parametrize("is_done", [True, False])
def test_a_session_that_is_lost_as_it_is_made_ready_is_an_error_and_no_row(
    engine: Engine, through: Engine, door: Proxy, words: bytes, is_done: bool
) -> None:
    lease = Holder(NAME, 5)
    sql.claim_once(lease, through, lease.epoch)
    (door.cut_after if is_done else door.cut_before)(words)
    with pytest.raises(DBAPIError) as raised:
        write(through, lease)
    assert (raised.value.connection_invalidated, door.cuts, rows(engine)) == (True, 1, 0)
    write(through, lease)
    assert rows(engine) == 1


@DOORS
def test_a_commit_that_never_arrived_is_an_error_and_no_row(engine: Engine, through: Engine, door: Proxy) -> None:
    lease = Holder(NAME, 5)
    claim(lease, through)
    door.cut_before(commit_of(engine))
    with pytest.raises(DBAPIError):
        write(through, lease)
    assert (door.cuts, rows(engine), lease.lost) == (1, 0, [])
    write(through, lease)
    assert rows(engine) == 1


@DOORS
def test_a_commit_that_does_not_arrive_holds_up_no_claim(engine: Engine, through: Engine, door: Proxy) -> None:
    """As of a master that is frozen just before it sends it, on a machine whose end nothing tells of."""
    lease = Holder(NAME, 5)
    claim(lease, through)
    door.stall_at(commit_of(engine))
    failed = list[Exception]()

    def write_late() -> None:
        try:
            write(through, lease)
        except (DBAPIError, FenceUnreachable, Fenced) as error:
            failed.append(error)

    writing = threading.Thread(target=write_late)
    writing.start()
    until(lambda: door.mode == "stalled")
    claim(Holder(NAME, 6), engine)
    write(engine, Holder(NAME, 6))
    door.reopen()
    writing.join(20)
    assert (rows(engine, 5), rows(engine, 6), len(failed)) == (0, 1, 1)


@SERVERS
def test_a_session_is_given_back_as_it_was(engine: Engine) -> None:
    look = {
        "postgresql": "SELECT name, setting FROM pg_settings",
        "mysql": "SHOW SESSION VARIABLES LIKE '%%timeout'",
    }
    same = create_engine(engine.url, pool_size=1, max_overflow=0)

    def settings() -> list[object]:
        with same.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(look[same.dialect.name])]

    before = settings()
    write(same, Holder(NAME, 5))
    assert settings() == before
    claim(Holder(NAME, 6), engine)
    with pytest.raises(Fenced):
        write(same, Holder(NAME, 5))
    assert settings() == before
    same.dispose()


@DOORS
@pytest.mark.parametrize("lost", ["answer", "commit"])
def test_the_same_where_check_and_commit_are_two_messages(
    engine: Engine, through: Engine, door: Proxy, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_postgres = engine.dialect.name == "postgresql"
    words = b"COMMIT\0" if is_postgres else b"\x03COMMIT"  # alone in their message
    monkeypatch.setattr(sql, "ends_of", lambda _: sql_commit._Postgres() if is_postgres else sql_commit._MySql())
    lease = Holder(NAME, 5)
    claim(lease, through)
    if lost == "answer":
        door.cut_after(words)
        write(through, lease)
    else:
        door.cut_before(words)
        with pytest.raises(DBAPIError):
            write(through, lease)
    assert (door.cuts, rows(engine)) == (1, int(lost == "answer"))
    claim(Holder(NAME, 6), engine)
    with pytest.raises(Fenced):
        write(through, lease)


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_claim_leaves_no_timeout_in_the_session_of_a_pooler(driver: str) -> None:
    look = text("SELECT name, setting FROM pg_settings WHERE name IN ('lock_timeout', 'statement_timeout') ORDER BY 1")
    with own_postgres() as server, closing(Pooler(server.url, sessions=1)) as pooler:
        engine = create_engine(pooler.url.replace(":", f"+{driver}:", 1), poolclass=NullPool)
        with engine.connect() as connection:
            before = list(connection.execute(look))
        assert FenceTable(engine).raise_to(NAME, 5) == 5
        FenceTable(engine).forget(NAME)
        with engine.connect() as connection:
            assert list(connection.execute(look)) == before


@SERVERS
def test_of_a_write_by_a_master_that_held_for_days_it_is_never_said_that_nothing_was_written(engine: Engine) -> None:
    days = 3 * 24 * 3600 * 1000
    write(engine, Holder(NAME, 5))
    with engine.begin() as connection:
        (run,) = connection.execute(text("SELECT run FROM spark_lease_fence_run WHERE epoch = 5")).scalars()
    claim(Holder(NAME, 5 + days), engine)
    assert FenceTable(engine).was_committed(NAME, 5, run)
    claim(Holder(NAME, 6 + days), engine)
    with pytest.raises(FenceUnreachable, match="may be forgotten"):
        FenceTable(engine).was_committed(NAME, 5, run)
    assert not FenceTable(engine).was_committed(NAME, 5 + days, "another")


@DOORS
def test_a_claim_whose_answer_was_lost_is_made(engine: Engine, through: Engine, door: Proxy) -> None:
    FenceTable(engine).raise_to(NAME, 1)
    door.cut_after(b"INSERT INTO spark_lease_fence")
    claim(Holder(NAME, 5), through)
    assert (door.cuts, FenceTable(engine).newest(NAME)) == (1, 5)


@DOORS
def test_a_claim_on_a_server_that_hangs_ends_in_time(engine: Engine, through: Engine, door: Proxy) -> None:
    FenceTable(engine).raise_to(NAME, 1)
    door.stall_at(b"INSERT INTO spark_lease_fence")
    start = time.monotonic()
    with pytest.raises(FenceUnreachable):
        claim(Holder(NAME, 5), through, timeout=1.0)
    assert time.monotonic() - start < 3
    door.reopen()


@DOORS
def test_while_a_run_is_still_open_nobody_says_what_becomes_of_it(engine: Engine, door: Proxy) -> None:
    run = {"name": NAME, "run": "r", "epoch": 5}
    insert = text("INSERT INTO spark_lease_fence_run (name, run, epoch) VALUES (:name, :run, :epoch)")
    FenceTable(engine).raise_to(NAME, 5)
    with engine.begin() as twin:
        twin.execute(insert, run)
        with pytest.raises(FenceUnreachable):
            FenceTable(engine, timeout=0.3).was_committed(NAME, 5, "r")
    assert FenceTable(engine).was_committed(NAME, 5, "r")
    assert not FenceTable(engine).was_committed(NAME, 5, "never")


def test_runs_are_forgotten_once_nobody_can_ask_for_them(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs() -> int:
        with engine.connect() as connection:
            return int(connection.exec_driver_sql("SELECT count(*) FROM spark_lease_fence_run").scalar() or 0)

    monkeypatch.setattr(sql, "_AT_SOME", 4)
    monkeypatch.setattr(sql_claim, "_REMEMBERED", 3)  # epochs are milliseconds in earnest
    for _ in range(6):
        write(engine, Holder(NAME, 5))
    few = 0 if engine.dialect.name == "sqlite" else 2
    assert runs() == few
    claim(Holder(NAME, 6), engine)
    assert runs() == few  # the last master may still ask
    claim(Holder(NAME, 8), engine)
    assert runs() == few  # and the one before, who may be frozen
    claim(Holder(NAME, 9), engine)
    assert runs() == 0


# -- masters that are frozen


@pytest.mark.parametrize("isolation", LEVELS)
def test_no_row_of_an_older_epoch_lands_after_the_claim(engine: Engine, writer: Start, isolation: str) -> None:
    """Frozen at any moment of its transactions until the next master has claimed and written, then thawed."""
    master, chance = writer(engine, NAME, isolation=isolation), random.Random()
    timeout = 0.5 if engine.dialect.name == "sqlite" else 5.0
    for epoch in range(1, 2 * ROUNDS, 2):
        master.begin(epoch)
        time.sleep(chance.uniform(0, 0.02))  # any moment will do
        master.freeze()
        try:
            claim(Holder(NAME, epoch + 1), engine, timeout=timeout)
        except FenceUnreachable:
            assert engine.dialect.name == "sqlite"  # nothing ends a frozen writer of a file: no claim, no new master
            master.thaw()
            claim(Holder(NAME, epoch + 1), engine)
        landed = rows(engine, epoch)
        write(engine, Holder(NAME, epoch + 1))
        master.thaw()
        assert master.says().startswith("fenced")
        assert (rows(engine, epoch), rows(engine, epoch + 1)) == (landed, 1)


@pytest.mark.slow
def test_without_a_fence_the_rows_of_a_frozen_master_do_land(engine: Engine, writer: Start) -> None:
    """The control of the test above."""
    master, chance = writer(engine, NAME, isolation="READ COMMITTED", how="plain"), random.Random()
    master.begin(1)
    while True:
        time.sleep(chance.uniform(0, 0.02))  # any moment will do
        master.freeze()
        try:
            claim(Holder(NAME, 2), engine, timeout=0.2)
            break
        except FenceUnreachable:  # a file whose writer is frozen in the middle of a write: no claim
            master.thaw()
    landed = rows(engine, 1)
    master.thaw()
    assert until(lambda: rows(engine, 1) > landed)


@pytest.mark.parametrize("isolation", LEVELS)
def test_a_claim_against_many_busy_writers_ends_them_all(engine: Engine, writer: Start, isolation: str) -> None:
    threads = 1 if engine.dialect.name == "sqlite" else 4
    master = writer(engine, NAME, isolation=isolation, threads=threads)
    for epoch in (1, 3, 5):
        master.begin(epoch)
        claim(Holder(NAME, epoch + 1), engine)
        landed = rows(engine, epoch)
        assert master.says().startswith("fenced")
        assert rows(engine, epoch) == landed


@pytest.mark.postgres
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_fence_is_one_wherever_an_engine_has_its_tables(engine: Engine) -> None:
    """SQLAlchemy would look for the fence where it looks for the user's tables, and the check at COMMIT would not."""
    mapped = engine.execution_options(schema_translate_map={None: "tenant"})
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA tenant")
    try:
        claim(Holder(NAME, 5), engine)
        claim(Holder(NAME, 6), mapped)
        with pytest.raises(Fenced), fenced_sql(Holder(NAME, 5), engine) as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5)")
        with completing_sql(Holder(NAME, 6), mapped, Completion("monday", lambda *_: None, 9.0)) as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (6)")
        assert FenceTable(engine).done_under(NAME, "monday") == 6
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA tenant CASCADE")


# -- what would end the transaction before its check


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_that_rolled_back_by_itself_goes_on_with_nothing(engine: Engine) -> None:
    """It would be in autocommit from then on, and the row of an older epoch land after a claim."""
    lease = Holder(NAME, 5)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE once (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO once VALUES (1)")
    with pytest.raises(ConfigError, match="has ended inside the block"), fenced_sql(lease, engine) as connection:
        with contextlib.suppress(DBAPIError):
            connection.exec_driver_sql("INSERT OR ROLLBACK INTO once VALUES (1)")
        claim(Holder(NAME, 6), engine)
        connection.exec_driver_sql("INSERT INTO once VALUES (2)")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM once").scalar() == 1


@PSYCOPG2
@pytest.mark.parametrize(
    "ends", ["INSERT INTO once VALUES (1); COMMIT", "/*My app*/ COMMIT", "/**/ COMMIT", "; COMMIT"]
)
def test_a_commit_in_disguise_lets_nothing_follow_on_postgresql(engine: Engine, ends: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS once (id INTEGER)")
        connection.exec_driver_sql("DELETE FROM once")
    with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(ends)
        connection.exec_driver_sql("INSERT INTO once VALUES (2)")
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM once WHERE id = 2").scalar() == 0
        connection.exec_driver_sql("DROP TABLE once")


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "SET @@session.autocommit = 1",
        "SET LOCAL autocommit = 1",
        "SET @x = 1, autocommit = 1",
        "/*My app*/ COMMIT",
        "EXECUTE IMMEDIATE 'COMMIT'",
        "SET STATEMENT max_statement_time = 1 FOR COMMIT",
        "/*! COMMIT */",
        "/*!40101 COMMIT */",
        "/* a */ /*M!100400 COMMIT*/",
        "/*! */ COMMIT",
        "/*M! FLUSH TABLES */",
        "BACKUP STAGE START",
        "SET @x = ';', autocommit = 1",
        "PREPARE hidden FROM 'COMMIT'",
        "EXECUTE hidden",
        "LOAD INDEX INTO CACHE guarded",
        "STOP SLAVE",
        "START REPLICA",
        "CHANGE MASTER TO MASTER_HOST = 'x'",
        "SET DEFAULT ROLE NONE TO CURRENT_USER",
        "IMPORT TABLE FROM 'x'",
    ],
)
def test_what_ends_a_transaction_of_mariadb_is_refused(engine: Engine, statement: str) -> None:
    with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (5)"))
        connection.exec_driver_sql(statement)
    assert rows(engine) == 0


HIDDEN = ("IF 1 THEN COMMIT; END IF", "IF 1 THEN ROLLBACK; END IF", "IF 1 THEN COMMIT; START TRANSACTION; END IF")


@pytest.fixture
def pair(engine: Engine) -> Iterator[None]:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE pair (id INTEGER PRIMARY KEY, v INTEGER)")
        connection.exec_driver_sql("INSERT INTO pair VALUES (1, 0), (2, 0)")
    yield
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE pair")


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    "hidden",
    [
        *(pytest.param(each, marks=MARIADB_ALONE) for each in HIDDEN),
        *(f"CALL hide{number}()" for number, _ in enumerate(HIDDEN)),
    ],
)
def test_what_follows_a_hidden_commit_is_not_committed(engine: Engine, hidden: str) -> None:
    with engine.connect() as connection:
        for number, each in enumerate(HIDDEN):
            connection.exec_driver_sql(f"DROP PROCEDURE IF EXISTS hide{number}")
            connection.exec_driver_sql(f"CREATE PROCEDURE hide{number}() BEGIN {each}; END")
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(hidden)
        connection.exec_driver_sql("UPDATE pair SET v = 10 WHERE id = 2")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT max(v) FROM pair").scalar() == 0


@pytest.mark.mariadb
@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
@pytest.mark.usefixtures("pair")
def test_a_deadlock_of_mariadb_rolls_back_the_whole_block(engine: Engine) -> None:
    """Its victim's transaction is gone, and the statement that is tried again would be committed without the first."""
    other = engine.connect()
    other.exec_driver_sql("UPDATE pair SET v = v WHERE id = 2")
    more = ", ".join(f"({number}, 0)" for number in range(10, 200))
    other.exec_driver_sql(f"INSERT INTO pair VALUES {more}")  # the victim is who has written less
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql("UPDATE pair SET v = v - 10 WHERE id = 1")

        def wait_for_it() -> None:
            other.exec_driver_sql("UPDATE pair SET v = v WHERE id = 1")
            other.rollback()

        waits = threading.Thread(target=wait_for_it)
        waits.start()
        with pytest.raises(DBAPIError, match="Deadlock"):
            connection.exec_driver_sql("UPDATE pair SET v = v + 10 WHERE id = 2")
        waits.join()
        connection.exec_driver_sql("UPDATE pair SET v = v + 10 WHERE id = 2")
    other.close()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT sum(v) FROM pair").scalar() == 0


def test_the_block_cannot_be_put_into_autocommit(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")


def test_a_session_of_the_orm_joins_the_block(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection, Session(bind=connection) as session:
        session.execute(text("SELECT 1"))
        session.commit()


def test_a_run_that_is_looked_for_twice_is_not_taken_for_committed(engine: Engine) -> None:
    """The first look leaves a row, and its answer may be lost."""
    claim(Holder(NAME, 5), engine)
    fence_table = FenceTable(engine)
    assert [fence_table.was_committed(NAME, 5, "r" * 32) for _ in range(2)] == [False, False]


def test_an_asynchronous_engine_is_refused_in_a_sentence() -> None:
    asynchronous = create_async_engine("postgresql+psycopg_async://etl@127.0.0.1:9/db")
    why = {
        asynchronous: "AsyncEngine cannot be fenced: give what",
        asynchronous.sync_engine: "an asynchronous driver cannot be fenced",
    }
    for engine, problem in why.items():
        with pytest.raises(ConfigError, match=problem), fenced_sql(Holder(NAME, 5), engine):  # type: ignore[arg-type]
            pass
