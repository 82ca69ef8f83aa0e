"""Flights that arrive as files, a day in each, summed up into a Delta table and, if asked, a PostgreSQL table.

    spark-lease submit --lease flights -- $(python -m jobs.jars --options) jobs/flights_stream.py --arriving FOLDER

Start it as often as you like, on one checkpoint: it writes once, and the next master goes on where it was. A batch
that a crash repeats is told apart by its number: Delta skips what it has (txnAppId, txnVersion), and in PostgreSQL the
rows of a day replace themselves, in a transaction that commits only under the newest epoch. That is right where
each batch has whole days, as here each file has one.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_lease import current_lease

COLUMNS = "year INT, month INT, day INT, carrier STRING, dep_delay DOUBLE"
STREAM = "flights_stream"
DAILY = sa.Table(
    "flights_daily_by_carrier",
    sa.MetaData(),
    sa.Column("day", sa.Date, primary_key=True),
    sa.Column("carrier", sa.String(2), primary_key=True),
    sa.Column("flights", sa.BigInteger, nullable=False),
    sa.Column("mean_dep_delay", sa.Double),
)

_TWO_QUERIES = ("Multiple streaming jobs detected", "Multiple streaming queries are concurrently using")


def main() -> None:
    arguments = parse()
    spark = SparkSession.builder.appName(STREAM).getOrCreate()
    folder = Path(arguments.arriving).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    engine = sa.create_engine(arguments.postgres) if arguments.postgres else None

    def write(batch: DataFrame, number: int) -> None:
        daily = sums(batch).cache()
        append(daily, str(Path(arguments.table).absolute()), number)
        if engine is not None:
            replace(engine, daily)
        say(number, daily)

    files = (
        spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", "1").csv(str(folder), header=True, nullValue="NA")
    )
    stream = files.writeStream.foreachBatch(write).option(
        "checkpointLocation", str(Path(arguments.checkpoint).absolute())
    )
    while True:
        try:
            stream.trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            # A master before this one that was frozen writes its last entry into the checkpoint when it thaws; what it
            # wrote to the tables was complete, or was refused. Then we go on behind that entry, and it has ended.
            if not any(each in str(error) for each in _TWO_QUERIES):
                raise
            print("flights: the checkpoint has an entry of another query, going on behind it", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Daily sums of the flights that arrive, until there are no more.")
    parser.add_argument("--arriving", default="out/arriving", help="folder in which a file of each day arrives")
    parser.add_argument("--table", default="out/flights_by_carrier", help="folder of the Delta table")
    parser.add_argument("--checkpoint", default="out/flights_checkpoint", help="folder that both submissions share")
    parser.add_argument("--postgres", metavar="URL", help="database to write to as well: postgresql+psycopg2://…")
    return parser.parse_args()


def sums(flights: DataFrame) -> DataFrame:
    """One row for each day and carrier."""
    day = F.make_date("year", "month", "day").alias("day")
    counts = [F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_dep_delay")]
    return flights.groupBy(day, "carrier").agg(*counts).coalesce(1)


def append(rows: DataFrame, table: str, batch: int) -> None:
    once = {"txnAppId": STREAM, "txnVersion": str(batch)}
    rows.write.format("delta").mode("append").options(**once).save(table)


def replace(engine: sa.Engine, rows: DataFrame) -> None:
    lease = current_lease()
    assert lease, "start it under spark-lease"
    found: list[dict[str, Any]] = [row.asDict() for row in rows.collect()]
    with lease.fenced_sql(engine) as connection:
        connection.execute(sa.delete(DAILY).where(DAILY.c.day.in_({row["day"] for row in found})))
        connection.execute(sa.insert(DAILY), found)


def say(batch: int, rows: DataFrame) -> None:
    for (day,) in rows.select("day").distinct().collect():
        print(f"flights: batch {batch}, {day} written", flush=True)


if __name__ == "__main__":
    main()
