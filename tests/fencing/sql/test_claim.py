"""BEGIN and the settings travel with the first statement of a block, where psycopg2 is the driver."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import psycopg2.errors
import psycopg2.extensions
import psycopg2.extras
import psycopg2.sql
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, InternalError, ProgrammingError
from sqlalchemy.pool import NullPool, StaticPool

from spark_lease.errors import ConfigError, Fenced
from spark_lease.fencing.sql import cursors as sql_cursors
from spark_lease.fencing.sql import transaction as sql
from spark_lease.fencing.sql.claim import claim
from spark_lease.fencing.sql.session import application_of, setting_of
from spark_lease.fencing.sql.transaction import fenced_sql
from tests.support.guarded import rows
from tests.support.holders import Holder

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.parametrize("database", ["postgresql", "postgresql, used before"], indirect=True),
]
NAME = '100% o\'Neil; "x"\\'
INSERT = "INSERT INTO guarded (epoch) VALUES (5)"
INTRANS = psycopg2.extensions.TRANSACTION_STATUS_INTRANS


def _raw(connection: Connection) -> Any:
    return connection.connection.cursor()


FIRST: list[Callable[[Connection], object]] = [
    lambda c: c.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), {"epoch": 5}),
    lambda c: c.execute(text("INSERT INTO guarded (epoch) VALUES (:epoch)"), [{"epoch": 5}]),
    lambda c: c.exec_driver_sql(f"  \n{INSERT} ;\n"),
    lambda c: c.exec_driver_sql(f"-- a comment; and another\n{INSERT} -- with a tail"),
    lambda c: c.exec_driver_sql(f"{INSERT} -- a tail"),
    lambda c: c.exec_driver_sql(f"SELECT 1; {INSERT}"),
    lambda c: c.exec_driver_sql("INSERT INTO guarded (epoch) SELECT 5 WHERE 'a%%' LIKE 'a\\%%' AND 'a;b' <> ''"),
    lambda c: c.exec_driver_sql("INSERT INTO guarded (epoch) SELECT 5 WHERE %s = '%%;%%'", ("%;%",)),
    lambda c: c.exec_driver_sql("WITH x AS (SELECT 5 AS y) INSERT INTO guarded (epoch) SELECT y FROM x"),
    lambda c: _raw(c).execute("INSERT INTO guarded (epoch) SELECT 5 WHERE '%' <> ''"),
    lambda c: _raw(c).execute(INSERT.encode()),
    lambda c: _raw(c).execute(query=INSERT, vars=None),
    lambda c: _raw(c).execute(psycopg2.sql.SQL(INSERT)),
    lambda c: _raw(c).executemany("INSERT INTO guarded (epoch) VALUES (%s)", [(5,)]),
    lambda c: _raw(c).copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO("5\n")),
    lambda c: c.connection.cursor(cursor_factory=psycopg2.extras.DictCursor).execute(INSERT),
]


@pytest.mark.parametrize("number", range(len(FIRST)))
def test_whatever_comes_first_is_in_the_transaction_and_under_the_epoch(engine: Engine, number: int) -> None:
    first, lease = FIRST[number], Holder(NAME, 5)
    with fenced_sql(lease, engine) as connection:
        first(connection)
        assert (rows(engine), _status(connection)) == (0, INTRANS)
        told = [connection.exec_driver_sql(f"SHOW {each}").scalar() for each in (setting_of(NAME), "application_name")]
        assert told == ["5", application_of(NAME, 5)]
    assert rows(engine) == 1
    with pytest.raises(Fenced), fenced_sql(lease, engine) as connection:
        first(connection)
        with contextlib.suppress(DBAPIError):  # it ends the session of the older epoch
            claim(Holder(NAME, 6), engine)
    assert rows(engine) == 1
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT current_setting('{setting_of(NAME)}', true)").scalar() in ("", None)


def _status(connection: Connection) -> int:
    driver: Any = connection.connection.driver_connection
    return int(driver.get_transaction_status())


def test_what_the_first_statement_answers_is_answered(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        assert connection.exec_driver_sql("SELECT 1 AS one, 2 AS two").mappings().all() == [{"one": 1, "two": 2}]
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        assert connection.execute(text("INSERT INTO guarded (epoch) SELECT 5 FROM generate_series(1, 3)")).rowcount == 3
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        assert connection.execute(text("UPDATE guarded SET epoch = 6 RETURNING epoch")).scalars().all() == [6] * 3


def test_a_session_that_has_been_used_begins_nothing_before_the_first_statement(engine: Engine) -> None:
    """So that a master which computes first, or stands still there, holds back no VACUUM and nobody's claim."""
    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    looking = create_engine(engine.url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    states = text("SELECT state FROM pg_stat_activity WHERE pid = :pid")
    with fenced_sql(Holder(NAME, 5), one) as connection:
        pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
    for _ in range(2):
        with fenced_sql(Holder(NAME, 5), one) as connection, looking.connect() as other:
            assert other.execute(states, {"pid": pid}).scalar() == "idle"
            connection.exec_driver_sql("SELECT 1")
            assert other.execute(states, {"pid": pid}).scalar() == "idle in transaction"
    one.dispose()


def test_a_block_in_which_nothing_happens_is_checked_too(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    for _ in range(2):
        with fenced_sql(lease, engine):
            pass
    with pytest.raises(Fenced), fenced_sql(lease, engine):
        claim(Holder(NAME, 6), engine)


@pytest.mark.parametrize(
    "words", ["INSERT INTO INTO guarded", "SELECT 'no end", "INSERT INTO nothing_there VALUES (1)"]
)
def test_a_first_statement_that_fails_fails_the_transaction(engine: Engine, words: str) -> None:
    aborted = "current transaction is aborted"
    with pytest.raises(InternalError, match=aborted), fenced_sql(Holder(NAME, 5), engine) as connection:
        with pytest.raises(ProgrammingError) as failed:
            connection.exec_driver_sql(words)
        assert words in str(failed.value)
        assert "BEGIN" not in str(failed.value)
        with pytest.raises(InternalError, match=aborted):
            connection.exec_driver_sql(INSERT)
        with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
            _raw(connection).execute(INSERT)
    assert rows(engine) == 0


def test_a_connection_that_is_lost_at_the_first_statement_writes_nothing(engine: Engine) -> None:
    lease = Holder(NAME, 5)
    for _ in range(2):
        with pytest.raises(ConfigError, match="lost inside"), fenced_sql(lease, engine) as connection:
            with pytest.raises(DBAPIError):
                connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
            connection.exec_driver_sql(INSERT)
    with fenced_sql(lease, engine) as connection:
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 1


def test_what_listens_finds_the_transaction_begun(engine: Engine) -> None:
    """It has the driver's own connection, and may write with a cursor of another class, and commit."""
    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    _write(one)

    def write_itself(_: object, cursor: Any, *__: object) -> None:
        cursor.connection.cursor(cursor_factory=psycopg2.extras.DictCursor).execute(INSERT)
        cursor.connection.commit()

    event.listen(one, "before_cursor_execute", write_itself)
    event.listen(one, "begin", lambda connection: connection.exec_driver_sql("SET LOCAL work_mem = '5MB'"))
    with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), one) as connection:
        assert connection.exec_driver_sql("SHOW work_mem").scalar() == "5MB"
        connection.exec_driver_sql(INSERT)
        raise KeyError
    assert rows(engine) == 1
    one.dispose()


