"""Tables and servers that would lose or change values in silence, or take no DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError

from spark_lease.database.dialects import is_mariadb
from spark_lease.errors import ConfigError
from spark_lease.fencing.dataframe import writer
from spark_lease.fencing.dataframe.move import empty
from spark_lease.fencing.dataframe.target import run
from spark_lease.fencing.dataframe.writer import _plan
from tests.support.drivers import until
from tests.support.frames import ask, put, session, tell
from tests.support.guarded import SERVERS

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
POSTGRES, SQLITE, MARIADB = (
    pytest.mark.parametrize("database", [each], indirect=True)
    for each in (
        pytest.param("postgresql", marks=pytest.mark.postgres),
        "sqlite",
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    )
)
BOTH = pytest.mark.parametrize("through", ["driver", "executors"])
AGAIN = {"mode": "overwrite", "through": "driver"}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as made:
        yield made


@pytest.fixture
def made(engine: Engine) -> Iterator[Any]:
    """Makes the table `kinds`, anew each time."""

    def make(columns: str) -> None:
        tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")

    yield make
    tell(engine, "DROP TABLE IF EXISTS kinds")


def configured(engine: Engine, setting: str) -> Engine:
    """The same database, in sessions with `setting`; the executors' sessions have it too."""
    words = {**engine.url.translate_connect_args(username="user"), "init_command": f"SET SESSION {setting}"}
    return create_engine("mysql+pymysql://", connect_args=words)


@pytest.mark.parametrize("database", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True)
def test_a_column_that_the_table_computes_is_not_asked_for(engine: Engine, spark: Any, made: Any) -> None:
    not_null = " NOT NULL" if engine.dialect.name == "sqlite" else ""  # MariaDB has no such columns, MySQL does
    made(f"a int, twice int GENERATED ALWAYS AS (2 * a) STORED{not_null}")
    put(spark.sql("SELECT 3 AS a"), engine, "kinds", through="auto")
    assert ask(engine, "SELECT a, twice FROM kinds") == [(3, 6)]
    if is_mariadb(engine):
        made(
            "a int, since timestamp(6) GENERATED ALWAYS AS ROW START, till timestamp(6) GENERATED ALWAYS AS ROW END, "
            "PERIOD FOR SYSTEM_TIME(since, till)) WITH SYSTEM VERSIONING -- "
        )
        put(spark.sql("SELECT 3 AS a"), engine, "kinds", through="auto")
        assert ask(engine, "SELECT a FROM kinds") == [(3,)]


@MARIADB
@BOTH
def test_null_does_not_become_the_present_time(engine: Engine, spark: Any, made: Any, through: str) -> None:
    if not is_mariadb(engine):
        engine = configured(engine, "explicit_defaults_for_timestamp = 0")
    made("a int, at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, free timestamp NULL")
    for at, free in (
        ("timestamp'2026-11-20 01:02:03'", "CAST(NULL AS timestamp)"),
        ("CAST(NULL AS timestamp)", "now()"),
    ):
        rows = spark.sql(f"SELECT 1 AS a, {at} AS at, {free} AS free")
        if at.startswith("CAST"):
            with pytest.raises(ConfigError, match="at takes no NULL, and this server would store the present time"):
                put(rows, engine, "kinds", through=through)
        else:
            put(rows, engine, "kinds", through=through)
    assert ask(engine, "SELECT a, CAST(at AS char), free FROM kinds") == [(1, "2026-11-20 01:02:03", None)]
    engine.dispose()


@pytest.mark.mariadb_alone
@MARIADB
@BOTH
def test_an_empty_text_does_not_become_null(engine: Engine, spark: Any, made: Any, through: str) -> None:
    made("a varchar(3)")
    engine = configured(engine, "sql_mode = 'STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL'")
    with pytest.raises(ConfigError, match="EMPTY_STRING_IS_NULL, which silently makes '' NULL"):
        put(spark.sql("SELECT '' AS a"), engine, "kinds", through=through)
    assert ask(engine, "SELECT count(*) FROM kinds") == [(0,)]
    engine.dispose()


@MARIADB
@pytest.mark.parametrize("value", ["make_date(12345, 1, 1)", "CAST(make_date(-1, 1, 1) AS timestamp_ntz)"])
def test_a_year_that_mariadb_does_not_have_is_named_with_its_column(
    engine: Engine, spark: Any, made: Any, value: str
) -> None:
    made("b datetime")
    for through in ("driver", "executors"):
        with pytest.raises(Exception, match="write_sql: b has a year outside 1 to 9999"):
            put(spark.sql(f"SELECT {value} AS b"), engine, "kinds", through=through)
    put(spark.sql("SELECT date'9999-12-31' AS b UNION ALL SELECT NULL"), engine, "kinds", through="driver")
    assert ask(engine, "SELECT CAST(b AS char) FROM kinds ORDER BY b") == [(None,), ("9999-12-31 00:00:00",)]


