"""DataFrames into SQL, on real databases: modes, names, types, and what is refused before anything is written."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pymysql
import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.dialects import is_mariadb
from spark_lease.errors import AlreadyDone, ConfigError
from spark_lease.fencing.dataframe import move as frames_move
from spark_lease.fencing.dataframe import writer as frames
from spark_lease.fencing.dataframe.target import refuse_cascades, run
from spark_lease.fencing.sql.transaction import Completion
from spark_lease.holds import open_contender
from spark_lease.lease import Lease
from tests.support.drivers import until
from tests.support.frames import EVERYWHERE, NAME, ask, put, session, staged, tell
from tests.support.guarded import rows
from tests.support.holders import Holder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
PG, MARIA = (
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
)
POSTGRES = pytest.mark.parametrize("database", [PG], indirect=True)
MARIADB = pytest.mark.parametrize("database", [MARIA], indirect=True)
UTC, WALL = dt.UTC, dt.datetime.fromisoformat
LONG = "12345678901234567890.123456789012345678"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as made:
        yield made


@pytest.fixture
def flights(engine: Engine) -> Iterator[Engine]:
    """A table `flights (carrier, flight, delay, note)`, with a key of two columns."""
    columns = "carrier varchar(2) NOT NULL, flight integer NOT NULL, delay integer, note varchar(20) DEFAULT 'none'"
    tell(engine, "DROP TABLE IF EXISTS flights", f"CREATE TABLE flights ({columns}, PRIMARY KEY (carrier, flight))")
    yield engine
    tell(engine, "DROP TABLE flights")


def frame(spark: Any, *values: str, names: str = "carrier, flight, delay") -> Any:
    return spark.sql(f"SELECT * FROM VALUES {', '.join(values)} AS t({names})").repartition(2)


def contents(engine: Engine) -> list[tuple[Any, ...]]:
    return ask(engine, "SELECT carrier, flight, delay, note FROM flights ORDER BY carrier, flight")


# -- what is written


@pytest.mark.parametrize(
    ("columns", "conf", "sizes"),
    [
        ("id, string(id) AS text, current_date() AS day", {}, [5000, 5000, 2000]),
        ("id, binary(string(id)) AS bytes", {}, [10000, 2000]),  # as Spark does it, by rows and by bytes
        ("id, array(id) AS many", {}, [10000, 2000]),
        ("id", {"Records": "4000"}, [4000, 4000, 4000]),
        ("id", {"Records": "20000"}, [12000]),
        ("id", {"Bytes": "64"}, [8] * 1500),
    ],
)
def test_short_rows_go_to_python_in_batches_of_rows(
    spark: Any, columns: str, conf: dict[str, str], sizes: list[int]
) -> None:
    def sizes_of(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield pyarrow.RecordBatch.from_pydict({"size": [batch.num_rows]})

    def found() -> list[int]:
        return [each["size"] for each in made.mapInArrow(sizes_of, "size bigint").collect()]

    keys = {f"spark.sql.execution.arrow.max{each}PerBatch": value for each, value in conf.items()}
    made = spark.range(0, 12_000, 1, 1).selectExpr(*columns.split(", "))
    for key, value in keys.items():
        spark.conf.set(key, value)
    try:
        before = found()
        with frames._batches_by_rows(made):
            assert found() == sizes
        assert found() == before
    finally:
        for key in keys:
            spark.conf.unset(key)


def test_what_else_of_python_runs_in_the_job_keeps_its_batches(spark: Any, tmp_path: Path) -> None:
    def as_it_is(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    spark.range(10).write.parquet(str(tmp_path / "ids"))
    ids = spark.read.parquet(str(tmp_path / "ids"))
    inner = ids.mapInArrow(as_it_is, ids.schema)
    for made, limit in ((ids, "5000"), (inner.where("id > 3"), None), (inner.cache(), None), (ids.rdd.toDF(), None)):
        with frames._batches_by_rows(made):
            assert spark.sparkContext.getLocalProperty("spark.sql.execution.arrow.maxRecordsPerBatch") == limit
    inner.unpersist()


@EVERYWHERE
def test_a_run_key_is_done_with_its_rows_and_spark_does_not_compute_them_again(
    flights: Engine, spark: Any, through: str
) -> None:
    noted: list[tuple[str, int]] = []
    key = Completion("2026-11-20", lambda *note: noted.append(note), 60)
    how = {"table": "flights", "through": through, "completes": key}
    with pytest.raises(DBAPIError):  # the second row has the key of the first
        put(frame(spark, "('UA', 1, 5)", "('UA', 1, 6)"), flights, **how)
    assert (contents(flights), noted) == ([], [])
    assert put(frame(spark, "('UA', 1, 5)"), flights, **how) == 1
    never = frame(spark, "('UA', 2, 5)").selectExpr("carrier", "flight", "raise_error('computed') AS delay")
    with pytest.raises(AlreadyDone, match="was done under epoch 5"):
        put(never, flights, lease=Holder(NAME, 6), **how)
    assert (contents(flights), noted) == ([("UA", 1, 5, "none")], [("2026-11-20", 5)] * 2)
    assert through == "auto" or staged(flights) == []


@pytest.mark.mysql
@EVERYWHERE
def test_rows_are_appended_replaced_and_updated_by_key(flights: Engine, spark: Any, through: str) -> None:
    how = {"table": "flights", "through": through}
    assert put(frame(spark, "('UA', 1, 10)", "('AA', 2, NULL)"), flights, **how) == 2
    assert contents(flights) == [("AA", 2, None, "none"), ("UA", 1, 10, "none")]
    tell(flights, "UPDATE flights SET note = 'kept'")
    newer = frame(spark, "(5, 'UA', 1)", "(6, 'DL', 3)", names="delay, CARRIER, flight")
    assert put(newer, flights, mode="upsert", keys=["carrier", "flight"], **how) == 2
    assert contents(flights) == [("AA", 2, None, "kept"), ("DL", 3, 6, "none"), ("UA", 1, 5, "kept")]
    assert put(frame(spark, "('B6', 4, 0)"), flights, mode="overwrite", **how) == 1
    assert contents(flights) == [("B6", 4, 0, "none")]
    assert put(frame(spark, "('B6', 4, 0)").where("false"), flights, mode="overwrite", **how) == 0
    assert contents(flights) == []


@EVERYWHERE
def test_equal_keys_and_none_are_refused_and_nothing_is_written(flights: Engine, spark: Any, through: str) -> None:
    how = {"table": "flights", "through": through, "mode": "upsert", "keys": ["carrier", "flight"]}
    with pytest.raises(
        ConfigError, match=r"1 of 3 rows have a key \(carrier, flight\) that another one has as well: keep one"
    ):
        put(frame(spark, "('UA', 1, 10)", "('UA', 1, 11)", "('AA', 2, 0)"), flights, **how)
    with pytest.raises(ConfigError, match="NULL in a key"):
        put(frame(spark, "('UA', 1, 10)", "('UA', NULL, 11)"), flights, **how)
    assert contents(flights) == []


@POSTGRES
def test_names_are_quoted_and_schemas_are_found(engine: Engine, spark: Any) -> None:
    tell(engine, 'DROP SCHEMA IF EXISTS "Other %s" CASCADE', 'CREATE SCHEMA "Other %s"')
    tell(
        engine,
        'CREATE TABLE "Other %s"."My ""Table" ("per%cent" int, "With.Dot" int, "a""b`c" int UNIQUE, "A" int, a int)',
    )
    source = spark.createDataFrame([(1, 2, 3, 4)], '`With.Dot` int, `per%cent` int, `a"b``c` int, a int')
    for through in ("driver", "executors"):
        put(source, engine, '"Other %s"."My ""Table"', mode="upsert", keys=['a"b`c'], through=through)
        assert ask(engine, 'SELECT * FROM "Other %s"."My ""Table"') == [(2, 1, 3, None, 4)]
    tell(engine, 'DROP SCHEMA "Other %s" CASCADE')


@POSTGRES
def test_few_rows_go_through_the_driver_and_many_through_executors(engine: Engine, spark: Any) -> None:
    for number in (10_000, 10_001):
        assert put(spark.range(number).selectExpr("id AS epoch"), engine, through="auto") == number
    assert rows(engine) == 20_001


def test_a_lease_that_is_held_writes(engine: Engine, spark: Any, url: str) -> None:
    config, clock = configure(name=NAME, url=url), BootClock()
    hold = open_contender(config, clock)
    hold.acquire()
    lease = Lease(hold, config, clock)
    assert lease.write_sql(spark.range(3).selectExpr("id AS epoch"), engine, "guarded") == 3
    hold.close()
    assert rows(engine) == 3


# -- types

PAIRS: list[tuple[str, str, Any]] = [
    ("true", "boolean", True),
    ("CAST(-128 AS TINYINT)", "smallint", -128),
    ("CAST(7 AS INT)", "bigint", 7),
    ("7L", "integer", 7),
    ("-9223372036854775807L", "bigint", -9223372036854775807),
    ("CAST(0.1 AS FLOAT)", "real", 0.1),
    ("0.1D", "double precision", 0.1),
    ("double('-Infinity')", "double precision", float("-inf")),
    (f"CAST('{LONG}' AS DECIMAL(38, 18))", "numeric", Decimal(LONG)),
    ("1.50BD", "numeric(10, 2)", Decimal("1.50")),
    ("concat('ü \"q\", ', char(92), char(10), '\\'')", "text", "ü \"q\", \\\n'"),
    ("''", "text", ""),
    ("'abc'", "varchar(3)", "abc"),
    ("DATE'0001-01-01'", "date", dt.date(1, 1, 1)),
    ("TIMESTAMP'2013-07-01 12:00:00.123456 UTC'", "timestamptz", dt.datetime(2013, 7, 1, 12, 0, 0, 123456, UTC)),
    ("TIMESTAMP'1890-01-01 00:00:00 UTC'", "timestamptz", dt.datetime(1890, 1, 1, tzinfo=UTC)),
    ("TIMESTAMP'2013-07-01 12:00:00 UTC'", "timestamp", WALL("2013-07-01 14:00")),
    ("TIMESTAMP_NTZ'2013-07-01 12:00:00.5'", "timestamp", WALL("2013-07-01 12:00:00.500")),
    ("TIMESTAMP_NTZ'2013-07-01 12:00:00'", "timestamptz", dt.datetime(2013, 7, 1, 10, tzinfo=UTC)),
    ("'12:34:56.789'", "time", dt.time(12, 34, 56, 789000)),
    ("X'00FF5C'", "bytea", b"\x00\xff\\"),
    ("INTERVAL '1' HOUR", "interval", dt.timedelta(hours=1)),
    ("INTERVAL '-1 02:03:04.5' DAY TO SECOND", "interval", -dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    ("INTERVAL '400' DAY", "interval", dt.timedelta(days=400)),
    ("array(1, NULL, 3)", "integer[]", [1, None, 3]),
    ("array('a', '', NULL, 'NULL', concat('q\"b', char(92), 'c,{}'))", "text[]", ["a", "", None, "NULL", 'q"b\\c,{}']),
    ("CAST(array() AS ARRAY<INT>)", "integer[]", []),
    ("array(array(1, 2), array(3, 4))", "bigint[]", [[1, 2], [3, 4]]),
    ("array(DATE'2013-01-01')", "date[]", [dt.date(2013, 1, 1)]),
    ("array(TIMESTAMP'2013-07-01 12:00:00 UTC')", "timestamptz[]", [dt.datetime(2013, 7, 1, 12, tzinfo=UTC)]),
    ("array(TIMESTAMP'2013-07-01 12:00:00 UTC')", "timestamp[]", [WALL("2013-07-01 14:00")]),
    ("array(TIMESTAMP_NTZ'2013-03-31 02:30:00')", "timestamp[]", [WALL("2013-03-31 02:30")]),  # no such time in Paris
    ("named_struct('a', 1, 'b', CAST(NULL AS STRING), 'c', array(1.5D))", "jsonb", {"a": 1, "b": None, "c": [1.5]}),
    ("map('k', 1)", "json", {"k": 1}),
    ("array(TIMESTAMP'2013-01-01 12:00:00.123456')", "jsonb", ["2013-01-01T12:00:00.123456+01:00"]),
    ("named_struct('a', TIMESTAMP_NTZ'2013-01-01 12:00:00.123456')", "json", {"a": "2013-01-01T12:00:00.123456"}),
    ("array(named_struct('a', 1))", "jsonb", [{"a": 1}]),
    ("array(1, 2)", "jsonb", [1, 2]),
    ("'6f1c1a52-1f1c-4a5e-9d2f-000000000001'", "uuid", uuid.UUID("6f1c1a52-1f1c-4a5e-9d2f-000000000001")),
    ("'{\"a\": [1]}'", "jsonb", {"a": [1]}),
    ("'10.0.0.1'", "inet", "10.0.0.1"),
    ("NULL", "text", None),
]  # fmt: skip


def make_kinds(engine: Engine, pairs: list[tuple[str, str, Any]]) -> None:
    columns = ", ".join(f"k{number} {kind}" for number, (_, kind, _) in enumerate(pairs))
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")


@pytest.mark.parametrize("through", ["driver", "executors"])
@POSTGRES
def test_every_type_arrives_as_it_was(engine: Engine, spark: Any, through: str) -> None:
    make_kinds(engine, PAIRS)
    values = ", ".join(f"{value} AS k{n}" for n, (value, _, _) in enumerate(PAIRS))
    nothing = ", ".join(f"CAST(NULL AS {{}}) AS k{n}" for n in range(len(PAIRS)))
    full = spark.sql(f"SELECT {values}")
    kinds = [field.dataType.simpleString() for field in full.schema.fields]
    empty = spark.sql("SELECT " + nothing.format(*kinds))
    assert put(full.union(empty), engine, "kinds", through=through) == 2
    found = sorted(ask(engine, "SELECT * FROM kinds"), key=lambda row: row[0] is None)
    assert found[1] == (None,) * len(PAIRS)
    for (source, kind, wanted), value in zip(PAIRS, found[0], strict=True):
        same = bytes(value) if isinstance(value, memoryview) else value
        assert same == wanted, f"{source} as {kind}"
    tell(engine, "DROP TABLE kinds")


@POSTGRES
def test_months_are_months_and_no_number_stays_none(engine: Engine, spark: Any) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (months interval, nan float8, nans float8[])")
    source = spark.sql(
        "SELECT INTERVAL '-1-2' YEAR TO MONTH AS months, double('NaN') AS nan, array(double('NaN')) AS nans"
    )
    for through in ("driver", "executors"):
        put(source, engine, "kinds", through=through)
        assert ask(engine, "SELECT months::text, nan::text, nans::text FROM kinds") == [
            ("-1 years -2 mons", "NaN", "{NaN}")
        ]
        tell(engine, "DELETE FROM kinds")
    tell(engine, "DROP TABLE kinds")


@POSTGRES
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_domain_counts_as_what_it_is_made_of_in_the_end(engine: Engine, spark: Any, through: str) -> None:
    drop = "DROP TABLE IF EXISTS kinds", "DROP DOMAIN IF EXISTS moments", "DROP DOMAIN IF EXISTS moment"
    tell(engine, *drop, "CREATE DOMAIN moment AS timestamptz", "CREATE DOMAIN moments AS moment")
    tell(engine, "CREATE TABLE kinds (a moments, b moments[])")
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # by which TIMESTAMP means another type
    try:
        rows = "SELECT TIMESTAMP'2013-07-01 12:00:00' AS a, array(TIMESTAMP'2013-07-01 12:00:00') AS b"
        put(spark.sql(rows), engine, "kinds", through=through)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    in_utc = "SELECT a AT TIME ZONE 'UTC', b[1] AT TIME ZONE 'UTC' FROM kinds"
    assert ask(engine, in_utc) == [(WALL("2013-07-01 10:00"), WALL("2013-07-01 10:00"))]
    tell(engine, *drop)


@POSTGRES
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_domain_that_takes_no_null_gets_none_where_it_is_left_out(engine: Engine, spark: Any, through: str) -> None:
    drop = "DROP TABLE IF EXISTS kinds", "DROP DOMAIN IF EXISTS something"
    tell(engine, *drop, "CREATE DOMAIN something AS int CHECK (VALUE IS NOT NULL)")
    tell(engine, "CREATE TABLE kinds (a int, b something)")
    with pytest.raises(IntegrityError, match="something"):
        put(spark.sql("SELECT 1 AS a"), engine, "kinds", through=through)
    assert ask(engine, "SELECT * FROM kinds") == []
    tell(engine, *drop)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_time_is_the_same_under_an_older_policy(engine: Engine, spark: Any) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a datetime)")
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        put(spark.sql("SELECT TIMESTAMP'2013-07-01 12:00:00.123456' AS a"), engine, "kinds", through="auto")
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert ask(engine, "SELECT * FROM kinds") == [("2013-07-01 12:00:00.123456",)]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", ["map(DATE'2013-01-01', 1)", "array(named_struct('a', map(X'01', 1)))"])
def test_a_key_that_json_has_not_is_refused(engine: Engine, spark: Any, value: str) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a text)")
    with pytest.raises(ConfigError, match=r"a: JSON has no key of the type (date|binary): cast it to string"):
        put(spark.sql(f"SELECT {value} AS a"), engine, "kinds", through="auto")


OTHERS: dict[str, list[tuple[str, str, Any]]] = {
    "mysql": [
        ("true", "boolean", 1),
        ("CAST(0.1 AS FLOAT)", "double", 0.10000000149011612),
        ("1.50BD", "decimal(10, 2)", Decimal("1.50")),
        ("concat('ü ', char(39), char(92), '%s')", "varchar(20)", "ü '\\%s"),
        ("DATE'2013-01-01'", "date", dt.date(2013, 1, 1)),
        ("TIMESTAMP'2013-07-01 12:00:00.5 UTC'", "datetime(6)", WALL("2013-07-01 14:00:00.500")),
        ("X'00FF5C'", "blob", b"\x00\xff\\"),
        ("INTERVAL '-1 02:03:04.5' DAY TO SECOND", "time(1)", -dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("array(1)", "json", "[1]"),
        ("NULL", "text", None),
    ],
    "sqlite": [
        ("true", "boolean", 1),
        ("1.50BD", "text", "1.50"),
        ("'ü'", "text", "ü"),
        ("DATE'2013-01-01'", "date", "2013-01-01"),
        ("TIMESTAMP'2013-07-01 12:00:00.5 UTC'", "datetime", "2013-07-01 14:00:00.500000"),
        ("X'00FF5C'", "blob", b"\x00\xff\\"),
        ("map('k', 1)", "text", '{"k":1}'),
        ("0.1D", "real", 0.1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("database", ["sqlite", MARIA], indirect=True)
def test_types_arrive_elsewhere_too(engine: Engine, spark: Any) -> None:
    pairs = OTHERS[engine.dialect.name]
    make_kinds(engine, pairs)
    source = spark.sql("SELECT " + ", ".join(f"{value} AS k{n}" for n, (value, _, _) in enumerate(pairs)))
    for through in ["driver"] if engine.dialect.name == "sqlite" else ["driver", "executors"]:
        put(source, engine, "kinds", through=through)
    assert set(ask(engine, "SELECT * FROM kinds")) == {tuple(wanted for _, _, wanted in pairs)}
    tell(engine, "DROP TABLE kinds")


# -- what is refused before anything is written


@EVERYWHERE
@pytest.mark.parametrize(
    ("values", "names", "how", "said"),
    [
        ("('UA', 1)", "carrier, flight", {"table": "fligths"}, "there is no table fligths"),
        ("('UA', 1)", "carrier, flight", {"table": "a.b.c"}, "is no name of a table"),
        ("('UA', 1, 2)", "carrier, flight, late", {}, "the DataFrame has a column late, and"),
        ("('UA', 1, 2)", "carrier, flight, FLIGHT", {}, "several columns of the DataFrame are called flight"),
        ("('UA', 1)", "carrier, delay", {}, "needs flight, which the DataFrame lacks"),
        ("('UA', 1)", "carrier, flight", {"mode": "upsert", "keys": ["flight"]}, "no unique index over flight"),
        ("('UA', 1)", "carrier, flight", {"mode": "upsert", "keys": ["note"]}, "no column note, which is a key"),
        ("('UA', 1)", "carrier, flight", {"mode": "upsert"}, "keys are for mode"),
        ("('UA', 1)", "carrier, flight", {"mode": "replace"}, "mode is one of append"),
    ],
)
def test_what_does_not_fit_is_refused(
    flights: Engine, spark: Any, through: str, values: str, names: str, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        put(frame(spark, values, names=names), flights, **{"table": "flights", "through": through} | how)
    assert contents(flights) == []


def test_what_is_no_frame_of_sparks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a list is not a Spark DataFrame: spark\.createDataFrame"):
        put([1], create_engine(f"sqlite:///{tmp_path}/x.db"), "t")


@POSTGRES
@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("made int GENERATED ALWAYS AS (1) STORED", "makes made itself"),
        ("made int GENERATED ALWAYS AS IDENTITY", "makes made itself"),
        ("made boolean", "cannot take this DataFrame: .*boolean"),
        ("made date", "cannot take this DataFrame: .*date"),
    ],
)
def test_a_column_that_cannot_take_it_is_refused_before_spark_is_asked(
    engine: Engine, spark: Any, columns: str, said: str
) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")
    for through in ("driver", "executors"):
        with pytest.raises(ConfigError, match=said):
            put(spark.sql("SELECT CAST(raise_error('it was asked') AS INT) AS made"), engine, "kinds", through=through)
    assert staged(engine) == []
    tell(engine, "DROP TABLE kinds")


@MARIADB
def test_a_table_that_cannot_be_rolled_back_or_has_other_keys_is_refused(engine: Engine, spark: Any) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a int) ENGINE = MyISAM")
    with pytest.raises(ConfigError, match="kinds is a table of MyISAM, which cannot be rolled back"):
        put(spark.sql("SELECT 1 AS a"), engine, "kinds")
    tell(engine, "CREATE OR REPLACE VIEW seen AS SELECT * FROM kinds")
    with pytest.raises(ConfigError, match="seen is a view, and whether its tables can be rolled back is not known"):
        put(spark.sql("SELECT 1 AS a"), engine, "seen")
    tell(engine, "DROP VIEW seen")
    tell(engine, "DROP TABLE kinds", "CREATE TABLE kinds (a int PRIMARY KEY, b int UNIQUE)")
    with pytest.raises(ConfigError, match="another unique index, b"):
        put(spark.sql("SELECT 1 AS a, 1 AS b"), engine, "kinds", mode="upsert", keys=["a"])
    tell(engine, "DROP TABLE kinds")


@MARIADB
@pytest.mark.parametrize(
    ("index", "more"),
    [
        ("UNIQUE (b(2))", "b varchar(9)"),
        ("UNIQUE (c)", "b varchar(9), c int NOT NULL DEFAULT 7"),
        ("UNIQUE (c)", "b varchar(9), c varchar(9) DEFAULT 'NULL'"),
        ("UNIQUE (c)", "b varchar(9), c varchar(9) GENERATED ALWAYS AS (upper(b)) VIRTUAL"),
    ],
    ids=["a part of a column", "a column with a default", "with a text for one", "a column that is made there"],
)
def test_an_upsert_is_refused_where_it_could_replace_other_rows(
    engine: Engine, spark: Any, index: str, more: str
) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds (a int PRIMARY KEY, {more}, {index})")
    with pytest.raises(ConfigError, match="has another unique index"):
        put(spark.sql("SELECT 1 AS a, 'x' AS b"), engine, "kinds", mode="upsert", keys=["a"])
    tell(engine, "DROP TABLE kinds")


@MARIADB
def test_a_unique_column_that_gets_its_number_there_is_in_nobodys_way(engine: Engine, spark: Any) -> None:
    columns = "id int AUTO_INCREMENT PRIMARY KEY, a int UNIQUE, b varchar(9), note int UNIQUE"
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds ({columns})")
    for value in ("x", "y"):
        put(spark.sql(f"SELECT 1 AS a, '{value}' AS b"), engine, "kinds", mode="upsert", keys=["a"])
    assert ask(engine, "SELECT a, b FROM kinds") == [(1, "y")]
    tell(engine, "DROP TABLE kinds")


@POSTGRES
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_null_in_an_array_is_no_text_and_a_session_that_was_cut_meanwhile_is_made_anew(
    engine: Engine, spark: Any, through: str
) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a text[], b int[])")
    # Spark takes longer than an idle session lives.
    options = "-c array_nulls=off -c idle_session_timeout=600ms"
    kept = create_engine(engine.url, connect_args={"options": options})
    source = "SELECT array('x', NULL) AS a, array(1, NULL) AS b, java_method('java.lang.Thread', 'sleep', 2000L) AS c"
    put(spark.sql(source).selectExpr("a", "if(c IS NULL, b, b) AS b"), kept, "kinds", through=through)
    assert ask(engine, "SELECT a, b FROM kinds") == [(["x", None], [1, None])]
    tell(engine, "DROP TABLE kinds")
    kept.dispose()


@MARIADB
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_zero_is_no_next_number(engine: Engine, spark: Any, through: str) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (id int AUTO_INCREMENT PRIMARY KEY, b varchar(9))")
    rows = "SELECT * FROM VALUES (0, 'unknown'), (7, 'seven'), (NULL, 'next') AS t(id, b)"
    put(spark.sql(rows), engine, "kinds", through=through)
    put(spark.sql(f"{rows} WHERE id = 0"), engine, "kinds", mode="upsert", keys=["id"], through=through)
    assert ask(engine, "SELECT id, b FROM kinds ORDER BY id") == [(0, "unknown"), (7, "seven"), (8, "next")]
    tell(engine, "DROP TABLE kinds", "CREATE TABLE kinds (id int AUTO_INCREMENT PRIMARY KEY)")
    tell(engine, "INSERT INTO kinds VALUES (0)")
    assert ask(engine, "SELECT id FROM kinds") == [(1,)], "the session is as it was"
    tell(engine, "DROP TABLE kinds")


@MARIADB
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_without_strict_mode_nothing_is_cut_off_in_silence(engine: Engine, spark: Any, through: str) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a varchar(3))")
    words = {**engine.url.translate_connect_args(username="user"), "init_command": "SET sql_mode = ''"}
    loose = create_engine("mysql+pymysql://", connect_args=words)
    with pytest.raises(ConfigError, match="sql_mode is '', which silently cuts off values that do not fit"):
        put(spark.sql("SELECT 'abcdef' AS a"), loose, "kinds", through=through)
    assert ask(engine, "SELECT * FROM kinds") == []
    tell(engine, "DROP TABLE kinds")
    loose.dispose()


@POSTGRES
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_floats_keep_all_their_digits_in_a_numeric_column(engine: Engine, spark: Any, through: str) -> None:
    columns = "a numeric, b numeric(20, 2), c numeric, d amount"
    tell(engine, "DROP TABLE IF EXISTS kinds", "DROP DOMAIN IF EXISTS amount", "CREATE DOMAIN amount AS numeric(20, 2)")
    tell(engine, f"CREATE TABLE kinds ({columns})")
    row = "CAST(9007199254740991 AS DOUBLE) AS a, CAST(1234567.25 AS FLOAT) AS b, DOUBLE('NaN') AS c, 1234567.25F AS d"
    put(spark.sql(f"SELECT {row}"), engine, "kinds", through=through)
    ((first, second, third, fourth),) = ask(engine, "SELECT * FROM kinds")
    assert (str(first), second, fourth) == ("9007199254740991", Decimal("1234567.25"), Decimal("1234567.25"))
    assert third.is_nan()
    tell(engine, "DROP TABLE kinds", "DROP DOMAIN amount")


@POSTGRES
@pytest.mark.parametrize("kind", ['"char"', "name", "name[]", "short"])
def test_types_that_cut_off_text_are_refused(engine: Engine, spark: Any, kind: str) -> None:
    drop = "DROP TABLE IF EXISTS kinds", "DROP DOMAIN IF EXISTS short"
    tell(engine, *drop, "CREATE DOMAIN short AS name", f"CREATE TABLE kinds (a {kind})")
    text = "repeat('ab', 40)"
    with pytest.raises(ConfigError, match="cuts off text in silence"):
        put(spark.sql(f"SELECT {f'array({text})' if '[]' in kind else text} AS a"), engine, "kinds")
    tell(engine, *drop)


@MARIADB
@pytest.mark.parametrize("through", ["driver", "executors"])
@pytest.mark.parametrize("value", ["NaN", "-Infinity"])
def test_mariadb_is_given_no_number_that_it_does_not_have(engine: Engine, spark: Any, value: str, through: str) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a double)")
    with pytest.raises(Exception, match="a has NaN or Infinity, which MariaDB and MySQL do not have"):
        put(spark.sql(f"SELECT DOUBLE('{value}') AS a"), engine, "kinds", through=through)
    assert ask(engine, "SELECT * FROM kinds") == []


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_is_given_no_value_that_it_makes_null(engine: Engine, spark: Any) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a real)")
    with pytest.raises(Exception, match="a has NaN, which SQLite would store as NULL"):
        put(spark.sql("SELECT DOUBLE('NaN') AS a"), engine, "kinds", through="auto")
    assert ask(engine, "SELECT * FROM kinds") == []
    put(spark.sql("SELECT 0.5D AS a"), engine, "kinds", through="auto")
    assert ask(engine, "SELECT * FROM kinds") == [(0.5,)]


@POSTGRES
def test_an_overwrite_leaves_the_tables_that_inherit_and_empties_partitions(engine: Engine, spark: Any) -> None:
    tell(
        engine,
        "DROP TABLE IF EXISTS kinds, years CASCADE",
        "CREATE TABLE kinds (a int)",
        "CREATE TABLE archived () INHERITS (kinds)",
        "CREATE TABLE years (a int) PARTITION BY LIST (a)",
        "CREATE TABLE year_7 PARTITION OF years DEFAULT",
        "ALTER TABLE years ADD UNIQUE (a), ADD COLUMN b int REFERENCES years (a) ON DELETE CASCADE",
        "INSERT INTO kinds VALUES (6)",
        "INSERT INTO archived VALUES (7)",
        "INSERT INTO years VALUES (7)",
    )
    for table in ("kinds", "years"):
        put(spark.sql("SELECT 1 AS a"), engine, table, **OVERWRITE)
    assert ask(engine, "SELECT a FROM kinds ORDER BY a") == [(1,), (7,)]
    assert ask(engine, "SELECT a FROM years") == [(1,)]
    tell(engine, "DROP TABLE archived, kinds, years")


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL"])
def test_an_overwrite_that_would_change_rows_of_another_table_is_refused(
    engine: Engine, spark: Any, action: str
) -> None:
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda each, _: each.execute("PRAGMA foreign_keys = ON"))
    key = f"FOREIGN KEY (parent) REFERENCES kinds (a) ON DELETE {action}"
    tell(
        engine,
        "DROP TABLE IF EXISTS children",
        "DROP TABLE IF EXISTS kinds",
        f"CREATE TABLE kinds (a int PRIMARY KEY, parent int, {key})",
        f"CREATE TABLE children (parent int, {key})",
        "INSERT INTO kinds VALUES (1, NULL)",
        "INSERT INTO children VALUES (1)",
    )
    with pytest.raises(ConfigError, match=f"changes rows of children, whose foreign key .* says ON DELETE {action}"):
        put(spark.sql("SELECT 1 AS a"), engine, "kinds", **OVERWRITE)
    assert ask(engine, "SELECT * FROM children") == [(1,)]
    tell(engine, "DROP TABLE children")
    put(spark.sql("SELECT 2 AS a"), engine, "kinds", **OVERWRITE)  # its key to itself is no other table's
    assert ask(engine, "SELECT a FROM kinds") == [(2,)]
    tell(engine, "DROP TABLE kinds")


@POSTGRES
def test_an_overwrite_of_a_view_or_of_partitions_finds_the_keys_behind_them(engine: Engine) -> None:
    tell(
        engine,
        "DROP TABLE IF EXISTS kinds, years, children CASCADE",
        "CREATE TABLE kinds (a int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT a FROM kinds",
        "CREATE VIEW seen_again AS SELECT a FROM seen WHERE a > 0",
        "CREATE TABLE years (a int PRIMARY KEY) PARTITION BY LIST (a)",
        "CREATE TABLE year_7 PARTITION OF years FOR VALUES IN (7)",
        "CREATE TABLE children (a int REFERENCES kinds ON DELETE CASCADE, b int REFERENCES years ON DELETE SET NULL)",
    )
    with engine.connect() as connection:
        for table in ("seen_again", "years", "year_7"):
            with pytest.raises(ConfigError, match="changes rows of children"):
                refuse_cascades(connection, table, table)
        refuse_cascades(connection, "children", "children")
    tell(engine, "DROP TABLE kinds, years, children CASCADE")


@pytest.mark.parametrize("database", [PG, MARIA], indirect=True)
def test_the_right_to_make_temporary_tables_is_named(engine: Engine, spark: Any) -> None:
    database, host = engine.url.database, "" if "postgres" in engine.dialect.name else "@'127.0.0.1'"
    role, of = f"temporary{host}", f"ON DATABASE {database}" if not host else f"ON {database}.*"
    identified = f"IDENTIFIED BY '{engine.url.password}'" if host else ""
    tell(engine, f"DROP USER IF EXISTS {role}", f"CREATE USER {role} {identified}")
    put(spark.sql("SELECT 0 AS epoch"), engine)  # which makes the tables of the fence
    if host:
        tell(engine, f"GRANT SELECT, INSERT, UPDATE, DELETE {of} TO {role}")
        url, right = engine.url.set(username="temporary"), "CREATE TEMPORARY TABLES ON `leases`"
    else:
        tell(engine, f"REVOKE TEMPORARY {of} FROM PUBLIC", f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        url, right = engine.url.set(username="temporary"), f'TEMPORARY ON DATABASE "{database}"'
    poor = create_engine(url, poolclass=NullPool)
    try:
        with pytest.raises(ConfigError, match=f"may not make temporary tables: GRANT {right}"):
            put(spark.sql("SELECT 1 AS epoch"), poor)
    finally:
        if not host:
            tell(engine, f"GRANT TEMPORARY {of} TO PUBLIC", f"DROP OWNED BY {role}")
        tell(engine, f"DROP USER {role}")
    assert rows(engine) == 1


@MARIADB
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_server_that_demands_primary_keys_is_written_to(flights: Engine, spark: Any, through: str) -> None:
    source = frame(spark, "('UA', 1, 10)")
    setting = "innodb_force_primary_key" if is_mariadb(flights) else "sql_require_primary_key"
    tell(flights, f"SET GLOBAL {setting} = 1")
    try:
        for how in (OVERWRITE, {"mode": "upsert", "keys": ["carrier", "flight"]}):
            put(source, flights, "flights", **how | {"through": through})
    finally:
        tell(flights, f"SET GLOBAL {setting} = 0")
    assert contents(flights) == [("UA", 1, 10, "none")]


@POSTGRES
def test_two_overwrites_take_turns(engine: Engine, spark: Any) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", "CREATE TABLE kinds (a int)")
    move = frames._plan(spark.sql("SELECT 1 AS a"), engine, "kinds", "overwrite", [])
    second = threading.Thread(target=put, args=(spark.sql("SELECT 2 AS a"), engine, "kinds"), kwargs=OVERWRITE)
    with engine.begin() as connection:
        frames_move.empty(connection, move)
        run(connection, "INSERT INTO kinds VALUES (1)")
        second.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'kinds'::regclass"
        until(lambda: ask(engine, waiting) == [(1,)])
    second.join(60)
    assert ask(engine, "SELECT a FROM kinds") == [(2,)]
    with pytest.raises(ConfigError, match="overwrite needs an engine with READ COMMITTED transactions"):
        put(
            spark.sql("SELECT 3 AS a"),
            engine.execution_options(isolation_level="REPEATABLE READ"),
            "kinds",
            **OVERWRITE,
        )
    tell(engine, "DROP TABLE kinds")


@MARIADB
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_a_value_that_is_too_long_is_refused_and_never_cut_off(engine: Engine, spark: Any, through: str) -> None:
    """MariaDB's INSERT … SELECT keeps the length modulo 65 536, also in strict mode."""
    kinds = {"t text": "utf8mb4", "tt tinytext": "utf8mb4", "t1 text": "latin1"}
    columns = ", ".join(f"{name} CHARACTER SET {kind}" for name, kind in kinds.items())
    tell(engine, "DROP TABLE IF EXISTS long_ones", f"CREATE TABLE long_ones ({columns}, b blob, tb tinyblob)")

    def write(values: str) -> int:
        return put(spark.sql(f"SELECT {values}"), engine, "long_ones", through=through)

    # As many bytes as fit; é is two of them in UTF-8, and one in latin1.
    write("repeat('é', 32767) t, repeat('a', 255) tt, repeat('é', 65535) t1, binary(repeat('b', 65535)) b")
    lengths = ", ".join(f"octet_length({name})" for name in ("t", "tt", "t1", "b"))
    assert ask(engine, f"SELECT {lengths} FROM long_ones") == [(65534, 255, 65535, 65535)]
    for value, says in {
        "repeat('é', 32768) t": "t is text, which takes 65535 bytes, and a value has 65536",
        "repeat('a', 300) tt": "tt is tinytext, which takes 255 bytes, and a value has 300",
        "repeat('a', 65536) b": "b is blob, which takes 65535 bytes, and a value has 65536",
        "binary(repeat('a', 300)) tb": "tb is tinyblob, which takes 255 bytes, and a value has 300",
        "binary(repeat('a', 70000)) t1": "t1 is text, which takes 65535 bytes, and a value has 70000",
        "named_struct('x', repeat('a', 66000)) t": "t is text, which takes 65535 bytes, and a value has 66008",
    }.items():
        with pytest.raises(ConfigError, match=says):
            write(value)
    with pytest.raises((ConfigError, DBAPIError)):  # the server makes other characters of it, and looks
        write("repeat('é', 65536) t1")
    assert len(ask(engine, "SELECT 1 FROM long_ones")) == 1
    tell(engine, "DROP TABLE long_ones")


