"""A Spark job that bears witness: tasks write lines, the driver commits to a Delta table, and to the database if any.

spark-lease submit … -- … spark_witness.py FOLDER SITE TABLE [URL]
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from sqlalchemy import create_engine

from spark_lease import current_lease
from tests.faults.campaign.witness import Diary, begun, child, now


def main(folder: str, site: str, table: str, url: str = "") -> None:
    from pyspark.sql import SparkSession

    epoch = int(os.environ["SPARK_LEASE_EPOCH"])
    file, diary = begun(folder, site, epoch)
    spark = SparkSession.builder.getOrCreate()
    tasks = spark.sparkContext.parallelize([0, 1], 2)
    threading.Thread(target=lambda: tasks.foreach(lambda _: child(file, str(epoch))), daemon=True).start()
    commit_on(spark, table, url, diary, epoch)


def commit_on(spark, table: str, url: str, diary: Diary, epoch: int) -> None:  # type: ignore[no-untyped-def]
    lease, engine = current_lease(), create_engine(url) if url else None
    assert lease
    ways = ("driver",) if url.startswith("sqlite") else ("driver", "executors")
    for turn in itertools.count():
        n, since = epoch * 1000 + turn, now()
        rows = spark.range(1).selectExpr(f"{n} AS n")
        rows.write.format("delta").mode("append").option("userMetadata", f"{n} {epoch}").save(table)
        if engine:
            row = spark.range(1).selectExpr(f"{epoch} AS epoch", f"'{n}' AS run")
            lease.write_sql(row, engine, "witness", through=ways[turn % len(ways)])
        diary.add("write accepted", since=since, detail=str(n))  # in both


if __name__ == "__main__":
    main(*sys.argv[1:])
