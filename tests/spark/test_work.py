"""Nothing of Spark writes after the release: tasks inside the JVM, Python's, and streams of every session."""

from __future__ import annotations

import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg2
import pytest

from jobs.jars import FOLDER
from tests.services.postgres import own_postgres
from tests.support.drivers import Driver, row, until
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
Start = Callable[..., Driver]

STUBBORN = """
import java.io.FileWriter;
import org.apache.spark.sql.api.java.UDF1;

public class Stubborn implements UDF1<Long, Long> {
    public Long call(Long part) throws Exception {
        long end = System.currentTimeMillis() + 60000;
        while (System.currentTimeMillis() < end) {
            try (FileWriter file = new FileWriter(System.getenv("TEST_FOLDER") + "/task-" + part, true)) {
                file.write(System.currentTimeMillis() / 1000.0 + "\\n");
            }
            try { Thread.sleep(5); } catch (InterruptedException ignored) { }
        }
        return part;
    }
}
"""


@pytest.fixture(scope="module")
def stubborn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a function of Java's that ignores interrupts."""
    import pyspark

    folder = tmp_path_factory.mktemp("stubborn")
    (folder / "Stubborn.java").write_text(STUBBORN)
    jars = f"{Path(pyspark.__file__).parent}/jars/*"
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(folder / "Stubborn.java")], check=True)
    return folder


@pytest.fixture(scope="module")
def slow_table() -> Iterator[str]:
    """The URL of a PostgreSQL with a table that notes when each row came, and takes its time for each."""
    with own_postgres() as server:
        with psycopg2.connect(server.url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE slow (id bigint, at timestamptz DEFAULT clock_timestamp())")
            cursor.execute(
                "CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.05); "
                "NEW.at := clock_timestamp(); RETURN NEW; END $$"
            )
            cursor.execute("CREATE TRIGGER slowly BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION slowly()")
        connection.close()
        yield server.url


def last_row(url: str) -> float:
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(extract(epoch FROM max(at)), 0) FROM slow")
        found = float(cursor.fetchone()[0])
    connection.close()
    return found


WORKS = {
    "jdbc": """
        def work(spark):
            options = {"batchsize": "1", "isolationLevel": "NONE", "driver": "org.postgresql.Driver"}
            options["user"] = "postgres"
            rows = spark.range(100000).repartition(2)
            rows.write.options(**options).mode("append").jdbc(JDBC, "slow")
    """,
    "java": """
        def work(spark):
            spark.udf.registerJavaFunction("stubborn", "Stubborn")
            spark.range(0, 2, 1, 2).selectExpr("stubborn(id)").collect()
    """,
    "python": "def work(spark):\n    write(spark)",
    "stream": """
        def work(spark):
            rates = spark.newSession().readStream.format("rate").load()
            writing = rates.writeStream.format("json").option("checkpointLocation", f"{FOLDER}/checkpoint")
            writing.trigger(processingTime="1 second").start(f"{FOLDER}/stream").awaitTermination()
    """,
}
ENDINGS = {
    "the block fails": "raise ValueError('a bug')",
    "the block ends": "pass",
    "SIGTERM": "os.kill(os.getpid(), 15); time.sleep(60)",
}
BLOCK = """
{work}
JDBC, JARS, CLASSES = {jdbc!r}, {jars!r}, {classes!r}
def start_session():
    from pyspark.sql import SparkSession
    conf = {{"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.jars": JARS}}
    conf |= {{"spark.driver.extraClassPath": CLASSES}}
    return SparkSession.builder.master({master!r}).config(map=conf).getOrCreate()
def has_begun():
    return {begun}
with hold_lease("n", **SETTINGS | {{"lease_duration": 12, "on_lost": {on_lost!r}}}):
    spark = start_session()
    threading.Thread(target=work, args=(spark,), daemon=True).start()
    while not has_begun():
        time.sleep(0.05)
    time.sleep(1)
    say("ends now")
    {ending}
say("lives on")
time.sleep(30)
"""


SHOWN = ("jdbc", "the block fails")


def has_begun(kind: str) -> str:
    return {
        "jdbc": "rows_there()",
        "stream": "any(Path(f'{FOLDER}/stream').glob('part-*.json'))",
    }.get(kind, "(FOLDER / 'task-0').exists()")


ROWS_THERE = """
def rows_there():
    import psycopg2
    with psycopg2.connect(os.environ["SLOW"]) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM slow")
        return cursor.fetchone()[0]
"""


def last_write(driver: Driver, kind: str, slow: str) -> float:
    if kind == "jdbc":
        return last_row(slow)
    if kind == "stream":
        return max(each.stat().st_mtime for each in (driver.folder / "stream").glob("part-*.json"))
    return driver.last_write()


def released_at(driver: Driver, url: str, table: str) -> float:
    until(lambda: row(url, table)[0] is None, timeout=40)
    return time.time()


def _marks(kind: str, ending: str) -> list[pytest.MarkDecorator]:
    """Each kind of work once, and with the other endings where faults are repeated."""
    if ending != SHOWN[1]:
        return [pytest.mark.fault]
    return [pytest.mark.shows("P5")] if kind == SHOWN[0] else []


CASES = [pytest.param(kind, ending, "exit", marks=_marks(kind, ending)) for kind in WORKS for ending in ENDINGS]
CASES += [("java", "the block fails", "stop")]
CASES += [once_more(kind, "the block ends", "stop") for kind in ("stream", "jdbc")]


@pytest.mark.postgres
@pytest.mark.parametrize(("kind", "ending", "on_lost"), CASES)
def test_nothing_writes_after_the_release(
    start: Start,
    url: str,
    table: str,
    stubborn: Path,
    slow_table: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    ending: str,
    on_lost: str,
) -> None:
    with psycopg2.connect(slow_table) as connection, connection.cursor() as cursor:
        cursor.execute("TRUNCATE slow")
    connection.close()
    monkeypatch.setenv("SLOW", slow_table)
    jdbc = slow_table.replace("postgresql://postgres@", "jdbc:postgresql://")
    script = BLOCK.format(
        work=textwrap.dedent(WORKS[kind]),
        jdbc=jdbc,
        jars=",".join(map(str, (FOLDER / "jdbc").glob("*.jar"))),
        classes=str(stubborn),
        master="local[2]",
        begun=has_begun(kind),
        on_lost=on_lost,
        ending=ENDINGS[ending],
    )
    driver = start(ROWS_THERE + script)
    driver.until("ends now")
    driver.tree()
    at = released_at(driver, url, table)
    time.sleep(1.5)  # for writes that must not come
    assert last_write(driver, kind, slow_table) <= at
    if ending == "the block ends":
        assert "the block was left while Spark still worked" in driver.log.read_text()
