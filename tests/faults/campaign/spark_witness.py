"""A Spark job that bears witness: tasks write lines, the driver commits to a Delta table.

spark-lease submit … -- … spark_witness.py FOLDER SITE TABLE
"""

from __future__ import annotations

import itertools
import os
import sys
import threading

from tests.faults.campaign.witness import Diary, begun, child, now


def main(folder: str, site: str, table: str) -> None:
    from pyspark.sql import SparkSession

    epoch = int(os.environ["SPARK_LEASE_EPOCH"])
    file, diary = begun(folder, site, epoch)
    spark = SparkSession.builder.getOrCreate()
    tasks = spark.sparkContext.parallelize([0, 1], 2)
    threading.Thread(target=lambda: tasks.foreach(lambda _: child(file, str(epoch))), daemon=True).start()
    commit_on(spark, table, diary, epoch)


def commit_on(spark, table: str, diary: Diary, epoch: int) -> None:  # type: ignore[no-untyped-def]
    for turn in itertools.count():
        n, since = epoch * 1000 + turn, now()
        rows = spark.range(1).selectExpr(f"{n} AS n")
        rows.write.format("delta").mode("append").option("userMetadata", f"{n} {epoch}").save(table)
        diary.add("write accepted", since=since, detail=str(n))


if __name__ == "__main__":
    main(*sys.argv[1:])
