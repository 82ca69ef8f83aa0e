"""The job of `spark-lease demo`, as a user would write one: it computes a number per step and writes each step once."""

import sys
import threading
from pathlib import Path

from pyspark.sql import SparkSession
from sqlalchemy import create_engine, text

from spark_lease.clock import wall_time
from spark_lease.guard.held import current_lease

PACE = 0.4
"""Seconds between two steps, slow enough to be watched."""
LAST = text("SELECT coalesce(max(step), 0) FROM written")
WRITE = text("INSERT INTO written (step, total, epoch, holder, at) VALUES (:step, :total, :epoch, :holder, :at)")


def main(database: str, enough: str) -> None:
    """Write steps to the SQLite file `database` until there is a file `enough`."""
    lease = current_lease()
    if lease is None:
        raise SystemExit("this is the job of spark-lease demo, which submits it under a lease")
    engine, pause = create_engine(f"sqlite:///{database}"), threading.Event()
    spark = SparkSession.builder.getOrCreate()
    with engine.connect() as connection:
        step = int(connection.execute(LAST).scalar_one()) + 1
    while not Path(enough).exists():
        total = spark.range(1000 * step).groupBy().sum("id").collect()[0][0]
        row = {"step": step, "total": total, "epoch": lease.epoch, "holder": lease.holder, "at": wall_time()}
        with lease.fenced_sql(engine) as connection:  # refuses what a former master still sends
            connection.execute(WRITE, row)
        print(f"demo: wrote step {step}", flush=True)
        step += 1
        pause.wait(PACE)


if __name__ == "__main__":
    main(*sys.argv[1:])
