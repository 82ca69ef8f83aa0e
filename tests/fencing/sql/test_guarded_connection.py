"""What is done inside a fenced transaction past SQLAlchemy, with its handle of the driver's connection."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg2.extensions
import psycopg2.extras
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from spark_lease.errors import ConfigError, Fenced
from spark_lease.fencing.sql import claim as sql_claim
from spark_lease.fencing.sql import psycopg2_driver as sql_psycopg2
from spark_lease.fencing.sql.claim import claim
from spark_lease.fencing.sql.transaction import fenced_sql
from tests.support.guarded import rows
from tests.support.holders import Holder

NAME = "100% nightly"
INSERT = "INSERT INTO guarded (epoch) VALUES (5)"
USED = [pytest.param(each, marks=pytest.mark.postgres) for each in ("postgresql", "postgresql, used before")]
PSYCOPG2 = pytest.mark.parametrize("database", USED, indirect=True)
POSTGRES = pytest.mark.parametrize(
    "database", [*USED, pytest.param("psycopg", marks=pytest.mark.postgres)], indirect=True
)


def write(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(INSERT)


def raw(connection: Connection, statement: str) -> None:
    cursor = connection.connection.cursor()
    cursor.execute(statement)
    cursor.close()


@pytest.mark.parametrize("ending", ["commit", "close"])
def test_the_drivers_connection_commits_nothing_and_is_not_given_back(engine: Engine, ending: str) -> None:
    with (
        pytest.raises(ConfigError, match=rf"no {ending}\(\) inside"),
        fenced_sql(Holder(NAME, 5), engine) as connection,
    ):
        raw(connection, INSERT)
        getattr(connection.connection, ending)()
    assert rows(engine) == 0
    write(engine)
    assert rows(engine) == 1


@pytest.mark.parametrize(
    ("database", "words"),
    [
        pytest.param("mariadb", ("begin",), marks=pytest.mark.mariadb),
        pytest.param("mariadb", ("autocommit", True), marks=pytest.mark.mariadb),
        pytest.param("sqlite", ("executescript", "SELECT 1")),
    ],
    indirect=["database"],
)
def test_the_drivers_connection_does_nothing_that_commits_first(engine: Engine, words: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"no begin\(\) inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        raw(connection, INSERT)
        getattr(connection.connection, words[0])(*words[1:])
    assert rows(engine) == 0


def test_what_the_drivers_connection_rolls_back_is_gone_and_nothing_may_follow(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(INSERT)
        connection.connection.rollback()
    assert rows(engine) == 0
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        raw(connection, INSERT)
        connection.connection.rollback()
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 0
    write(engine)
    assert rows(engine) == 1


def test_an_orm_session_that_failed_raises_what_it_failed_for(engine: Engine) -> None:
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), engine) as connection:
        with Session(connection) as session, session.begin():
            session.execute(text(INSERT))
            raise KeyError
    with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), engine) as connection:
        with pytest.raises(KeyError), Session(connection) as session, session.begin():
            session.execute(text(INSERT))
            raise KeyError
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 0


def test_the_transaction_of_sqlalchemy_is_not_committed_by_hand(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"no commit\(\) inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(INSERT)
        transaction = connection.get_transaction()
        assert transaction is not None
        transaction.commit()
    assert rows(engine) == 0


@POSTGRES
@pytest.mark.parametrize(
    "hidden",
    [
        "SELECT 1; COMMIT AND CHAIN",
        "/* a /* b */ c */ COMMIT AND CHAIN",
        "SELECT 1; COMMIT; BEGIN",
        "SELECT 1; ROLLBACK; BEGIN",
    ],
)
def test_a_transaction_in_place_of_the_blocks_is_no_success(engine: Engine, hidden: str) -> None:
    """What a hidden COMMIT has written cannot be taken back; what follows it is."""
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql("SELECT 1")
        connection.exec_driver_sql(hidden)
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 0
    write(engine)
    assert rows(engine) == 1


def test_engines_of_other_options_claim_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    claimed: list[str] = []
    monkeypatch.setattr(
        "spark_lease.fencing.sql.transaction.claim",
        lambda lease, engine: claimed.append(sql_claim.claim(lease, engine)),
    )
    for _ in range(3):
        write(engine.execution_options(logging_token="x"))
    assert (len(claimed), rows(engine)) == (1, 3)


@PSYCOPG2
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("where", [sql_psycopg2.Psycopg2, sql_psycopg2.GuardedConnection])
def test_an_interrupt_as_the_block_is_left_leaves_nothing_open(
    engine: Engine, fails: bool, where: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    one = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=5)
    write(one)

    def interrupt() -> None:
        with (
            monkeypatch.context() as patch,
            pytest.raises(KeyboardInterrupt),
            fenced_sql(Holder(NAME, 5), one) as inside,
        ):
            inside.execute(text(INSERT))
            patch.setattr(where, "close", interrupted)
            if fails:
                raise KeyError

    interrupt()
    gc.collect()
    with one.begin() as connection:
        connection.execute(text("INSERT INTO guarded (epoch) VALUES (1)"))
    assert (rows(engine, 5), rows(engine, 1)) == (1 if fails else 2, 1)
    write(one)
    one.dispose()


@PSYCOPG2
@pytest.mark.parametrize("fails", [True, False])
def test_a_pools_one_connection_is_restored_whoever_had_it_too(engine: Engine, fails: bool) -> None:
    one = create_engine(engine.url, poolclass=StaticPool)
    write(one)
    with contextlib.suppress(KeyError), fenced_sql(Holder(NAME, 5), one) as connection:
        connection.exec_driver_sql(INSERT)
        with one.connect() as other:
            other.exec_driver_sql("SELECT 1")
        if fails:
            raise KeyError
    with one.begin() as connection:
        connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (1)")
    write(one)
    assert (rows(engine, 1), rows(engine, 5)) == (1, 2 if fails else 3)
    one.dispose()


@PSYCOPG2
def test_who_listens_to_the_pool_finds_a_connection_as_it_was(engine: Engine) -> None:
    one = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=5)

    @event.listens_for(one, "checkin")
    @event.listens_for(one, "reset")
    def reset(driver: Any, *_: object) -> None:
        driver.rollback()
        driver.cursor().execute("RESET ALL")
        driver.commit()

    pids = set()
    for _ in range(3):
        with fenced_sql(Holder(NAME, 5), one) as connection:
            pids.add(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar())
            connection.exec_driver_sql(INSERT)
    assert (rows(engine), len(pids)) == (3, 1)
    one.dispose()


@PSYCOPG2
def test_a_pool_is_listened_to_once_also_after_dispose(engine: Engine) -> None:
    one = create_engine(engine.url)
    for _ in range(3):
        write(one)
        assert list(one.pool.dispatch.checkin).count(sql_psycopg2._catch) == 1  # type: ignore[attr-defined]
        one.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_does_not_take_another_transaction_for_the_blocks(engine: Engine) -> None:
    with pytest.raises(Fenced), fenced_sql(Holder(NAME, 5), engine) as connection:
        raw(connection, "COMMIT")
        claim(Holder(NAME, 6), engine)
        raw(connection, "BEGIN")
        raw(connection, INSERT)
    assert rows(engine) == 0


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("is_on", [True, False])
def test_sqlites_newer_ways_to_begin_are_refused(engine: Engine, is_on: bool) -> None:
    class Newer(sqlite3.Connection):
        autocommit = is_on  # as it is from Python 3.12 on

    newer = create_engine(engine.url, connect_args={"factory": Newer})
    with pytest.raises(ConfigError, match="sqlite3's `autocommit`"):
        write(newer)
    assert rows(engine) == 0
    newer.dispose()


@PSYCOPG2
def test_a_cursor_class_that_is_asked_for_is_looked_at_too(engine: Engine) -> None:
    with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), engine) as connection:
        with connection.connection.driver_connection as driver:  # type: ignore[union-attr]
            assert driver is not None
            connection.connection.cursor(cursor_factory=psycopg2.extras.RealDictCursor).execute(INSERT)
    assert rows(engine) == 0
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        cursor: Any = connection.connection.cursor(None, psycopg2.extras.RealDictCursor)
        cursor.execute("SELECT 1 AS one")
        assert cursor.fetchall() == [{"one": 1}]
        cursor.execute(INSERT)
        with pytest.raises(ConfigError):
            cursor.execute("COMMIT")
    assert rows(engine) == 1


@PSYCOPG2
def test_a_connection_that_chooses_its_cursors_itself_is_refused(engine: Engine) -> None:
    class Own(psycopg2.extensions.connection):
        def cursor(self, *words: Any, **more: Any) -> Any:
            return super().cursor(*words, **more | {"cursor_factory": psycopg2.extras.DictCursor})

    own = create_engine(engine.url, connect_args={"connection_factory": Own})
    with pytest.raises(ConfigError, match=r"cursors of the class DictCursor cannot be checked"):
        write(own)
    with own.begin() as connection:
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 1
    own.dispose()


@PSYCOPG2
def test_a_cursor_class_of_the_users_is_given_only_what_is_the_users(engine: Engine) -> None:
    seen: list[object] = []

    class Commented(psycopg2.extensions.cursor):
        def execute(self, query: Any, vars: Any = None) -> Any:
            seen.append(query)
            return super().execute("/* app */ " + query, vars or ())

    other = create_engine(engine.url, connect_args={"cursor_factory": Commented})
    write(other)
    seen.clear()
    write(other)
    assert (rows(engine), seen) == (2, [INSERT])
    other.dispose()


@PSYCOPG2
def test_transactions_that_are_read_only_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="READ ONLY"):
        write(engine.execution_options(postgresql_readonly=True))
    write(engine)


@PSYCOPG2
def test_the_first_block_of_a_session_has_seen_nothing_yet(engine: Engine) -> None:
    fresh = create_engine(engine.url)
    for _ in range(2):
        with fenced_sql(Holder(NAME, 5), fresh) as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "serializable"
    fresh.dispose()
    repeating = create_engine(engine.url, isolation_level="REPEATABLE READ")
    for number in (1, 2):
        with fenced_sql(Holder(NAME, 5), repeating) as connection:
            write(engine)
            assert connection.exec_driver_sql("SELECT count(*) FROM guarded").scalar() == number
    repeating.dispose()


@PSYCOPG2
def test_an_exception_goes_before_a_connection_that_was_lost(engine: Engine) -> None:
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), engine) as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
        with engine.begin() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises((psycopg2.Error, DBAPIError, InvalidRequestError)):
            raw(connection, "SELECT 1")
        raise KeyError
    write(engine)


@pytest.mark.parametrize(
    "database", ["sqlite", *USED, pytest.param("psycopg", marks=pytest.mark.postgres)], indirect=True
)
def test_who_listens_is_told_of_a_commit(engine: Engine) -> None:
    heard: list[str] = []
    listeners: dict[str, Callable[[Connection], None]] = {
        each: lambda _, each=each: heard.append(each)  # type: ignore[misc]
        for each in ("commit", "rollback")
    }
    write(engine)
    for what, listener in listeners.items():
        event.listen(engine, what, listener)
    write(engine)
    assert heard == ["commit"]
    heard.clear()
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(INSERT)
        raise KeyError
    assert heard == ["rollback"]
    for what, listener in listeners.items():
        event.remove(engine, what, listener)


def test_another_claim_is_seen_by_all_who_go_past_sqlalchemy(engine: Engine) -> None:
    write(engine)
    claim(Holder(NAME, 6), engine)
    with pytest.raises(Exception, match="claimed under epoch 6"), fenced_sql(Holder(NAME, 5), engine) as connection:
        raw(connection, INSERT)
    assert rows(engine) == 1