OVERWRITE: dict[str, Any] = {"mode": "overwrite", "through": "driver"}
EQUAL = {
    "mariadb": ("datetime", "TIMESTAMP_NTZ'2026-11-20 12:00:00.1'", "TIMESTAMP_NTZ'2026-11-20 12:00:00.2'"),
    "sqlite": ("numeric", "'1.0'", "'1.00'"),
    "sqlite, letters": ("text COLLATE NOCASE", "'a'", "'A'"),
}
DIFFERENT = {
    "sqlite": ("date", "DATE'2026-11-20'", "DATE'2026-11-21'"),
    "sqlite, times": ("timestamp", "TIMESTAMP'2026-11-20 12:00:00'", "TIMESTAMP'2026-11-20 12:00:01'"),
    "mariadb": ("varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "'a'", "'A'"),
}


def of_kinds(kinds: dict[str, tuple[str, str, str]]) -> pytest.MarkDecorator:
    """Each on the database that its name begins with."""
    marks: dict[str, list[Any]] = {"mariadb": [pytest.mark.mariadb], "sqlite": []}
    found = [(name.split(",")[0], kind) for name, kind in kinds.items()]
    cases = [pytest.param(database, kind, marks=marks[database]) for database, kind in found]
    return pytest.mark.parametrize(("database", "kind"), cases, indirect=["database"])


def rows_of_kind(engine: Engine, spark: Any, kind: tuple[str, str, str]) -> Any:
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds (k {kind[0]} NOT NULL, v int, UNIQUE (k))")
    return spark.sql(f"SELECT {kind[1]} AS k, 1 AS v UNION ALL SELECT {kind[2]}, 2")


UPSERT: dict[str, Any] = {"table": "kinds", "mode": "upsert", "keys": ["k"], "through": "auto"}


@of_kinds(EQUAL)
def test_keys_that_are_equal_only_in_the_table_are_refused(
    engine: Engine, spark: Any, kind: tuple[str, str, str]
) -> None:
    """These databases update the row that they have just inserted, and say nothing."""
    source = rows_of_kind(engine, spark, kind)
    with pytest.raises(ConfigError, match=r"1 of 2 rows have a key \(k\) that another one has as well"):
        put(source, engine, **UPSERT)
    assert put(source.where("v = 1"), engine, **UPSERT) == 1
    tell(engine, "DROP TABLE kinds")


@of_kinds(DIFFERENT)
def test_keys_that_are_different_in_the_table_are_not_refused(
    engine: Engine, spark: Any, kind: tuple[str, str, str]
) -> None:
    source = rows_of_kind(engine, spark, kind)
    for _ in range(2):
        assert put(source, engine, **UPSERT) == 2
    assert sorted(ask(engine, "SELECT v FROM kinds")) == [(1,), (2,)]
    tell(engine, "DROP TABLE kinds")


@POSTGRES
@pytest.mark.parametrize("through", ["driver", "executors"])
def test_what_a_trigger_keeps_from_the_table_is_not_missing(engine: Engine, spark: Any, through: str) -> None:
    tell(
        engine,
        "CREATE OR REPLACE FUNCTION keep_out() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN IF NEW.epoch = 1 THEN RETURN NULL; END IF; RETURN NEW; END$$",
        "CREATE TRIGGER keep_out BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION keep_out()",
    )
    assert put(spark.range(3).selectExpr("id AS epoch"), engine, through=through) == 3
    assert sorted(ask(engine, "SELECT epoch FROM guarded")) == [(0,), (2,)]
    tell(engine, "DROP TRIGGER keep_out ON guarded", "DROP FUNCTION keep_out")


@MARIADB
def test_an_engine_that_connects_in_a_way_of_its_own_is_for_the_driver(engine: Engine, spark: Any) -> None:
    _, words = engine.dialect.create_connect_args(engine.url)
    own = create_engine(engine.url, creator=lambda: pymysql.connect(**words), poolclass=NullPool)
    source = spark.sql("SELECT 1 AS epoch")
    with pytest.raises(ConfigError, match=r'connects by a function of its own, .* through="driver"'):
        put(source, own)
    assert put(source, own, through="driver") == 1


@POSTGRES
def test_what_cannot_be_done_is_said(engine: Engine, spark: Any, tmp_path: Any) -> None:
    source = spark.sql("SELECT 1 AS epoch")
    other = create_engine(engine.url, isolation_level="AUTOCOMMIT")
    with pytest.raises(ConfigError, match="this engine is in autocommit"):
        put(source, other)
    other.dispose()
    with pytest.raises(ConfigError, match="SQLite has one writer"):
        put(source, create_engine(f"sqlite:///{tmp_path}/x.db"))
    with pytest.raises(ConfigError, match="has no counterpart here"):
        put(spark.sql("SELECT make_interval(1) AS epoch"), engine)
