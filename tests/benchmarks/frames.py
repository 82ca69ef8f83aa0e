"""What `write_sql` takes for all flights of 2013 into PostgreSQL, against Spark's JDBC append of the same DataFrame.

    python -m tests.benchmarks.frames [ROUNDS]

One warm session with two cores; all ways take turns in an order of chance, each into a new table, after a CHECKPOINT:
the server goes on writing for seconds what the one before it left. The JDBC driver is fetched for this alone.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine

from jobs.flights_daily import unpack
from jobs.flights_to_postgres import POSTGRES, read
from jobs.jars import JDBC
from spark_lease.fencing.dataframe.writer import write_sql
from tests.benchmarks.table import report
from tests.services.postgres import own_postgres
from tests.support.holders import Holder

FLIGHTS = 336_776
LEASE = Holder("flights", 5)
WARM_UP = 2
LIMITS = {"executors": 0.6, "driver": 0.5}


def session() -> Any:
    from pyspark.sql import SparkSession

    conf = {"spark.jars": str(next(JDBC.glob("*.jar"))), "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    conf |= {"spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
    return SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()


def ways(flights: Any, engine: Engine) -> dict[str, Callable[[str], Any]]:
    """Each appends all flights to a table."""
    url = f"jdbc:postgresql://{engine.url.host}:{engine.url.port}/{engine.url.database}?user={engine.url.username}"

    def write(through: str) -> Callable[[str], Any]:
        return lambda table: write_sql(LEASE, flights, engine, table, mode="append", keys=(), through=through)

    def jdbc(table: str) -> None:
        flights.write.option("driver", "org.postgresql.Driver").jdbc(url, table, mode="append")

    return {"JDBC": jdbc, "executors": write("executors"), "driver": write("driver")}


def settle(engine: Engine) -> None:
    """What the way before has left for the server to write is not to be waited for by the next one."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("CHECKPOINT")


def measure(engine: Engine, steps: dict[str, Callable[[str], Any]], rounds: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + WARM_UP):
        for name in random.sample(list(steps), len(steps)):
            with engine.begin() as connection:
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS flights; CREATE TABLE flights ({POSTGRES})")
            settle(engine)
            begun = time.perf_counter()
            steps[name]("flights")
            seconds = time.perf_counter() - begun
            with engine.begin() as connection:
                assert connection.exec_driver_sql("SELECT count(*) FROM flights").scalar() == FLIGHTS
            if turn >= WARM_UP:
                took[name].append(seconds)
                print(f"round {turn - WARM_UP + 1}: {name} {seconds:.2f} s", file=sys.stderr, flush=True)
    return took


def main(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as name, own_postgres() as server:
        spark = session()
        engine = create_engine(server.url.replace("://", "+psycopg2://"))
        flights = read(spark, unpack(Path(name))).repartition(2).cache()
        assert flights.count() == FLIGHTS
        took = measure(engine, ways(flights, engine), rounds)
        spark.stop()
    base = statistics.median(took.pop("JDBC"))
    rows = [
        (f"write_sql, {name} / JDBC", statistics.median(found) / base, LIMITS[name], f"x of {base:.2f} s")
        for name, found in took.items()
    ]
    return report(f"{FLIGHTS} FLIGHTS, {rounds} ROUNDS", rows)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
