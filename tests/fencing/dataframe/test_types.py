"""Whatever value Spark has, the table has the same: types of Spark × types of columns × ways, on values at random."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine

from spark_lease.errors import ConfigError
from tests.support.frames import EVERYWHERE, ask, put, session, tell

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]
ROWS = 25
# Nothing is made smaller, and nothing kept: an example costs a job of Spark's, and what failed is printed.
HOW = settings(
    max_examples=4,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as made:
        yield made


@dataclass(frozen=True)
class Pair:
    """Values of the type `spark` written into a column of the type `column`, and what is found there for each."""

    spark: str
    column: str
    values: st.SearchStrategy[Any]
    expected: Callable[[Any], Any] = lambda value: value
    read: str = "{0}"


PARIS, UTC = ZoneInfo("Europe/Paris"), dt.UTC  # the zone of the session's
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
BYTES = st.binary(max_size=20)
FLOATS, DOUBLES = st.floats(width=32), st.floats()
FINITE_FLOATS, FINITE = (st.floats(width=width, allow_nan=False, allow_infinity=False) for width in (32, 64))
DATES = st.dates(dt.date(1000, 1, 1))
WALL = st.datetimes(*map(dt.datetime.fromisoformat, ("1000-01-02", "9998-12-30"))).map(
    lambda each: each.replace(fold=0)
)
INSTANTS = WALL.map(lambda each: each.replace(tzinfo=UTC))
SECONDS = st.timedeltas(dt.timedelta(days=-100_000), dt.timedelta(days=100_000))
CLOCK = st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838))  # MariaDB's time


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda each: Decimal(each).scaleb(-scale, Context(prec=precision)))


def many(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, max_size=4)


def in_paris(instant: dt.datetime) -> dt.datetime:
    return instant.astimezone(PARIS).replace(tzinfo=None)


def from_paris(wall: dt.datetime) -> dt.datetime:
    return wall.replace(tzinfo=PARIS).astimezone(UTC)


def no_negative_zero(number: float) -> float:
    return number or 0.0


PAIRS = {
    "postgresql": [
        Pair("boolean", "boolean", st.booleans()),
        Pair("tinyint", "smallint", whole(8)),
        Pair("smallint", "integer", whole(16)),
        Pair("int", "integer", whole(32)),
        Pair("int", "numeric", whole(32)),
        Pair("bigint", "bigint", whole(64)),
        Pair("bigint", "numeric", whole(64)),
        Pair("float", "real", FLOATS),
        Pair("float", "double precision", FLOATS),
        Pair("float", "numeric", FLOATS),
        Pair("double", "double precision", DOUBLES),
        Pair("double", "numeric", DOUBLES),
        Pair("decimal(38, 18)", "numeric", decimals(38, 18)),
        Pair("decimal(10, 2)", "numeric(10, 2)", decimals(10, 2)),
        Pair("string", "text", TEXT),
        Pair("string", "varchar(20)", TEXT),
        Pair("binary", "bytea", BYTES),
        Pair("date", "date", DATES),
        Pair("timestamp", "timestamptz", INSTANTS),
        Pair("timestamp", "timestamp", INSTANTS, in_paris),
        Pair("timestamp_ntz", "timestamp", WALL),
        Pair("timestamp_ntz", "timestamptz", WALL, from_paris),
        Pair("interval day to second", "interval", SECONDS),
        Pair("array<bigint>", "bigint[]", many(whole(64))),
        Pair("array<double>", "double precision[]", many(FINITE)),
        Pair("array<float>", "numeric[]", many(FINITE_FLOATS)),
        Pair("array<decimal(20, 5)>", "numeric[]", many(decimals(20, 5))),
        Pair("array<string>", "text[]", many(TEXT)),
        Pair("array<binary>", "bytea[]", many(BYTES)),
        Pair("array<timestamp>", "timestamptz[]", many(INSTANTS)),
        Pair("map<string, bigint>", "json", st.dictionaries(TEXT, whole(64), max_size=3)),
        Pair("array<string>", "json", many(TEXT)),
    ],
    "mysql": [
        Pair("boolean", "boolean", st.booleans()),
        Pair("tinyint", "tinyint", whole(8)),
        Pair("smallint", "integer", whole(16)),
        Pair("int", "integer", whole(32)),
        Pair("bigint", "bigint", whole(64)),
        Pair("bigint", "decimal(20)", whole(64)),
        Pair("float", "float", FINITE_FLOATS, no_negative_zero, "{0} + 0e0"),
        Pair("float", "double", FINITE_FLOATS, no_negative_zero, "{0} + 0e0"),
        Pair("double", "double", FINITE, no_negative_zero, "{0} + 0e0"),
        Pair("decimal(38, 18)", "decimal(38, 18)", decimals(38, 18)),
        Pair("decimal(10, 2)", "decimal(10, 2)", decimals(10, 2)),
        Pair("string", "varchar(20) CHARACTER SET utf8mb4", TEXT),
        Pair("string", "longtext CHARACTER SET utf8mb4", TEXT),
        Pair("binary", "varbinary(20)", BYTES),
        Pair("binary", "longblob", BYTES),
        Pair("date", "date", DATES),
        Pair("timestamp", "datetime(6)", INSTANTS, in_paris),
        Pair("timestamp_ntz", "datetime(6)", WALL),
        Pair("interval day to second", "time(6)", CLOCK),
        Pair("map<string, bigint>", "json", st.dictionaries(TEXT, whole(64), max_size=3), read="CAST({0} AS CHAR)"),
    ],
    "sqlite": [
        Pair("boolean", "boolean", st.booleans()),
        Pair("int", "integer", whole(32)),
        Pair("bigint", "integer", whole(64)),
        Pair("bigint", "numeric", whole(64)),
        Pair("float", "real", st.floats(width=32, allow_nan=False), no_negative_zero),
        Pair("double", "real", st.floats(allow_nan=False), no_negative_zero),
        Pair("decimal(38, 18)", "text", decimals(38, 18), lambda each: f"{each:f}"),
        Pair("decimal(15, 2)", "numeric", decimals(15, 2)),
        Pair("string", "text", TEXT),
        Pair("binary", "blob", BYTES),
        Pair("date", "date", DATES, str),
        Pair("timestamp", "datetime", INSTANTS, lambda each: in_paris(each).isoformat(" ", "microseconds")),
        Pair("timestamp_ntz", "datetime", WALL, lambda each: each.isoformat(" ", "microseconds")),
    ],
}


def same(found: Any, wanted: Any, pair: Pair) -> bool:
    """The same value; of what is a binary number on both sides, bit by bit."""
    if isinstance(found, list):
        return len(found) == len(wanted) and all(map(lambda a, b: same(a, b, pair), found, wanted))
    if found is None or wanted is None:
        return found is wanted
    if isinstance(wanted, (bytes, dict)):
        return bool(
            (json.loads(found) if isinstance(found, str) else bytes(found) if isinstance(wanted, bytes) else found)
            == wanted
        )
    if not isinstance(wanted, float):
        return bool(Decimal(str(found)) == wanted if isinstance(wanted, Decimal) else found == wanted)
    if math.isnan(wanted):
        return math.isnan(found)
    bits = "f" if pair.column in ("real", "float", "numeric[]") or pair.spark == "float" else "d"
    if isinstance(found, Decimal):
        return struct.pack(bits, found + 0) == struct.pack(bits, wanted + 0.0)
    return struct.pack(bits, found) == struct.pack(bits, wanted)


@EVERYWHERE
def test_a_value_that_arrives_is_the_value_that_spark_has(engine: Engine, spark: Any, through: str) -> None:
    pairs = PAIRS["mysql" if engine.dialect.name == "mariadb" else engine.dialect.name]
    columns = ", ".join(f"k{number} {pair.column}" for number, pair in enumerate(pairs))
    schema = ", ".join(f"k{number} {pair.spark}" for number, pair in enumerate(pairs))
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds (n integer, {columns})")
    reads = ", ".join(pair.read.format(f"k{number}") for number, pair in enumerate(pairs))
    row = st.tuples(*(pair.values for pair in pairs))
    table = st.lists(row | st.just((None,) * len(pairs)), min_size=ROWS, max_size=ROWS)

    @HOW
    @given(table)
    def each_arrives(rows: list[tuple[Any, ...]]) -> None:
        numbered = [(number, *row) for number, row in enumerate(rows)]
        put(spark.createDataFrame(numbered, f"n int, {schema}"), engine, "kinds", mode="overwrite", through=through)
        found = ask(engine, f"SELECT {reads} FROM kinds ORDER BY n")
        assert len(found) == len(rows)
        for written, there in zip(rows, found, strict=True):
            for pair, value, at in zip(pairs, written, there, strict=True):
                wanted = None if value is None else pair.expected(value)
                assert same(at, wanted, pair), f"{pair.spark} into {pair.column}: {value!r} became {at!r}"

    each_arrives()
    tell(engine, "DROP TABLE kinds")


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("column", "is_refused"), [("numeric", True), ("real", True), ("text", False), ("", False)])
def test_sqlite_is_given_no_decimal_whose_digits_it_drops(
    engine: Engine, spark: Any, column: str, is_refused: bool
) -> None:
    tell(engine, "DROP TABLE IF EXISTS kinds", f"CREATE TABLE kinds (a {column})")
    made = spark.sql("SELECT 12345678901234567.89BD AS a")
    if is_refused:
        with pytest.raises(ConfigError, match=r"SQLite keeps 15 digits .*make it that"):
            put(made, engine, "kinds", through="auto")
    else:
        put(made, engine, "kinds", through="auto")
        assert ask(engine, "SELECT a FROM kinds") == [("12345678901234567.89",)]