def test_a_connection_that_was_kept_from_before_has_no_transaction_of_its_own(engine: Engine) -> None:
    one = create_engine(engine.url, pool_size=1, max_overflow=0)
    _write(one)
    with one.connect() as connection:
        kept: Any = connection.connection.driver_connection
    with pytest.raises(ConfigError, match="transaction of its own"), fenced_sql(Holder(NAME, 5), one) as connection:
        with kept:
            connection.exec_driver_sql(INSERT)
    with pytest.raises(ConfigError, match="transaction of its own"), fenced_sql(Holder(NAME, 5), one) as connection:
        kept.cursor(cursor_factory=psycopg2.extras.DictCursor).execute(INSERT)
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 1
    _write(one)
    assert rows(engine) == 2
    one.dispose()


class Auditing(psycopg2.extensions.cursor):
    """Writes a row more with each, and takes what psycopg2 does not."""

    def execute(self, query: Any, vars: Any = None) -> None:
        words = query.decode() if isinstance(query, bytes) else query
        if words.startswith("INSERT INTO guarded"):
            super().execute("INSERT INTO guarded (epoch) VALUES (77)")
        super().execute(words.replace("?", "%s"), vars)


def test_a_cursor_class_of_the_users_does_its_own_in_the_transaction(engine: Engine) -> None:
    own = create_engine(engine.url, connect_args={"cursor_factory": Auditing}, pool_size=1, max_overflow=0)
    for number in (1, 2):
        with fenced_sql(Holder(NAME, 5), own) as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (?)", (5,))
        with pytest.raises(KeyError), fenced_sql(Holder(NAME, 5), own) as connection:
            connection.exec_driver_sql(INSERT)
            raise KeyError
        assert (rows(engine, 5), rows(engine, 77)) == (number, number)
    own.dispose()


