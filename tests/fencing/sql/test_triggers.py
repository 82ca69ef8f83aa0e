"""Fenced tables: PostgreSQL refuses whoever does not carry the newest epoch, whatever program writes."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.errors import ConfigError, FenceUnreachable
from spark_lease.fencing.sql import fenced_list
from spark_lease.fencing.sql import triggers as postgres
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.session import application_of, session_environment
from spark_lease.fencing.sql.stale_sessions import end_holders
from spark_lease.fencing.sql.transaction import fenced_sql
from spark_lease.fencing.sql.trigger_sql import OLDER, UNLEASED, statements_of
from tests.services.postgres import PSQL, own_postgres
from tests.support.drivers import until
from tests.support.guarded import rows
from tests.support.holders import Holder
from tests.support.zombie import Zombie

NAME = "nightly"
ROUNDS = 6
pytestmark = pytest.mark.postgres


@pytest.fixture
def database(pg_url: str) -> str:
    return pg_url


@pytest.fixture
def fenced(engine: Engine) -> Engine:
    """An engine to a database where `guarded` is a fenced table, claimed under epoch 5."""
    postgres.add(engine, "guarded", NAME)
    claim(Holder(NAME, 5), engine)
    return engine


Session = Callable[..., Any]


@pytest.fixture
def session(pg_url: str) -> Iterator[Session]:
    """A plain psycopg2 session, as the environment of a command under some epoch makes it."""
    opened: list[Any] = []

    def connect(epoch: int | None = None, name: str = NAME, **options: Any) -> Any:
        told = session_environment(name, epoch, {}) if epoch is not None else {}
        options |= {"options": told["PGOPTIONS"], "application_name": told["PGAPPNAME"]} if told else {}
        opened.append(psycopg2.connect(pg_url, **options))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def run(connection: Any, words: str) -> Any:
    with connection, connection.cursor() as cursor:
        cursor.execute(words)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def refusal(connection: Any, words: str) -> str:
    """The SQLSTATE with which it is refused."""
    with pytest.raises(psycopg2.Error) as raised:
        run(connection, words)
    return str(raised.value.pgcode)


# -- who may write


WRITES = [
    "INSERT INTO guarded (epoch) VALUES (1)",
    "INSERT INTO guarded (epoch) SELECT 1 WHERE false",
    "UPDATE guarded SET epoch = 1",
    "DELETE FROM guarded",
    "TRUNCATE guarded",
    "INSERT INTO guarded (id, epoch) OVERRIDING SYSTEM VALUE VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET epoch = 2",
    "MERGE INTO guarded AS g USING (SELECT 1 AS i) AS s ON s.i = g.id WHEN NOT MATCHED THEN INSERT (epoch) VALUES (1)",
]


@pytest.mark.parametrize("words", WRITES)
def test_only_the_newest_epoch_writes(fenced: Engine, session: Session, words: str) -> None:
    assert refusal(session(), words) == UNLEASED
    assert refusal(session(4), words) == OLDER
    assert refusal(session(6), words) == OLDER  # it has not claimed: an older master would not be fenced
    run(session(5), words)


def test_everybody_reads(fenced: Engine, session: Session) -> None:
    assert run(session(), "SELECT * FROM guarded") == []


def test_a_refusal_says_which_lease_and_epochs(fenced: Engine, session: Session) -> None:
    claim(Holder(NAME, 6), fenced)
    said = "fenced, public.guarded was claimed under epoch 6 of the lease nightly, and mine is 5"
    with pytest.raises(psycopg2.Error, match=f"{said}\nHINT:  Another master has claimed the database since"):
        run(session(5), WRITES[0])
    with pytest.raises(
        psycopg2.Error, match="and mine is 7\nHINT:  This master has not claimed this database: set fence_url"
    ):
        run(session(7), WRITES[0])
    with pytest.raises(psycopg2.Error, match="only under the lease nightly, and this session carries no epoch"):
        run(session(), WRITES[0])


def test_who_carries_no_epoch_may_write_where_that_is_allowed(fenced: Engine, session: Session) -> None:
    postgres.add(fenced, "guarded", NAME, allow_unleased=True)
    run(session(), WRITES[0])
    assert refusal(session(4), WRITES[0]) == OLDER


def test_a_session_may_work_under_two_leases(fenced: Engine, session: Session) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE other (a INT)")
    try:
        postgres.add(fenced, "other", "hourly")
        claim(Holder("hourly", 3), fenced)
        both = session_environment("hourly", 3, session_environment(NAME, 5, {}))["PGOPTIONS"]
        run(session(options=both), "INSERT INTO guarded (epoch) VALUES (5); INSERT INTO other VALUES (3)")
        assert refusal(session(5), "INSERT INTO other VALUES (5)") == UNLEASED
        assert refusal(session(3, "hourly"), WRITES[0]) == UNLEASED
    finally:
        with fenced.begin() as connection:
            connection.exec_driver_sql("DROP TABLE other")


def test_a_fenced_transaction_may_write_to_a_fenced_table(fenced: Engine, session: Session) -> None:
    with fenced_sql(Holder(NAME, 5), fenced) as connection:
        connection.exec_driver_sql(WRITES[0])
    with pytest.raises(DBAPIError), fenced.begin() as connection:  # the epoch ends with the transaction
        connection.exec_driver_sql(WRITES[0])
    assert rows(fenced) == 1


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_from_before_the_claim_is_refused_as_well(fenced: Engine, session: Session, isolation: str) -> None:
    old = session(options=session_environment(NAME, 5, {})["PGOPTIONS"])  # nobody can find and end this session
    old.set_session(isolation_level=isolation)
    cursor = old.cursor()
    cursor.execute("SELECT count(*) FROM guarded")
    claim(Holder(NAME, 6), fenced)
    with pytest.raises(psycopg2.Error) as raised:
        cursor.execute(WRITES[0])
    assert raised.value.pgcode == (OLDER if isolation == "READ COMMITTED" else "40001")
    assert rows(fenced) == 0


# -- what holds of the rest of PostgreSQL: the README's table


@pytest.fixture
def tables(fenced: Engine) -> Iterator[Callable[[str], None]]:
    """Run statements; what they make is dropped with the schema `more`."""
    with fenced.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA more")

    def make(words: str) -> None:
        with fenced.begin() as connection:
            connection.exec_driver_sql(words)

    yield make
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP SCHEMA more CASCADE")


PARTED = """
CREATE TABLE more.parted (epoch INT) PARTITION BY RANGE (epoch);
CREATE TABLE more.low PARTITION OF more.parted FOR VALUES FROM (0) TO (10);
"""


def test_partitions_that_are_there_are_fenced_with_their_table(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables(PARTED)
    postgres.add(fenced, "more.parted", NAME)
    for table in ("parted", "low"):
        assert refusal(session(4), f"INSERT INTO more.{table} VALUES (1)") == OLDER
        run(session(5), f"INSERT INTO more.{table} VALUES (1)")
    tables("CREATE TABLE more.high PARTITION OF more.parted FOR VALUES FROM (10) TO (20)")
    assert refusal(session(4), "INSERT INTO more.parted VALUES (11)") == OLDER
    assert run(session(4), "INSERT INTO more.high VALUES (11)") == 1  # does not hold: add the table again
    postgres.add(fenced, "more.parted", NAME)
    assert refusal(session(4), "INSERT INTO more.high VALUES (11)") == OLDER
    assert [each.name for each in postgres.fenced_tables(fenced)][:3] == ["more.high", "more.low", "more.parted"]
    postgres.drop(fenced, "more.parted")
    run(session(), "INSERT INTO more.low VALUES (1)")


def test_a_cascading_foreign_key_and_a_cascading_truncate_are_refused(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables(
        "CREATE TABLE more.parent (id INT PRIMARY KEY); INSERT INTO more.parent VALUES (1);"
        "CREATE TABLE more.child (id INT REFERENCES more.parent ON DELETE CASCADE ON UPDATE CASCADE);"
        "INSERT INTO more.child VALUES (1)"
    )
    postgres.add(fenced, "more.child", NAME)
    for words in ("DELETE FROM more.parent", "UPDATE more.parent SET id = 2", "TRUNCATE more.parent CASCADE"):
        assert refusal(session(4), words) == OLDER
    run(session(5), "DELETE FROM more.parent")


def test_a_view_and_copy_are_refused(fenced: Engine, session: Session, tables: Callable[[str], None]) -> None:
    tables("CREATE VIEW more.seen AS SELECT epoch FROM public.guarded")
    assert refusal(session(4), "INSERT INTO more.seen VALUES (1)") == OLDER
    with pytest.raises(psycopg2.Error, match="fenced"), session(4).cursor() as cursor:
        cursor.copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO("4\n"))
    with session(5) as connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO("5\n"))
    assert rows(fenced, 5) == 1


def test_session_replication_role_does_not_pass_by_it(fenced: Engine, session: Session) -> None:
    loader = session(4)
    run(loader, "SET session_replication_role = replica")
    assert refusal(loader, WRITES[0]) == OLDER


def test_the_apply_worker_of_logical_replication_passes_by_it() -> None:
    """Does not hold, and is meant so by PostgreSQL: it applies rows, not statements. Fence the table at its source."""
    with own_postgres(wal_level="logical") as server:
        url = server.url
        source = create_engine(usable_url(configure(url=url)), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        target = create_engine(source.url.set(database="target"), isolation_level="AUTOCOMMIT", poolclass=NullPool)
        with source.connect() as connection:
            connection.exec_driver_sql("CREATE DATABASE target")
            connection.exec_driver_sql("CREATE TABLE guarded (id INT PRIMARY KEY)")
            connection.exec_driver_sql("CREATE PUBLICATION p FOR TABLE guarded")
            connection.exec_driver_sql("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        with target.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE guarded (id INT PRIMARY KEY)")
            postgres.add(target, "guarded", NAME)
            where = f"host=127.0.0.1 port={source.url.port} user=postgres dbname=postgres"
            connection.exec_driver_sql(
                f"CREATE SUBSCRIPTION s CONNECTION '{where}' PUBLICATION p "
                "WITH (create_slot = false, copy_data = false)"
            )
            with source.connect() as writing:
                writing.exec_driver_sql("INSERT INTO guarded VALUES (1)")
            until(lambda: rows(target) == 1)
            connection.exec_driver_sql("ALTER SUBSCRIPTION s DISABLE")
            connection.exec_driver_sql("ALTER SUBSCRIPTION s SET (slot_name = NONE)")
            connection.exec_driver_sql("DROP SUBSCRIPTION s")
        with source.connect() as connection:
            until(lambda: not connection.exec_driver_sql("SELECT active FROM pg_replication_slots").scalar())
            connection.exec_driver_sql("SELECT pg_drop_replication_slot('s')")


def test_who_owns_the_table_may_pass_by_it(fenced: Engine, session: Session) -> None:
    """Does not hold: this is a fence against masters that are late, not against owners that mean it."""
    owner = session(4)
    run(owner, "ALTER TABLE guarded DISABLE TRIGGER spark_lease")
    assert run(owner, WRITES[0]) == 1


# -- adding, dropping


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ("nothing", "there is no nothing"),
        ("more.seen", "a view: fence the tables behind it"),
        ("a.b.c", "is no name of a table"),
        ('x"y', "is no name of a table"),
        ("guarded; DROP TABLE guarded", "is no name of a table"),
        ("guarded;DROP", "there is no guarded;DROP"),
    ],
)
def test_what_cannot_be_fenced_is_one_sentence_and_changes_nothing(
    fenced: Engine, tables: Callable[[str], None], table: str, says: str
) -> None:
    tables("CREATE VIEW more.seen AS SELECT 1")
    before = postgres.fenced_tables(fenced)
    with pytest.raises(ConfigError, match=says):
        postgres.add(fenced, table, NAME)
    assert postgres.fenced_tables(fenced) == before


def test_a_role_that_may_not_is_one_sentence_and_changes_nothing(engine: Engine) -> None:
    weak = role(engine, "weak")
    with pytest.raises(ConfigError, match=r"does not own guarded: .* --print-sql"):
        postgres.add(weak, "guarded", NAME)
    assert postgres.fenced_tables(engine) == []
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE weaks (a INT)")
        connection.exec_driver_sql("ALTER TABLE weaks OWNER TO weak")
    with pytest.raises(ConfigError, match=r"this role may not: permission denied for schema public.* --print-sql"):
        postgres.add(weak, "weaks", NAME)
    assert postgres.fenced_tables(engine) == []
    unrole(engine, "weak")


def test_code_of_another_role_is_given_nobodys_rights(engine: Engine) -> None:
    """With CREATE on the schema it can make a function there, which the trigger would run as the role that writes."""
    make = "CREATE FUNCTION spark_lease_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    view = "CREATE VIEW spark_lease_fence AS SELECT 'nightly'::text AS name, 5::bigint AS epoch"
    for trap in (make, view):
        with engine.begin() as connection:
            for statement in (
                *("DROP TABLE IF EXISTS spark_lease_fence", "DROP FUNCTION IF EXISTS spark_lease_check() CASCADE"),
                *("DROP ROLE IF EXISTS mallory", "CREATE ROLE mallory", "GRANT CREATE ON SCHEMA public TO mallory"),
                *("SET LOCAL ROLE mallory", trap, "RESET ROLE"),
            ):
                connection.exec_driver_sql(statement)
        with pytest.raises(ConfigError, match="belongs to the role mallory, whose code would run with the rights"):
            postgres.add(engine, "guarded", NAME)
        assert postgres.fenced_tables(engine) == []
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY mallory")
            connection.exec_driver_sql("DROP ROLE mallory")


# Made by a role that may CREATE in a schema of the search path. Another role that calls one by mistake runs its code.
STOLEN = """
CREATE FUNCTION public.{name}({left}, {right}) RETURNS {result} LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.caught VALUES (current_user); RETURN NULL; END $$"""
FUNCTIONS = [
    ("format", "text", "regclass", "text"),
    ("eq", "oid", "regclass", "boolean"),
    ("eq", "name", "text", "boolean"),
]
OPERATORS = [
    "(LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.eq)",
    "(LEFTARG = name, RIGHTARG = text, FUNCTION = public.eq)",
]


@pytest.fixture
def planted(engine: Engine) -> Iterator[Callable[[str], None]]:
    """Runs statements as the role mallory, who may CREATE in public."""

    def plant(*statements: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL ROLE mallory")
            for statement in statements:
                connection.exec_driver_sql(statement)

    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE mallory")
        connection.exec_driver_sql("GRANT CREATE ON SCHEMA public TO mallory")
    yield plant
    unrole(engine, "mallory")


@pytest.mark.parametrize("how", ["added", "printed"])
def test_a_function_in_the_search_path_is_not_taken_for_the_databases_own(
    engine: Engine, session: Session, planted: Callable[..., None], how: str
) -> None:
    planted("CREATE TABLE public.caught (who text)", "GRANT ALL ON public.caught TO PUBLIC")
    for name, left, right, result in FUNCTIONS:
        planted(STOLEN.format(name=name, left=left, right=right, result=result))
    for operator in OPERATORS:
        planted(f"CREATE OPERATOR public.= {operator}")
    planted("CREATE TABLE public.parted (epoch int) PARTITION BY RANGE (epoch)")
    planted("CREATE TABLE public.low PARTITION OF public.parted FOR VALUES FROM (0) TO (5)")
    if how == "added":
        postgres.add(engine, "parted", NAME)
    else:
        run(session(), "; ".join(statements_of("parted", NAME)))
    assert run(session(), "SELECT who FROM public.caught") == []
    assert [each.name for each in postgres.fenced_tables(engine)] == ["public.low", "public.parted"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE FUNCTION public.spark_lease_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TABLE public.spark_lease_fence_run (name text, run text, epoch bigint)",
        "CREATE TABLE public.spark_lease_fence_done (name text)",
        "CREATE TABLE public.spark_lease_fence_table (schema_name text PRIMARY KEY, table_name text, name text, "
        "allow_unleased boolean)",
    ],
)
def test_what_another_role_has_put_in_place_of_a_part_of_the_fence_is_refused(
    engine: Engine, session: Session, planted: Callable[..., None], statement: str
) -> None:
    planted(statement)
    with pytest.raises(ConfigError, match="belongs to the role mallory, whose code would run with the rights"):
        postgres.add(engine, "guarded", NAME)
    with pytest.raises(psycopg2.Error, match="belongs to mallory, whose code would run"):
        run(session(), "; ".join(statements_of("guarded", NAME)))
    assert postgres.fenced_tables(engine) == []


def test_a_fence_in_the_schema_of_another_role_is_refused(engine: Engine, planted: Callable[..., None]) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA evil AUTHORIZATION mallory")
    first = create_engine(engine.url, connect_args={"options": "-c search_path=evil,public"}, poolclass=NullPool)
    with pytest.raises(ConfigError, match='"evil" belongs to the role mallory'):
        postgres.add(first, "guarded", NAME)


@pytest.fixture
def mallory(fenced: Engine) -> Iterator[Engine]:
    """A role that may do what any role may that has a schema of its own."""
    owner = create_engine(fenced.url, poolclass=NullPool)
    with owner.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE mallory LOGIN")
        connection.exec_driver_sql("CREATE SCHEMA evil AUTHORIZATION mallory")
    yield create_engine(fenced.url.set(username="mallory"), poolclass=NullPool)
    unrole(owner, "mallory")


TRAP = (
    "CREATE FUNCTION evil.spark_lease_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    "CREATE TABLE evil.trap (a INT)",
    f"CREATE TRIGGER spark_lease BEFORE INSERT ON evil.trap EXECUTE FUNCTION evil.spark_lease_check('{NAME}')",
)


def test_a_trigger_of_another_role_stops_no_claim(
    fenced: Engine, mallory: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would stop every job of the lease, and the advice would be to look into its schema first."""
    with mallory.begin() as connection:
        for statement in TRAP:
            connection.exec_driver_sql(statement)
    claim(Holder(NAME, 6), fenced)
    assert FenceTable(fenced).newest(NAME) == 6
    assert "evil.trap is fenced by another fence" in caplog.text and "its owner mallory is neither" in caplog.text
    assert not any("search_path" in each for each in caplog.messages)


