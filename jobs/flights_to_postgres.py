"""All flights of 2013 into a PostgreSQL table, all or nothing, as often as you start it:

    spark-lease submit --lease flights -- jobs/flights_to_postgres.py --postgres postgresql+psycopg2://etl@db/warehouse

An ordinary PySpark script but for one line, `lease.write_sql`. It needs no JDBC jar. While it works readers see the
rows of before, and a former master that comes late writes none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import sqlalchemy as sa
from pyspark.sql import DataFrame, SparkSession

from jobs.flights_daily import unpack
from spark_lease import current_lease

SPARK = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, sched_arr_time INT,
    arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time DOUBLE,
    distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP
"""
POSTGRES = SPARK.replace("DOUBLE", "double precision").replace("STRING", "text").replace("TIMESTAMP", "timestamptz")


def main() -> None:
    arguments = parse()
    lease = current_lease()
    if lease is None:
        sys.exit("flights_to_postgres writes a shared table: start it with `spark-lease submit --lease flights -- …`")
    spark = SparkSession.builder.appName("flights_to_postgres").getOrCreate()
    engine = sa.create_engine(arguments.postgres)
    with lease.fenced_sql(engine) as connection:
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS flights ({POSTGRES})")
    rows = lease.write_sql(read(spark, unpack(Path(arguments.input))), engine, "flights", mode="overwrite")
    print(f"flights: {rows} rows written", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The flights of 2013 into the table flights of a PostgreSQL database.")
    parser.add_argument("--postgres", metavar="URL", required=True, help="postgresql+psycopg2://user@host/database")
    parser.add_argument("--input", default="out/input", help="folder to unpack the flights into")
    return parser.parse_args()


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """The flights as they are in the file; NA is none."""
    return spark.read.schema(SPARK).csv(str((folder / "flights.csv").absolute()), header=True, nullValue="NA")


if __name__ == "__main__":
    main()