@MARIADB
def test_a_table_that_is_too_wide_to_be_staged_is_refused_with_the_reason(
    engine: Engine, spark: Any, made: Any
) -> None:
    made(", ".join(f"n{number} varchar(3)" for number in range(600)))
    columns = ", ".join(f"'x' AS n{number}" for number in range(600))
    with pytest.raises(ConfigError, match="do not fit into the table in which write_sql stages them"):
        put(spark.sql(f"SELECT {columns}"), engine, "kinds", through="driver")


@MARIADB
def test_safe_updates_are_reported_before_spark_computes(engine: Engine, spark: Any, made: Any) -> None:
    made("a int")
    engine = configured(engine, "sql_safe_updates = 1")
    with pytest.raises(ConfigError, match="sql_safe_updates = 1 refuses the DELETE"):
        put(spark.sql("SELECT raise_error('computed') AS a"), engine, "kinds", **AGAIN)
    put(spark.sql("SELECT 1 AS a"), engine, "kinds", through="driver")
    engine.dispose()


@pytest.mark.parametrize(
    ("database", "keeps"),
    [
        pytest.param(
            "postgresql",
            [
                "CREATE OR REPLACE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
                "CREATE TRIGGER keep BEFORE DELETE ON kinds FOR EACH ROW EXECUTE FUNCTION keep()",
            ],
            marks=pytest.mark.postgres,
        ),
        ("sqlite", ["CREATE TRIGGER keep BEFORE DELETE ON kinds BEGIN SELECT RAISE(IGNORE); END"]),
    ],
    indirect=["database"],
)
def test_an_overwrite_that_would_leave_rows_there_writes_nothing(
    engine: Engine, spark: Any, made: Any, keeps: list[str]
) -> None:
    made("a int")
    tell(engine, "INSERT INTO kinds VALUES (1)", *keeps)
    with pytest.raises(ConfigError, match="leaves rows there, kept or inserted by a trigger"):
        put(spark.sql("SELECT 2 AS a"), engine, "kinds", **AGAIN)
    assert ask(engine, "SELECT a FROM kinds") == [(1,)]


@POSTGRES
def test_an_overwrite_needs_no_right_to_read(engine: Engine, spark: Any, made: Any) -> None:
    made("a int")
    tell(engine, "INSERT INTO kinds VALUES (1)", "DROP ROLE IF EXISTS writes_only", "CREATE ROLE writes_only")
    tell(engine, "GRANT INSERT, DELETE ON kinds TO writes_only")
    move = _plan(spark.sql("SELECT 1 AS a"), engine, "kinds", "overwrite", [])
    with engine.begin() as connection:
        run(connection, "SET LOCAL ROLE writes_only")
        empty(connection, move)
    assert ask(engine, "SELECT count(*) FROM kinds") == [(0,)]
    tell(engine, "DROP OWNED BY writes_only", "DROP ROLE writes_only")


@SERVERS
def test_a_table_that_another_has_locked_is_not_waited_for_without_end(
    engine: Engine, spark: Any, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("a int")
    monkeypatch.setattr(writer, "_LOCKS_WITHIN", 1)
    with engine.connect() as reader, engine.connect() as altering, ThreadPoolExecutor(1) as pool:
        reader.exec_driver_sql("SELECT * FROM kinds").all()
        alter = pool.submit(altering.exec_driver_sql, "ALTER TABLE kinds ADD b int")
        with engine.connect() as seen:
            waits = "SELECT 1 FROM information_schema.processlist WHERE state LIKE '%%metadata lock%%'"
            if engine.dialect.name == "postgresql":
                waits = "SELECT 1 FROM pg_locks WHERE NOT granted"
            until(lambda: seen.exec_driver_sql(waits).scalar())
        with pytest.raises(DBAPIError, match=r"(?i)lock ?(wait )?timeout"):
            put(spark.sql("SELECT 1 AS a"), engine, "kinds")
        reader.rollback()
        alter.result(20)
        altering.rollback()


@pytest.mark.parametrize(
    ("database", "limit"),
    [
        pytest.param("postgresql", "transaction_timeout=2s", marks=pytest.mark.postgres),
        pytest.param("mariadb", "wait_timeout = 2, idle_transaction_timeout = 2", marks=pytest.mark.mariadb),
    ],
    indirect=["database"],
)
def test_executors_may_wait_longer_for_spark_than_a_session_may_be_idle(
    engine: Engine, spark: Any, made: Any, limit: str
) -> None:
    made("a int")
    if engine.dialect.name == "mysql":
        impatient = configured(engine, limit if is_mariadb(engine) else "wait_timeout = 2")
    else:
        impatient = create_engine(engine.url, connect_args={"options": f"-c {limit}"})

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        for number, batch in enumerate(batches):
            time.sleep(3 * (number in (4, 5)))  # what the test is about: Spark takes long in the middle
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    try:
        rows = spark.range(0, 70_000, 1, 1).mapInArrow(slowly, "id bigint").withColumnRenamed("id", "a")
        assert put(rows, impatient, "kinds", through="executors") == 70_000
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        impatient.dispose()