def test_code_of_another_role_on_a_table_that_counts_is_no_advice_to_search_there(
    fenced: Engine, mallory: Engine, tables: Callable[[str], None]
) -> None:
    with mallory.begin() as connection:
        connection.exec_driver_sql(TRAP[0])
        connection.exec_driver_sql("GRANT ALL ON SCHEMA evil TO public")
    tables("CREATE TABLE more.mine (a INT)")
    with fenced.begin() as connection:
        connection.exec_driver_sql(TRAP[2].replace("evil.trap", "more.mine"))
    with pytest.raises(ConfigError, match=r"more\.mine: fenced by code of a role that is not trusted") as caught:
        claim(Holder(NAME, 6), fenced)
    assert "search_path" not in str(caught.value)
    tables("DROP TABLE more.mine")


def test_a_function_of_an_older_version_is_replaced(fenced: Engine, session: Session) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("ALTER FUNCTION spark_lease_check() RESET ALL")
    assert any("CREATE OR REPLACE FUNCTION" in each for each in postgres.add(fenced, "guarded", NAME))
    assert not any("CREATE OR REPLACE FUNCTION" in each for each in postgres.add(fenced, "guarded", NAME))


def test_names_are_quoted(fenced: Engine, session: Session, tables: Callable[[str], None]) -> None:
    odd = 'more."it\'s 100% ""odd"""'
    tables(f'CREATE TABLE {odd.replace("%", "%%")} (a INT); CREATE TABLE more."Guarded" (a INT)')
    postgres.drop(fenced, "PUBLIC.Guarded")
    for table in (odd, 'more."Guarded"', "PUBLIC.Guarded"):
        postgres.add(fenced, table, 'it\'s \\ "odd" 100%')
        assert refusal(session(4), f"DELETE FROM {table}") == UNLEASED
        assert refusal(session(4, 'it\'s \\ "odd" 100%'), f"DELETE FROM {table}") == OLDER
    assert {each.lease for each in postgres.fenced_tables(fenced)} == {'it\'s \\ "odd" 100%'}


