"""What the tests of DataFrames into SQL share: a session of Spark, tables of their own, a write under an epoch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from spark_lease.fencing.dataframe.target import run
from spark_lease.fencing.dataframe.writer import write_sql
from tests.support.drivers import until
from tests.support.holders import Holder

NAME = "nightly"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "Europe/Paris",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def session() -> Iterator[Any]:
    """Two tasks at once, each may fail twice."""
    from pyspark.sql import SparkSession

    made = SparkSession.builder.master("local[2, 3]").config(map=CONF).getOrCreate()
    yield made
    made.stop()


def put(frame: Any, engine: Engine, table: str = "guarded", **how: Any) -> int:
    lease = how.pop("lease", None) or Holder(NAME, 5)
    return write_sql(lease, frame, engine, table, **{"mode": "append", "keys": (), "through": "executors"} | how)


def ask(engine: Engine, statement: str) -> list[tuple[Any, ...]]:
    with engine.connect() as connection:
        return [tuple(each) for each in run(connection, statement)]


def tell(engine: Engine, *statements: str) -> None:
    with engine.begin() as connection:
        for statement in statements:
            run(connection, statement)


def staged(engine: Engine) -> list[str]:
    """The staging tables that are there."""
    names = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'spark_lease_%'"
    return [name for (name,) in ask(engine, names) if re.fullmatch(r"spark_lease_[0-9a-f]{16}_\d+_\w+", name)]


def meeting(folder: Path, *, tries: int = 1, parts: int = 9) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """For mapInArrow: the first `tries` of `parts` tasks say that they are there, and go on when they are told to.

    `there-PARTITION-ATTEMPT` is what they say, `go` is what they are told.
    """
    place = str(folder)

    def meet(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        task = TaskContext.get()
        Path(place, f"there-{task.partitionId()}-{task.attemptNumber()}").touch()
        waits = task.attemptNumber() < tries and task.partitionId() < parts
        while waits and not Path(place, "go").exists():
            time.sleep(0.01)
        yield from batches

    return meet


def there(folder: Path, words: str = "there-*") -> list[Path]:
    """Waits until somebody has said so."""
    found: list[Path] = until(lambda: list(folder.glob(words)), timeout=60)
    return found


EVERYWHERE = pytest.mark.parametrize(
    ("database", "through"),
    [
        pytest.param("postgresql", "executors", marks=pytest.mark.postgres),
        pytest.param("postgresql", "driver", marks=pytest.mark.postgres),
        pytest.param("psycopg", "executors", marks=pytest.mark.postgres),
        pytest.param("psycopg", "driver", marks=pytest.mark.postgres),
        pytest.param("mariadb", "executors", marks=pytest.mark.mariadb),
        pytest.param("mariadb", "driver", marks=pytest.mark.mariadb),
        pytest.param("sqlite", "auto"),
    ],
    indirect=["database"],
)
