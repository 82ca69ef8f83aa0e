"""DataFrames into SQL, and what goes wrong: no row is doubled, none is lost, none lands under an old epoch."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.pool import NullPool

from spark_lease.errors import ConfigError, Fenced, Loss, StagingLost
from spark_lease.fencing.sql.claim import claim
from tests.services.postgres import own_postgres
from tests.services.proxy import Proxy
from tests.support.drivers import Driver, command_line, until
from tests.support.frames import ask, meeting, put, session, staged, tell, there
from tests.support.guarded import engine_for, rows
from tests.support.holders import Holder

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]
NAME = "nightly"
POSTGRES = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
BOTH = pytest.mark.parametrize("through", ["executors", "driver"])
ALL = pytest.mark.parametrize(
    "database", ["postgresql", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with session() as made:
        yield made


@dataclass
class Watched(Holder):
    """Calls `then` when the executors have done their part: that is when the lease is asked next."""

    then: Callable[[], object] = lambda: None

    def check(self) -> int:
        self.then()
        return Holder.check(self)

    def wait_certain(self, timeout: float = 0.0) -> int:
        return Holder.check(self)


def numbers(spark: Any, many: int = 2000, parts: int = 2) -> Any:
    return spark.range(0, many, 1, parts).selectExpr("id AS epoch")


def is_whole(engine: Engine, many: int = 2000) -> bool:
    return ask(engine, "SELECT count(*), count(DISTINCT epoch) FROM guarded") == [(many, many)]


def fails_at_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() < 2:  # type: ignore[union-attr]
        raise OSError("the disk is gone")


# -- tries of tasks


@ALL
def test_a_task_that_fails_and_is_tried_again_doubles_nothing(engine: Engine, spark: Any) -> None:
    assert put(numbers(spark).mapInArrow(fails_at_the_end, "epoch bigint"), engine) == 2000
    assert is_whole(engine) and (engine.dialect.name != "postgresql" or staged(engine) == [])


@POSTGRES
def test_the_same_failures_double_rows_that_tasks_write_themselves(engine: Engine, spark: Any) -> None:
    url = engine.url.render_as_string(hide_password=False)

    def write(values: Iterator[Any]) -> None:
        from pyspark import TaskContext
        from sqlalchemy import create_engine

        with create_engine(url).begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO guarded (epoch) VALUES (%(epoch)s)", [{"epoch": v[0]} for v in values]
            )
        if TaskContext.get().attemptNumber() < 1:  # type: ignore[union-attr]
            raise OSError("the answer is lost")

    numbers(spark, 20).foreachPartition(write)
    assert rows(engine) == 40


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
def test_a_task_whose_commit_is_cut_off_is_tried_again_and_doubles_nothing(
    spark: Any, proxy: Proxy, pg_url: str, tmp_path: Path, cut: str
) -> None:
    engine = engine_for(proxy.url, poolclass=NullPool)
    tell(engine, "DROP TABLE IF EXISTS guarded", "CREATE TABLE guarded (epoch bigint)")
    frame = numbers(spark, parts=1).mapInArrow(meeting(tmp_path), "epoch bigint")
    writing = Writing(frame, engine)
    there(tmp_path)
    getattr(proxy, cut)(b"COMMIT")
    (tmp_path / "go").touch()
    assert writing.result() == 2000
    assert proxy.cuts == 1 and there(tmp_path, "there-0-1")
    assert is_whole(engine)
    tell(engine, "DROP TABLE guarded")


class Writing:
    """A write on a thread of its own."""

    def __init__(self, frame: Any, engine: Engine, **how: Any) -> None:
        self._ends: list[Any] = []
        self._thread = threading.Thread(target=self._work, args=(frame, engine), kwargs=how, daemon=True)
        self._thread.start()

    def _work(self, frame: Any, engine: Engine, **how: Any) -> None:
        try:
            self._ends.append(put(frame, engine, **how))
        except Exception as error:
            self._ends.append(error)

    def result(self) -> Any:
        """What it returned; raises what it raised."""
        self._thread.join(90)
        (end,) = self._ends
        if isinstance(end, Exception):
            raise end
        return end


# -- rows that the driver writes while others are still computed


@POSTGRES
def test_what_spark_raises_amid_the_rows_is_raised_and_nothing_is_written(engine: Engine, spark: Any) -> None:
    def breaks(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        if TaskContext.get().partitionId():  # type: ignore[union-attr]
            raise OSError("the disk is gone")

    put(numbers(spark, 7), engine, through="driver")
    for mode, frame in (("append", numbers(spark)), ("overwrite", numbers(spark)), ("overwrite", numbers(spark, 2))):
        with pytest.raises(Exception, match="the disk is gone"):
            put(frame.mapInArrow(breaks, "epoch bigint"), engine, mode=mode, through="driver")
        assert rows(engine) == 7


@POSTGRES
def test_a_job_that_is_cancelled_amid_the_rows_has_written_nothing(engine: Engine, spark: Any, tmp_path: Path) -> None:
    put(numbers(spark, 7), engine)
    writing = Writing(
        numbers(spark).mapInArrow(meeting(tmp_path, parts=1), "epoch bigint"),
        engine,
        mode="overwrite",
        through="driver",
    )
    there(tmp_path, "there-1-*")
    spark.sparkContext.cancelAllJobs()
    with pytest.raises(Exception, match="cancelled"):
        writing.result()
    assert rows(engine) == 7


IDLE = "idle_in_transaction_session_timeout"


@POSTGRES
def test_spark_may_take_longer_than_the_database_lets_a_transaction_idle(
    engine: Engine, spark: Any, pg_url: str, tmp_path: Path
) -> None:
    hasty = engine_for(pg_url, connect_args={"options": f"-c {IDLE}=1s"}, poolclass=NullPool)
    assert ask(hasty, f"SHOW {IDLE}") == [("1s",)]
    place = str(tmp_path)

    def halts(batches: Iterator[Any]) -> Iterator[Any]:
        import time
        from pathlib import Path

        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            while number > 3 and TaskContext.get().partitionId() and not Path(place, "go").exists():  # type: ignore[union-attr]
                time.sleep(0.01)
            yield batch

    many = 200_000
    writing = Writing(numbers(spark, many).mapInArrow(halts, "epoch bigint"), hasty, through="executors")
    waits = "state = 'idle in transaction' AND clock_timestamp() - state_change > interval '2s'"
    until(lambda: ask(engine, f"SELECT pid FROM pg_stat_activity WHERE {waits}"), timeout=60)
    (tmp_path / "go").touch()
    assert writing.result() == many and is_whole(engine, many)
    hasty.dispose()


# -- masters that are late


@pytest.mark.shows("P4")
@POSTGRES
@BOTH
def test_a_claim_while_rows_are_computed_fences_the_write(
    engine: Engine, spark: Any, tmp_path: Path, through: str
) -> None:
    lease = Holder(NAME, 5)
    writing = Writing(
        numbers(spark).mapInArrow(meeting(tmp_path), "epoch bigint"), engine, through=through, lease=lease
    )
    there(tmp_path)
    claim(Holder(NAME, 6), engine)
    (tmp_path / "go").touch()
    with pytest.raises(Fenced, match="claimed under epoch 6 and mine is 5"):
        writing.result()
    assert (rows(engine), lease.lost) == (0, [Loss.FENCED])


@ALL
def test_a_claim_between_the_executors_and_the_move_fences_it(engine: Engine, spark: Any) -> None:
    lease = Watched(NAME, 5)
    put(numbers(spark, 1), engine, lease=lease)
    lease.then = lambda: claim(Holder(NAME, 6), engine)
    with pytest.raises(Fenced):
        put(numbers(spark), engine, lease=lease)
    assert rows(engine) == 1


@pytest.mark.shows("P4")
@POSTGRES
def test_without_the_fence_the_same_rows_land(engine: Engine, spark: Any) -> None:
    put(numbers(spark, 1), engine, lease=Holder(NAME, 6))
    put(numbers(spark), engine, lease=Holder(NAME, 0))  # enabled = false
    assert rows(engine) == 2001


DIES = """
import sys
sys.path.insert(0, os.environ["TEST_ROOT"])
from tests.support.guarded import engine_for
from tests.support.frames import put
from tests.fencing.dataframe.test_faults import endless
spark = session()
say("begins")
frame = spark.range(0, 2, 1, 2).selectExpr("id AS epoch").mapInArrow(endless, "epoch bigint")
put(frame, engine_for(os.environ["TEST_URL"]))
"""


def endless(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        while True:
            yield batch


def send(number: int, pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@POSTGRES
def test_tasks_that_outlive_their_driver_change_nothing_and_are_swept(
    engine: Engine, database: str, spark: Any, start: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_ROOT", str(Path(__file__).parents[3]))
    driver = start(DIES, database)
    copying = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'spark_lease/5/%' AND query LIKE 'COPY %'"
    until(lambda: len(ask(engine, copying)) == 2, timeout=90)
    workers = [each.pid for each in driver.tree() if "pyspark.daemon" in command_line(each.pid)]
    send(signal.SIGSTOP, workers)
    send(signal.SIGKILL, [each.pid for each in driver.tree() if each.pid not in workers])
    assert len(staged(engine)) == 1
    assert put(numbers(spark), engine, lease=Holder(NAME, 6)) == 2000
    assert (is_whole(engine), staged(engine), ask(engine, copying)) == (True, [], [])
    send(signal.SIGCONT, workers)
    until(lambda: not [pid for pid in workers if command_line(pid)], timeout=60)
    assert is_whole(engine)


@POSTGRES
def test_staging_of_others_and_of_what_is_under_way_is_left_alone(engine: Engine, spark: Any, tmp_path: Path) -> None:
    writing = Writing(numbers(spark, parts=1).mapInArrow(meeting(tmp_path), "epoch bigint"), engine)
    there(tmp_path)
    mine = staged(engine)
    alike = mine[0].rpartition("_")[0]
    tables = [alike.replace("_5", "_4") + "_00000000", alike.replace("_5", "_9") + "_00000000", alike + "_0000000x"]
    tables.append("spark_lease_" + "0" * 16 + "_4_00000000")
    tell(engine, *(f"CREATE TABLE {name} (a int)" for name in tables))
    put(numbers(spark, 10), engine)
    assert sorted(staged(engine)) == sorted(mine + tables[1:])
    (tmp_path / "go").touch()
    assert writing.result() == 2000
    tell(engine, *(f"DROP TABLE {name}" for name in tables[1:]))


# -- the server


def test_a_server_that_crashes_and_has_emptied_the_staging_is_noticed(spark: Any) -> None:
    with own_postgres() as server:
        engine = engine_for(server.url, poolclass=NullPool)
        tell(engine, "CREATE TABLE guarded (epoch bigint)")
        lease = Watched(NAME, 5)

        def crash() -> None:
            lease.then = lambda: None
            server.stop(signal.SIGQUIT)
            server.start()

        put(numbers(spark, 1), engine, lease=lease)
        lease.then = crash
        with pytest.raises(StagingLost, match="the server has crashed since"):
            put(numbers(spark), engine, lease=lease)
        assert rows(engine) == 1
        assert put(numbers(spark), engine, lease=lease) == 2000
        assert (rows(engine), staged(engine)) == (2001, [])


@POSTGRES
def test_staging_that_was_emptied_and_filled_again_is_noticed(engine: Engine, spark: Any) -> None:
    """As by a crash amid a job, after which others may have the numbers of transactions that nobody remembers."""

    def crash() -> None:
        for name in staged(engine):
            tell(engine, f"DELETE FROM {name} WHERE c0 IS NULL")

    with pytest.raises(StagingLost, match="the server has crashed since"):
        put(numbers(spark), engine, lease=Watched(NAME, 5, then=crash))
    assert rows(engine) == 0


def test_no_password_is_in_what_a_failing_task_says(spark: Any, tmp_path: Path, caplog: Any) -> None:
    with own_postgres() as server:
        owner = engine_for(server.url)
        tell(owner, "CREATE ROLE etl LOGIN PASSWORD 'hunter2hunter2'", "CREATE TABLE guarded (epoch bigint)")
        tell(owner, "GRANT ALL ON SCHEMA public TO etl", "GRANT ALL ON guarded TO etl")
        engine = engine_for(server.url.replace("postgres@", "etl:hunter2hunter2@"))
        writing = Writing(numbers(spark).mapInArrow(meeting(tmp_path), "epoch bigint"), engine)
        there(tmp_path)
        tell(owner, "ALTER ROLE etl NOLOGIN")
        (tmp_path / "go").touch()
        with pytest.raises(Exception, match="not permitted to log in") as raised:
            writing.result()
        assert "hunter2" not in f"{raised.value!r} {raised.value} {caplog.text}"
        assert rows(owner) == 0
        owner.dispose()
        engine.dispose()


def test_a_role_that_may_not_make_tables_is_told_so(spark: Any) -> None:
    with own_postgres() as server:
        owner = engine_for(server.url)
        tell(owner, "CREATE ROLE etl LOGIN", "CREATE TABLE guarded (epoch bigint)", "GRANT ALL ON guarded TO etl")
        claim(Holder(NAME, 5), owner)
        tell(owner, "GRANT ALL ON spark_lease_fence, spark_lease_fence_run TO etl")
        engine = engine_for(server.url.replace("postgres@", "etl@"))
        with pytest.raises(ConfigError, match="CREATE ON SCHEMA"):
            put(numbers(spark), engine)
        assert put(numbers(spark), engine, through="driver") == 2000
        owner.dispose()
        engine.dispose()