def test_a_table_stands_under_one_lease(fenced: Engine) -> None:
    with pytest.raises(ConfigError, match="guarded is written under the lease nightly: drop it there first"):
        postgres.add(fenced, "guarded", "hourly")
    assert postgres.drop(fenced, "guarded")
    assert not postgres.drop(fenced, "guarded")
    postgres.add(fenced, "guarded", "hourly")
    assert postgres.fenced_tables(fenced, "hourly") == [postgres.TableFence("public.guarded", "hourly")]


def test_the_printed_sql_is_what_a_dba_can_run(engine: Engine, session: Session) -> None:
    run(session(), "; ".join(statements_of("guarded", NAME)))
    claim(Holder(NAME, 5), engine)
    assert refusal(session(4), WRITES[0]) == OLDER
    run(session(5), WRITES[0])
    postgres.add(engine, "guarded", NAME)
    assert postgres.fenced_tables(engine) == [postgres.TableFence("public.guarded", NAME)]


def test_the_printed_sql_fences_partitions_as_well(
    engine: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    name = "100% of $fence$ 'nightly'"
    tables(
        "CREATE TABLE more.by_day (day int) PARTITION BY RANGE (day);"
        'CREATE TABLE more."First %%s" PARTITION OF more.by_day FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (day);'
        'CREATE TABLE more.below PARTITION OF more."First %%s" FOR VALUES FROM (0) TO (5)'
    )
    run(session(), "; ".join(statements_of("More.By_Day", name)))
    found = postgres.fenced_tables(engine, name)
    assert [each.name for each in found] == ['more."First %s"', "more.below", "more.by_day"]
    for table in ("by_day", '"First %s"', "below"):
        assert refusal(session(), f"INSERT INTO more.{table} VALUES (1)") == UNLEASED


def test_the_printed_sql_lists_a_name_as_postgresql_cuts_it(
    engine: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    """Else it would never be found again once it was dropped and made anew."""
    long = "daily_revenue_by_carrier_and_origin_airport_and_destination_airport"
    tables(f"CREATE TABLE more.{long} (day int)")
    run(session(), "; ".join(statements_of(f"more.{long}", NAME)))
    tables(f"DROP TABLE more.{long}; CREATE TABLE more.{long} (day int)")
    claim(Holder(NAME, 6), engine)
    assert refusal(session(), f"INSERT INTO more.{long} VALUES (1)") == UNLEASED
    tables(f"DROP TABLE more.{long}")
    assert postgres.drop(engine, f"more.{long}", NAME), "it is on the list by the name that was cut"


def test_a_name_without_quotes_is_the_one_that_postgresql_takes_it_for(
    engine: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables('CREATE TABLE more.FLÜGE (day int); CREATE TABLE more."flüge" (day int)')
    postgres.add(engine, "more.FLÜGE", NAME)
    assert refusal(session(), "INSERT INTO more.FLÜGE VALUES (1)") == UNLEASED
    run(session(), 'INSERT INTO more."flüge" VALUES (1)')


def test_names_of_leases_are_read_in_the_databases_encoding(fenced: Engine) -> None:
    with fenced.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        how = "TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'"
        connection.exec_driver_sql(f"CREATE DATABASE western {how}")
        western = create_engine(fenced.url.set(database="western"))
        try:
            with western.begin() as session:
                session.exec_driver_sql("CREATE TABLE guarded (id int)")
            long = '"' + "ü" * 40 + '"'  # 40 bytes there, and more than a name's 63 in UTF-8
            with western.begin() as session:
                session.exec_driver_sql(f"CREATE TABLE {long} (id int)")
            for table in ("guarded", "guarded", long):
                postgres.add(western, table, "käse")
            assert {each.lease for each in postgres.fenced_tables(western)} == {"käse"}
            for table in ("guarded", long):
                postgres.drop(western, table, "käse")
            assert postgres.fenced_tables(western) == []
        finally:
            western.dispose()
            connection.exec_driver_sql("DROP DATABASE western WITH (FORCE)")


# -- tables that are dropped and made again


@pytest.fixture
def weak(fenced: Engine) -> Iterator[Engine]:
    """Of a role that has no rights."""
    engine = role(fenced, "weak")
    yield engine
    engine.dispose()
    unrole(fenced, "weak")


def remake(engine: Engine, *, table: str = "guarded", owner: str = "") -> None:
    """As Spark's JDBC writer does it with mode("overwrite")."""
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql(f"CREATE TABLE {table} (id INT, epoch BIGINT)")
        if owner:
            connection.exec_driver_sql(f"ALTER TABLE {table} OWNER TO {owner}")


def states(engine: Engine, lease: str = "") -> dict[str, bool]:
    """Of those that are there: whether they are fenced."""
    found = postgres.fenced_tables(engine, lease)
    return {each.name: each.state == "fenced" for each in found if each.state != "dropped"}


@pytest.mark.parametrize("how", ["added", "printed"])
def test_a_table_that_was_made_again_is_fenced_again_by_the_next_claim(
    engine: Engine, session: Session, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    if how == "added":
        postgres.add(engine, "guarded", NAME, allow_unleased=True)
    else:
        run(session(), "; ".join(statements_of("guarded", NAME, allow_unleased=True)))
    claim(Holder(NAME, 5), engine)
    remake(engine)
    assert states(engine) == states(engine, NAME) == {"public.guarded": False}
    assert states(engine, "another") == {}
    run(session(4), WRITES[0])  # does not hold until then
    claim(Holder(NAME, 6), engine)
    assert states(engine) == {"public.guarded": True}
    assert refusal(session(5), WRITES[0]) == OLDER
    run(session(6), WRITES[0])
    run(session(), WRITES[0])
    (said,) = [each for each in caplog.messages if "fenced again" in each]
    assert said.startswith("nightly: public.guarded, or a partition of it, was made without its fence")


def test_a_transaction_of_an_older_epoch_in_a_table_that_was_made_again_is_ended(
    fenced: Engine, session: Session
) -> None:
    remake(fenced)
    zombie = session(5)
    zombie.cursor().execute(WRITES[0])  # and keeps the lock that the trigger needs
    claim(Holder(NAME, 6), fenced)
    with pytest.raises(psycopg2.Error):
        zombie.commit()
    assert refusal(session(5), WRITES[0]) == OLDER
    assert run(session(), "SELECT count(*) FROM guarded") == [(0,)]


def test_a_lock_that_ends_is_waited_for(fenced: Engine, session: Session) -> None:
    """As long as an autovacuum takes to give way, which is a second."""
    remake(fenced)
    other = session()
    other.cursor().execute(WRITES[0])
    ending = threading.Timer(0.5, other.commit)
    ending.start()
    claim(Holder(NAME, 6), fenced)
    ending.join()
    assert states(fenced) == {"public.guarded": True}


def test_a_lock_that_does_not_end_leaves_the_claim_and_the_other_tables(
    fenced: Engine, session: Session, tables: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("x", "y"):
        tables(f"CREATE TABLE more.{each} (epoch BIGINT)")
        postgres.add(fenced, f"more.{each}", NAME)
        tables(f"DROP TABLE more.{each}; CREATE TABLE more.{each} (epoch BIGINT)")
    other = session()
    other.cursor().execute("INSERT INTO more.x VALUES (1)")  # under no epoch: no claim may end it
    claim(Holder(NAME, 6), fenced)
    assert FenceTable(fenced).newest(NAME) == 6
    assert "more.x, or a partition of it, is without its fence" in caplog.text and "lock timeout" in caplog.text
    assert states(fenced) == {"more.x": False, "more.y": True, "public.guarded": True}
    claim(Holder(NAME, 6), fenced)  # as another worker of the same master does
    assert caplog.text.count("is without its fence") == 1
    other.rollback()


def test_a_new_partition_is_fenced_by_the_next_claim_and_no_other_is_touched(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables(
        "CREATE TABLE more.parted (epoch int) PARTITION BY RANGE (epoch);"
        "CREATE TABLE more.low PARTITION OF more.parted FOR VALUES FROM (0) TO (5)"
    )
    postgres.add(fenced, "more.parted", NAME)
    triggers = "SELECT oid FROM pg_trigger WHERE tgname = 'spark_lease' ORDER BY 1"
    before = run(session(), triggers)
    tables("CREATE TABLE more.high PARTITION OF more.parted FOR VALUES FROM (5) TO (9)")
    run(session(4), "INSERT INTO more.high VALUES (5)")  # does not hold until then
    claim(Holder(NAME, 6), fenced)
    assert refusal(session(5), "INSERT INTO more.high VALUES (5)") == OLDER
    assert run(session(), triggers)[: len(before)] == before


def test_a_table_that_took_the_name_of_a_fenced_one_is_fenced(fenced: Engine, session: Session) -> None:
    with fenced.begin() as connection:  # a swap, as loaders do it
        connection.exec_driver_sql("CREATE TABLE fresh (epoch BIGINT)")
        connection.exec_driver_sql("ALTER TABLE guarded RENAME TO old")
        connection.exec_driver_sql("ALTER TABLE fresh RENAME TO guarded")
    try:
        claim(Holder(NAME, 6), fenced)
        assert refusal(session(5), WRITES[0]) == refusal(session(5), "DELETE FROM old") == OLDER
    finally:
        with fenced.begin() as connection:
            connection.exec_driver_sql("DROP TABLE old")


def test_what_is_not_to_be_fenced_any_more_is_not(fenced: Engine, session: Session) -> None:
    remake(fenced)
    assert postgres.drop(fenced, "guarded")
    claim(Holder(NAME, 6), fenced)
    run(session(4), WRITES[0])
    postgres.add(fenced, "guarded", NAME)
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP TABLE guarded")
    assert [each.state for each in postgres.fenced_tables(fenced)] == ["dropped"]
    assert postgres.drop(fenced, "guarded")
    assert postgres.fenced_tables(fenced) == []
    with fenced.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE guarded (epoch BIGINT)")
    claim(Holder(NAME, 7), fenced)
    run(session(4), WRITES[0])


def test_who_may_not_fence_it_again_is_told_whose_table_it_is(
    fenced: Engine, weak: Engine, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weak")
        connection.exec_driver_sql("REVOKE ALL ON spark_lease_fence_table FROM weak")
    remake(fenced)
    with caplog.at_level("INFO"):
        claim(Holder(NAME, 6), weak)
    assert 'GRANT SELECT ON "public".spark_lease_fence_table' in caplog.text
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT ON spark_lease_fence_table TO weak")
    claim(Holder(NAME, 7), weak)
    assert "public.guarded, or a partition of it, is without its fence: table: this role does not own" in caplog.text
    assert states(fenced) == {"public.guarded": False}
    remake(fenced, owner="weak")
    claim(Holder(NAME, 8), weak)
    assert states(fenced) == {"public.guarded": True}


def test_who_may_not_drop_a_fence_changes_nothing(fenced: Engine, weak: Engine, session: Session) -> None:
    """A trigger that was dropped would be made again, and a table that was forgotten would not."""
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, DELETE ON spark_lease_fence_table TO weak")
    with pytest.raises(ConfigError, match="this role does not own guarded"):
        postgres.drop(weak, "guarded")
    with fenced.begin() as connection:
        connection.exec_driver_sql("REVOKE DELETE ON spark_lease_fence_table FROM weak")
        connection.exec_driver_sql("ALTER TABLE guarded OWNER TO weak")
    with pytest.raises(ConfigError, match="GRANT SELECT, DELETE ON"):
        postgres.drop(weak, "guarded")
    assert states(fenced) == {"public.guarded": True}
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP TABLE guarded")
    with pytest.raises(ConfigError, match="GRANT SELECT, DELETE ON"):
        postgres.drop(weak, "guarded")


def test_a_fence_that_another_search_path_finds_is_dropped_for_good(
    pg_url: str, engine: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables('CREATE SCHEMA "100%%"')
    theirs = create_engine(engine.url, connect_args={"options": '-csearch_path="100%%",public'}, poolclass=NullPool)
    try:
        postgres.add(theirs, "public.guarded", NAME)
        assert postgres.drop(engine, "guarded")
        claim(Holder(NAME, 6), theirs)
        assert states(theirs) == {}
        postgres.add(theirs, "public.guarded", NAME)
        remake(engine)
        claim(Holder(NAME, 7), theirs)
        assert states(theirs) == {"public.guarded": True}
    finally:
        tables('DROP SCHEMA "100%%" CASCADE')


def test_what_cannot_be_fenced_again_keeps_nothing_else_from_it(
    fenced: Engine, weak: Engine, session: Session, tables: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    tables(
        "CREATE TABLE more.parted (epoch int) PARTITION BY RANGE (epoch); CREATE TABLE more.parent (epoch int);"
        "CREATE TABLE more.seen (epoch int)"
    )
    for each in ("parted", "parent", "seen"):
        postgres.add(fenced, f"more.{each}", NAME)
    tables(
        "CREATE TABLE more.low PARTITION OF more.parted FOR VALUES FROM (0) TO (5);"
        "CREATE TABLE more.high PARTITION OF more.parted FOR VALUES FROM (5) TO (9);"
        "ALTER TABLE more.parted OWNER TO weak; ALTER TABLE more.low OWNER TO weak;"
        "DROP TABLE more.seen; CREATE VIEW more.seen AS SELECT 1;"
        "GRANT USAGE ON SCHEMA more, public TO weak; GRANT ALL ON ALL TABLES IN SCHEMA public TO weak"
    )
    other = session()
    run(other, "CREATE TEMP TABLE mine () INHERITS (more.parent)")
    claim(Holder(NAME, 6), weak)
    assert "more.seen, or a partition of it, is without its fence: table: more.seen is a view" in caplog.text
    assert "more.parted, or a partition of it, is without its fence: a partition is" in caplog.text
    assert "more.parent" not in caplog.text
    assert refusal(session(5), "INSERT INTO more.low VALUES (1)") == OLDER
    claim(Holder(NAME, 7), fenced)
    assert refusal(session(5), "INSERT INTO more.high VALUES (5)") == OLDER
    other.close()
    tables("DROP VIEW more.seen; DROP TABLE more.parted")


def test_the_other_driver_does_the_same(fenced: Engine) -> None:
    newer = create_engine(fenced.url.set(drivername="postgresql+psycopg"), poolclass=NullPool)
    postgres.add(newer, "guarded", NAME)
    remake(newer)
    claim(Holder(NAME, 6), newer)
    assert states(newer) == {"public.guarded": True}
    assert postgres.drop(newer, "guarded")
    assert states(newer) == {}


def test_a_fence_of_an_older_version_keeps_no_list(fenced: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP TABLE spark_lease_fence_table")
    remake(fenced)
    claim(Holder(NAME, 6), fenced)
    assert caplog.messages == []
    postgres.add(fenced, "guarded", NAME)
    remake(fenced)
    claim(Holder(NAME, 7), fenced)
    assert states(fenced) == {"public.guarded": True}


LIST = "public.spark_lease_fence_table"
PLANTED = {
    "view": f"CREATE VIEW {LIST} AS SELECT 'public'::text AS schema_name, public.steal('guarded') AS table_name, "
    "'nightly'::text AS name, false AS allow_unleased",
    "index": f"CREATE TABLE {LIST} (schema_name text, table_name text, name text, allow_unleased bool);"
    f"CREATE INDEX ON {LIST} (name) WHERE public.steal(name) = 'a'",
}


# A function that is said to have no effect may call one that has.
STEALS = [
    "GRANT ALL ON public.caught TO PUBLIC",
    "CREATE FUNCTION public.effect() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('public.caught') $$",
    "CREATE FUNCTION public.steal(a text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS "
    "$$ BEGIN PERFORM public.effect(); RETURN a; END $$",
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_list_that_another_role_has_planted_runs_no_code_of_it(
    fenced: Engine, session: Session, planted: Callable[..., None], plant: str
) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP TABLE spark_lease_fence_table")
    planted(
        "CREATE SEQUENCE public.caught",
        *STEALS,
        PLANTED[plant],
        "GRANT ALL ON public.spark_lease_fence_table TO PUBLIC",
        "SELECT setval('public.caught', 1, false)",
    )
    remake(fenced)
    claim(Holder(NAME, 6), fenced)
    assert states(fenced) == {}
    for refused in (lambda: postgres.add(fenced, "guarded", NAME), lambda: postgres.drop(fenced, "guarded")):
        with pytest.raises(ConfigError, match=r"belongs to the role mallory|has to be an ordinary table"):
            refused()
    assert run(session(), "SELECT is_called FROM public.caught") == [(False,)]


def test_locked_tables_leave_the_others_their_time(
    fenced: Engine, session: Session, tables: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"t{number}" for number in range(4)]
    for each in names:
        tables(f"CREATE TABLE more.{each} (epoch BIGINT)")
        postgres.add(fenced, f"more.{each}", NAME)
        tables(f"DROP TABLE more.{each}; CREATE TABLE more.{each} (epoch BIGINT)")
    other = session()
    for each in names[:3]:
        other.cursor().execute(f"INSERT INTO more.{each} VALUES (1)")
    start = time.monotonic()
    claim(Holder(NAME, 6), fenced, timeout=1.5)
    assert time.monotonic() - start < 4
    assert states(fenced)["more.t3"]
    assert all(f"more.{each}, or a partition of it, is without its fence" in caplog.text for each in names[:3])
    other.rollback()


def test_a_drop_is_not_undone_by_a_claim_that_is_under_way(
    fenced: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    remake(fenced)
    is_listed = fenced_list.is_listed
    dropping: list[threading.Thread] = []
    waited: list[bool] = []

    def listed(*arguments: Any) -> bool:  # just before the claim commits the trigger
        dropping.append(threading.Thread(target=postgres.drop, args=(fenced, "guarded")))
        dropping[0].start()
        until(lambda: run(session(), "SELECT count(*) FROM pg_locks WHERE NOT granted") == [(1,)])
        waited.append(True)
        return is_listed(*arguments)

    monkeypatch.setattr(fenced_list, "is_listed", listed)
    claim(Holder(NAME, 6), fenced)
    dropping[0].join()
    assert waited and states(fenced) == {}
    run(session(), WRITES[0])


def test_a_drop_takes_no_word_of_a_fence_that_another_role_has_planted(
    fenced: Engine, session: Session, planted: Callable[..., None]
) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA theirs AUTHORIZATION mallory")
    try:
        planted(
            "CREATE TABLE theirs.spark_lease_fence (name text, epoch bigint)",
            "CREATE TABLE theirs.spark_lease_fence_table (schema_name text, table_name text, name text, "
            "allow_unleased bool)",
            "CREATE SEQUENCE theirs.caught",
            *(each.replace("public.", "theirs.") for each in STEALS),
            "CREATE INDEX ON theirs.spark_lease_fence_table (name) WHERE theirs.steal(name) = 'a'",
            "CREATE FUNCTION theirs.spark_lease_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TABLE theirs.t (a int)",
            "CREATE TRIGGER spark_lease BEFORE INSERT ON theirs.t FOR EACH STATEMENT "
            "EXECUTE FUNCTION theirs.spark_lease_check('nightly', 'x', 'y')",
            "SELECT setval('theirs.caught', 1, false)",
        )
        with pytest.raises(ConfigError, match="has to be an ordinary table"):
            postgres.drop(fenced, "theirs.t")
        assert run(session(), "SELECT is_called FROM theirs.caught") == [(False,)]
    finally:
        with fenced.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA theirs CASCADE")


def test_a_trigger_of_any_role_that_says_nothing_stops_no_claim(fenced: Engine, weak: Engine, session: Session) -> None:
    with weak.connect() as theirs:
        theirs.exec_driver_sql("CREATE TEMP TABLE z (id int)")
        theirs.exec_driver_sql(
            "CREATE FUNCTION pg_temp.spark_lease_check() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
        )
        theirs.exec_driver_sql(
            "CREATE TRIGGER spark_lease BEFORE INSERT ON z FOR EACH STATEMENT "
            "EXECUTE FUNCTION pg_temp.spark_lease_check()"
        )
        theirs.commit()
        assert FenceTable(fenced).has_fence("another")
        claim(Holder(NAME, 6), fenced)
        assert states(fenced) == {"public.guarded": True}


def test_a_role_that_may_not_make_the_function_anew_uses_the_older_one(
    fenced: Engine, weak: Engine, session: Session
) -> None:
    remake(fenced, owner="weak")
    with fenced.begin() as connection:
        older = connection.exec_driver_sql("SELECT pg_get_functiondef('spark_lease_check'::regproc)").scalar()
        connection.exec_driver_sql(str(older).replace("DECLARE", "-- older\nDECLARE").replace("%", "%%"))
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weak")
    claim(Holder(NAME, 6), weak)
    assert states(fenced) == {"public.guarded": True}


@pytest.mark.parametrize("how", ["DISABLE", "ENABLE REPLICA"])
def test_a_trigger_that_is_switched_off_is_said_to_be(fenced: Engine, how: str) -> None:
    with fenced.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE guarded {how} TRIGGER spark_lease")
    assert [each.state for each in postgres.fenced_tables(fenced)] == ["disabled"]


def test_a_trigger_that_a_restore_has_switched_on_again_is_no_fence_until_the_next_claim(fenced: Engine) -> None:
    """As `pg_restore --disable-triggers` does: from then on it is passed by with session_replication_role = replica."""
    with fenced.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE guarded DISABLE TRIGGER ALL")
        connection.exec_driver_sql("ALTER TABLE guarded ENABLE TRIGGER ALL")
    assert [each.state for each in postgres.fenced_tables(fenced)] == ["lost"]
    claim(Holder(NAME, 6), fenced)
    assert [each.state for each in postgres.fenced_tables(fenced)] == ["fenced"]
    with fenced.begin() as connection:
        enabled = connection.exec_driver_sql("SELECT tgenabled::text FROM pg_trigger WHERE tgname = 'spark_lease'")
        assert enabled.scalars().all() == ["A"]


# -- the claim and the sessions of older epochs


def frozen_in_a_transaction(session: Session, epoch: int = 5) -> Any:
    """A session that has passed the check and neither commits nor rolls back."""
    zombie = session(epoch)
    zombie.cursor().execute(WRITES[0])
    return zombie


def test_a_claim_ends_a_session_that_is_open_under_an_older_epoch(fenced: Engine, session: Session) -> None:
    zombie = frozen_in_a_transaction(session)
    start = time.monotonic()
    claim(Holder(NAME, 6), fenced)
    assert time.monotonic() - start < 1
    with pytest.raises(psycopg2.OperationalError):
        zombie.commit()
    assert rows(fenced) == 0


def test_without_the_fence_its_row_lands(engine: Engine, session: Session) -> None:
    """The control of the test above."""
    zombie = frozen_in_a_transaction(session)
    FenceTable(engine).raise_to(NAME, 5)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE spark_lease_fence SET epoch = 6")
    zombie.commit()
    assert rows(engine) == 1


def test_only_older_epochs_of_the_same_lease_are_ended(fenced: Engine, session: Session) -> None:
    kept = [session(7), session(6), session(1, "hourly"), session(application_name="spark_lease/5/nonsense/x")]
    older = [session(5), session(4)]
    claim(Holder(NAME, 6), fenced)
    for each in kept:
        run(each, "SELECT 1")
    for each in older:
        with pytest.raises(psycopg2.OperationalError):
            each.cursor().execute("SELECT 1")


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_a_session_under_two_leases_is_ended_by_a_claim_of_either(
    fenced: Engine, session: Session, driver: str
) -> None:
    """Its application_name is the inner one's."""
    outer = session_environment(NAME, 5, {})
    inner = session_environment("inner", 3, outer)
    zombie = session(options=inner["PGOPTIONS"], application_name=inner["PGAPPNAME"])
    zombie.cursor().execute(WRITES[0])
    bystander = session(3, name="inner")
    bystander.cursor().execute("SELECT 1")
    start = time.monotonic()
    claim(Holder(NAME, 6), create_engine(fenced.url.set(drivername=f"postgresql+{driver}"), poolclass=NullPool))
    assert time.monotonic() - start < 2
    with pytest.raises(psycopg2.OperationalError):
        zombie.commit()
    assert (rows(fenced), run(bystander, "SELECT 2")) == (0, [(2,)])


def test_a_claim_that_was_frozen_ends_no_writer_of_a_newer_master(fenced: Engine, session: Session) -> None:
    claim(Holder(NAME, 7), fenced)
    newer = session(options=session_environment(NAME, 7, {})["PGOPTIONS"], application_name="etl")
    newer.cursor().execute(WRITES[0])
    late = create_engine(fenced.url, poolclass=NullPool)
    with late.connect() as connection, late.connect() as waiting:
        waiting.exec_driver_sql("SET lock_timeout = '200ms'")
        end_holders(connection, waiting, NAME, 6)
    newer.commit()


@pytest.mark.parametrize("application", ["", "etl"])
def test_a_former_writer_is_ended_whatever_it_calls_itself(fenced: Engine, session: Session, application: str) -> None:
    former = session(options=session_environment(NAME, 5, {})["PGOPTIONS"], application_name=application)
    former.cursor().execute(WRITES[0])
    claim(Holder(NAME, 6), fenced)
    with pytest.raises(psycopg2.Error):
        former.commit()


def test_the_session_of_another_role_is_ended_with_a_grant(fenced: Engine, session: Session) -> None:
    weak = role(fenced, "weak")
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO weak")
    role(fenced, "other")
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO other")
    for user, advice in {
        "other": "GRANT pg_signal_backend TO CURRENT_USER",
        "postgres": r"have a superuser run SELECT pg_terminate_backend\(\d+\)",
    }.items():
        zombie = session(5, user=user)
        zombie.cursor().execute(WRITES[0])
        with pytest.raises(FenceUnreachable, match=f"the role {user}, and this one may not end it: {advice}"):
            claim(Holder(NAME, 6), weak, timeout=0.5)
        zombie.close()
    claim(Holder(NAME, 6), weak)
    unrole(fenced, "weak")
    unrole(fenced, "other")


@pytest.mark.parametrize("printed", [False, True])
def test_what_a_foreign_key_cascades_is_written_in_the_name_of_the_owner(engine: Engine, printed: bool) -> None:
    """So is what a SECURITY DEFINER function of the owner's writes."""
    owner, job = role(engine, "app_owner"), role(engine, "job")
    tables = "fence_parent", "fence_child"
    with engine.begin() as connection:
        connection.exec_driver_sql("GRANT USAGE, CREATE ON SCHEMA public TO app_owner")
    with owner.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE fence_parent (id int PRIMARY KEY)")
        refers = "REFERENCES fence_parent ON DELETE CASCADE"
        connection.exec_driver_sql(f"CREATE TABLE fence_child (id int {refers})")
        connection.exec_driver_sql("GRANT ALL ON fence_parent TO job")
        connection.exec_driver_sql("INSERT INTO fence_parent VALUES (1)")
        connection.exec_driver_sql("INSERT INTO fence_child VALUES (1)")
    if printed:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for each in statements_of("fence_child", NAME):
                connection.exec_driver_sql(each.replace("%", "%%"))
    else:
        assert any("TO app_owner" in each for each in postgres.add(engine, "fence_child", NAME))
    claim(Holder(NAME, 5), engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO job")
        connection.exec_driver_sql("GRANT pg_signal_backend TO job")
    with fenced_sql(Holder(NAME, 5), job) as connection:
        connection.exec_driver_sql("DELETE FROM fence_parent WHERE id = 1")
    with engine.begin() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM fence_child").scalar() == 0
    postgres.drop(engine, "fence_child")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TABLE {', '.join(tables)}")
        connection.exec_driver_sql("REVOKE ALL ON SCHEMA public FROM app_owner")
    for each in (owner, job):
        each.dispose()
    unrole(engine, "app_owner")
    unrole(engine, "job")


def test_an_owner_that_may_not_ask_the_fence_is_named(fenced: Engine, caplog: pytest.LogCaptureFixture) -> None:
    owner, member = role(fenced, "app_owner"), role(fenced, "dba")
    with fenced.begin() as connection:
        connection.exec_driver_sql("GRANT USAGE, CREATE ON SCHEMA public TO app_owner, dba")
        connection.exec_driver_sql("GRANT app_owner TO dba")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE ON spark_lease_fence, spark_lease_fence_table TO dba")
    with owner.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE fence_owned (id int)")
    postgres.add(member, "fence_owned", NAME)
    assert "fail under every lease. Run: GRANT SELECT, UPDATE ON" in caplog.text and "app_owner" in caplog.text
    for each in (owner, member):
        each.dispose()
    postgres.drop(fenced, "fence_owned")
    with fenced.begin() as connection:
        connection.exec_driver_sql("DROP TABLE fence_owned")
    unrole(fenced, "app_owner")
    unrole(fenced, "dba")


def test_a_server_process_that_stands_still_cannot_commit_later(fenced: Engine, session: Session) -> None:
    zombie = frozen_in_a_transaction(session)
    os.kill(zombie.info.backend_pid, signal.SIGSTOP)
    try:
        with pytest.raises(FenceUnreachable, match="stands still"):
            claim(Holder(NAME, 6), fenced, timeout=0.5)
    finally:
        os.kill(zombie.info.backend_pid, signal.SIGCONT)
    with pytest.raises(psycopg2.OperationalError):
        zombie.commit()
    claim(Holder(NAME, 6), fenced)
    assert rows(fenced) == 0


# -- masters that are frozen, with programs that know nothing of us


@pytest.fixture
def zombie(pg_url: str) -> Iterator[Zombie]:
    zombie = Zombie(pg_url)
    yield zombie
    zombie.process.kill()
    zombie.process.communicate(timeout=10)


def test_no_row_of_an_older_epoch_lands_in_a_fenced_table_after_the_claim(
    fenced: Engine, session: Session, zombie: Zombie
) -> None:
    chance = random.Random()
    for epoch in range(7, 7 + 2 * ROUNDS, 2):
        claim(Holder(NAME, epoch), fenced)
        zombie.begin(epoch)
        time.sleep(chance.uniform(0, 0.02))  # any moment will do
        zombie.process.send_signal(signal.SIGSTOP)
        claim(Holder(NAME, epoch + 1), fenced)
        landed = rows(fenced, epoch)
        run(session(epoch + 1), f"INSERT INTO guarded (epoch) VALUES ({epoch + 1})")
        zombie.process.send_signal(signal.SIGCONT)
        assert zombie.says() == "refused"
        assert (rows(fenced, epoch), rows(fenced, epoch + 1)) == (landed, 1)


def test_without_a_fenced_table_they_do(engine: Engine, zombie: Zombie) -> None:
    """The control of the test above."""
    zombie.begin(7)
    zombie.process.send_signal(signal.SIGSTOP)
    with engine.begin() as connection:  # the claim without the trigger, and without an end of sessions
        FenceTable(engine).raise_to(NAME, 7)
        connection.exec_driver_sql("UPDATE spark_lease_fence SET epoch = 8")
    landed = rows(engine, 7)
    zombie.process.send_signal(signal.SIGCONT)
    assert zombie.says() == "done"
    assert rows(engine, 7) > landed


# -- how the epoch travels


def test_psql_carries_the_epoch_of_its_environment(fenced: Engine, pg_url: str) -> None:
    def psql(epoch: int) -> int:
        told = os.environ | session_environment(NAME, epoch)
        return subprocess.run([PSQL, pg_url, "-c", WRITES[0]], env=told, capture_output=True, check=False).returncode

    assert (psql(4), psql(5)) == (1, 0)
    assert rows(fenced) == 1


def test_sqlalchemy_and_psycopg2_carry_the_epoch_of_their_environment(
    fenced: Engine, pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGAPPNAME", "etl")
    for key, value in session_environment(NAME, 5).items():
        monkeypatch.setenv(key, value)
    with create_engine(fenced.url, poolclass=NullPool).begin() as connection:
        connection.exec_driver_sql(WRITES[0])
        name = connection.exec_driver_sql("SELECT current_setting('application_name')").scalar()
    connection = psycopg2.connect(pg_url)
    run(connection, WRITES[0])
    connection.close()
    assert (rows(fenced), name) == (2, application_of(NAME, 5, "etl"))


@pytest.mark.parametrize("name", ["x" * 250, "täglich ☃", "a b", "it's"])
def test_every_name_fits_into_an_application_name(name: str, session: Session) -> None:
    told = application_of(name, 1795262899640)
    assert len(told.encode()) <= 63
    assert run(session(application_name=told), "SELECT current_setting('application_name')") == [(told,)]


def role(engine: Engine, name: str) -> Engine:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP ROLE IF EXISTS {name}")
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
    return create_engine(engine.url.set(username=name), poolclass=NullPool)


def unrole(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"DROP OWNED BY {name}")
        connection.exec_driver_sql(f"DROP ROLE {name}")


def test_a_partition_is_fenced_at_its_root(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE root (id INT) PARTITION BY RANGE (id)")
        connection.exec_driver_sql("CREATE TABLE part1 PARTITION OF root FOR VALUES FROM (0) TO (10)")
    try:
        with pytest.raises(ConfigError, match=r"part1 is a partition: fence its root public\.root"):
            postgres.add(engine, "part1", NAME)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE root")


def test_a_partition_that_was_fenced_by_itself_can_be_let_go(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables("CREATE TABLE more.low (epoch INT)")
    postgres.add(fenced, "more.low", NAME)
    tables(
        "CREATE TABLE more.parted (epoch INT) PARTITION BY RANGE (epoch);"
        "ALTER TABLE more.parted ATTACH PARTITION more.low FOR VALUES FROM (0) TO (10)"
    )
    assert postgres.drop(fenced, "more.low")
    run(session(), "INSERT INTO more.low VALUES (1)")
    postgres.add(fenced, "more.parted", NAME)
    with pytest.raises(ConfigError, match=r"more\.low is fenced with more\.parted: drop that"):
        postgres.drop(fenced, "more.low")
    tables("ALTER TABLE more.parted DETACH PARTITION more.low")
    assert refusal(session(4), "INSERT INTO more.low VALUES (1)") == OLDER
    assert postgres.drop(fenced, "more.low")


def test_tables_that_inherit_are_fenced_with_their_table_and_not_without_it(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    tables(
        "CREATE TABLE more.parent (epoch INT); CREATE TABLE more.child () INHERITS (more.parent);"
        "CREATE TABLE more.grandchild () INHERITS (more.child); INSERT INTO more.grandchild VALUES (1)"
    )
    with pytest.raises(
        ConfigError, match=r"more\.child inherits from more\.parent, through which its rows are written"
    ):
        postgres.add(fenced, "more.child", NAME)
    postgres.add(fenced, "more.parent", NAME)
    for table in ("parent", "child", "grandchild"):
        assert refusal(session(4), f"UPDATE more.{table} SET epoch = 4") == OLDER
        run(session(5), f"UPDATE more.{table} SET epoch = 5")
    tables("CREATE TABLE more.late () INHERITS (more.parent)")
    assert run(session(4), "INSERT INTO more.late VALUES (4)") == 1  # does not hold: add the table again
    postgres.add(fenced, "more.late", NAME)  # its parent is fenced
    assert refusal(session(4), "INSERT INTO more.late VALUES (4)") == OLDER
    postgres.drop(fenced, "more.parent")
    assert [each.name for each in postgres.fenced_tables(fenced)] == ["public.guarded"]


def test_a_claim_that_finds_another_fence_than_the_tables_go_by_is_refused(
    fenced: Engine, session: Session, tables: Callable[[str], None]
) -> None:
    """By its search path. Else it would hold back nobody."""
    tables("CREATE TABLE more.own (epoch INT)")
    path = {"options": "-c search_path=more"}
    astray = create_engine(fenced.url, connect_args=path, poolclass=NullPool)
    with pytest.raises(ConfigError, match='use the fence in schema "public", which this role'):
        claim(Holder(NAME, 6), astray)
    assert FenceTable(astray).has_fence(NAME)
    assert FenceTable(fenced).newest(NAME) == 5
    both = create_engine(fenced.url, connect_args={"options": "-c search_path=more,public"}, poolclass=NullPool)
    postgres.add(both, "own", NAME)  # by the fence that is there, and makes no second one
    claim(Holder(NAME, 6), both)
    assert refusal(session(5, **path), "INSERT INTO more.own VALUES (5)") == OLDER
    assert refusal(session(5), WRITES[0]) == OLDER