def test_a_value_that_ends_the_transaction_is_run_once(engine: Engine) -> None:
    _write(engine)
    hidden = psycopg2.extensions.AsIs("1); COMMIT; SELECT (1/0")
    with pytest.raises(ConfigError, match="ended inside"), fenced_sql(Holder(NAME, 5), engine) as connection:
        with pytest.raises(psycopg2.errors.DivisionByZero):
            _raw_unbegun(connection).execute("INSERT INTO guarded (epoch) VALUES (%s)", (hidden,))
        connection.exec_driver_sql(INSERT)
    assert (rows(engine, 1), rows(engine)) == (1, 2)


def test_a_connection_that_is_gone_before_the_first_statement_is_forgotten(engine: Engine) -> None:
    for how in (Connection.invalidate, lambda c: c.begin_nested()):
        _write(engine)
        kill = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises((ConfigError, DBAPIError)), fenced_sql(Holder(NAME, 5), engine) as connection:
            with create_engine(engine.url, poolclass=NullPool).connect() as other:
                other.execute(kill)
            how(connection)
        assert not sql_cursors.unbegun


def test_a_block_in_a_block_on_the_same_connection_is_refused_and_the_outer_goes_on(engine: Engine) -> None:
    one = create_engine(engine.url, poolclass=StaticPool)
    _write(one)
    with fenced_sql(Holder(NAME, 5), one) as connection:
        with pytest.raises(ConfigError), fenced_sql(Holder(NAME, 5), one):
            pass
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 2
    one.dispose()


def test_much_white_space_costs_no_time(database: str) -> None:
    begun = time.monotonic()
    assert not sql_cursors._ONE.match(b"INSERT INTO x VALUES ('" + b" " * 200_000 + b";')")
    assert time.monotonic() - begun < 5  # it took minutes, by the square


def _write(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.exec_driver_sql(INSERT)


def _raw_unbegun(connection: Connection) -> Any:
    """A cursor of the block's, and nothing begun by asking for it."""
    driver: Any = connection._dbapi_connection
    return driver.cursor()


def test_a_refused_first_statement_leaves_the_block_as_it_was(engine: Engine) -> None:
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        with pytest.raises(ConfigError, match="begins and ends"):
            connection.exec_driver_sql("COMMIT")
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 1


def test_a_cursor_that_the_server_keeps_is_refused_and_writes_nothing(engine: Engine) -> None:
    with pytest.raises(DBAPIError, match="outside of transactions"), fenced_sql(Holder(NAME, 5), engine) as connection:
        connection.execution_options(stream_results=True).execute(text("SELECT 1"))
    with fenced_sql(Holder(NAME, 5), engine) as connection:
        kept = connection.connection.driver_connection.cursor("kept", withhold=True)  # type: ignore[union-attr]
        kept.execute("SELECT 7")
        assert kept.fetchall() == [(7,)]
        connection.exec_driver_sql(INSERT)
    assert rows(engine) == 1


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "READ UNCOMMITTED"])
def test_the_level_is_the_engines_from_the_first_statement_on(engine: Engine, level: str) -> None:
    other = create_engine(engine.url, isolation_level=level, poolclass=NullPool if level == "SERIALIZABLE" else None)
    for _ in range(2):
        with fenced_sql(Holder(NAME, 5), other) as connection:
            found = connection.exec_driver_sql("SELECT current_setting('transaction_isolation')").scalar()
            assert str(found).upper() == level
        with other.connect() as connection:
            assert str(connection.exec_driver_sql("SHOW transaction_isolation").scalar()).upper() == level
    other.dispose()


def test_the_names_of_transactions_differ_in_a_process_and_its_children(engine: Engine) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        names = [sql.new_run(), *pool.map(_new_runs, range(8), chunksize=1), sql.new_run()]
    assert len(set(names)) == 10
    assert all(len(bytes.fromhex(name)) == 16 for name in names)


def _new_runs(_: int) -> str:
    return sql.new_run()
