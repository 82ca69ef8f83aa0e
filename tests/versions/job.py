"""What people do with Spark, under a lease: `job.py FOLDER MODE POSTGRES DELTA`; submitted by `tests.versions`.

MODE `work` does everything and ends; `wait` says that it is there and waits to be killed; `zombie` does everything,
waits until another has claimed its tables, and writes once more.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from spark_lease import current_lease

folder, mode, postgres, has_delta = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "delta"
lease = current_lease()
spark = SparkSession.builder.appName(mode).getOrCreate()
table = str(folder / "table")


def say(*words: object) -> None:
    print(*words, flush=True)


def append(rows: int) -> None:
    frame = spark.range(rows).selectExpr("id", f"{lease.epoch}L AS epoch")
    frame.write.format("delta").mode("append").save(table)


def delta() -> None:
    from delta.tables import DeltaTable

    append(3)
    there, new = (
        DeltaTable.forPath(spark, table).alias("t"),
        spark.range(2, 5).selectExpr("id", "0L AS epoch").alias("n"),
    )
    there.merge(new, "t.id = n.id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    spark.sql(f"UPDATE delta.`{table}` SET epoch = {lease.epoch} WHERE id = 4")
    spark.sql(f"OPTIMIZE delta.`{table}`")
    stream = spark.readStream.format("delta").load(table).writeStream.format("delta")
    stream = stream.option("checkpointLocation", str(folder / f"checkpoint-{mode}"))
    stream.trigger(availableNow=True).start(str(folder / f"copy-{mode}")).awaitTermination()
    say("delta rows", spark.read.format("delta").load(table).count())


def sql() -> None:
    engine = create_engine(postgres.replace("postgresql://", "postgresql+psycopg2://"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS written (id bigint, epoch bigint)"))
    frame = spark.range(4).selectExpr("id", f"{lease.epoch}L AS epoch")
    written = [
        lease.write_sql(frame, engine, "public.written", mode="append", through=way) for way in ("driver", "executors")
    ]
    say("sql rows", *written)


say("jobs", spark.range(5).count())
if mode == "wait":
    say("ready")
    time.sleep(120)
if has_delta:
    delta()
sql()
say("fences", lease.fences)
if mode == "zombie":
    say("ready")
    until = time.monotonic() + 60
    while not (folder / "claimed").exists() and time.monotonic() < until:
        time.sleep(0.05)
    append(1)
    say("written by a zombie")
