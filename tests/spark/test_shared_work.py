"""Several leases in one process, with one Spark: a block ends nothing of another, and leaves nothing behind."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.drivers import Driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

HELD = """
    import time
    from concurrent.futures import ThreadPoolExecutor
    spark = session()
    def count(seconds):
        def task(rows):
            time.sleep(seconds)
            return rows
        return spark.sparkContext.parallelize([1], 1).mapPartitions(task).count()
    def hold(name, **more):
        return hold_lease(name, on_lost="stop", **SETTINGS | {"lease_duration": 12} | more)
"""


def test_pipelines_side_by_side_end_each_by_itself(start: Callable[..., Driver]) -> None:
    driver = start(
        HELD
        + """
    def pipeline(name, seconds):
        with hold(name, run_key="monday"):
            return count(seconds)
    with ThreadPoolExecutor(2) as pool:
        say(f"counted {[*pool.map(pipeline, ['short', 'long'], [0.5, 5])]}")
    """
    )
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "counted [1, 1]" in said
    assert "short: waits until Spark is idle: its jobs may belong to this block, or to another lease" in said


def test_a_block_inside_another_leaves_the_work_of_that_one_alone(start: Callable[..., Driver]) -> None:
    driver = start(
        HELD
        + """
    with hold("outer"), ThreadPoolExecutor(1) as pool:
        from pyspark.sql.functions import udf
        @udf("int")
        def slow(x):
            time.sleep(0.2)
            return 0
        rows = spark.readStream.format("rate").option("rowsPerSecond", 4).load().coalesce(1).select(slow("value"))
        stream = rows.writeStream.format("noop").start()
        while not stream.recentProgress:
            time.sleep(0.1)
        def task(rows):
            while not os.path.exists(f"{FOLDER}/stop"):
                time.sleep(0.01)
            return rows
        job = pool.submit(spark.sparkContext.parallelize([1], 1).mapPartitions(task).count)
        while stream.recentProgress[-1]["batchId"] < 2:
            time.sleep(0.1)
        with hold("inner"):
            say(f"counted {count(0)}")
        try:
            with hold("fails"):
                raise ValueError("of its own")
        except ValueError:
            say(f"stream {stream.isActive}, job {not job.done()}")
        stream.stop()
        Path(f"{FOLDER}/stop").touch()
        say(f"job {job.result()}")
    """
    )
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "counted 1" in said and "stream True, job True" in said and "job 1" in said


LEFT = """
    def fail_or_write(part):
        if part:
            time.sleep(0.02)
            raise ValueError("one of the tasks")
        return write_for(3, "zombie")(part)
    def failing_job():
        spark.sparkContext.parallelize([0, 1], 2).map(lambda x: x).count()
        spark.sparkContext.parallelize([0, 1], 2).map(fail_or_write).collect()
    def begun_just_before():
        threading.Thread(target=spark.sparkContext.parallelize([0], 1).map(write_for(3, "zombie")).count).start()
        time.sleep(0.01)
    def several_jobs():
        from pyspark.sql.functions import udf
        begun = threading.Event()
        @udf("int")
        def slow(x):
            time.sleep(1)
            return write_for(1, "zombie")(0)
        rows = spark.range(2, numPartitions=1).select(slow("id").alias("i")).repartition(2, "i").select(slow("i"))
        threading.Thread(target=rows.write.format("noop").mode("overwrite").save).start()
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
    with hold("outer"):
        for work in (failing_job, begun_just_before, several_jobs):
            Path(f"{FOLDER}/zombie-0").unlink(missing_ok=True)
            try:
                with hold("inner"):
                    work()
                    if work is begun_just_before:
                        raise ValueError("beside it")
            except Exception:
                pass
            left = time.time()
            time.sleep(3)
            last = float(Path(f"{FOLDER}/zombie-0").read_text().splitlines()[-1])
            say(f"{work.__name__}: {left - last:.3f} seconds after its last write")
        say(f"alive {count(0)}")
"""


@pytest.mark.fault
def test_what_a_block_has_left_running_is_waited_for(start: Callable[..., Driver]) -> None:
    """Tasks of a job that has failed, a job of which Spark does not know yet, and an action of several jobs."""
    driver = start(HELD + LEFT)
    assert driver.end(150) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "alive 1" in said
    after = re.findall(r"(\w+): (-?[\d.]+) seconds after its last write", said)
    assert [work for work, _ in after] == ["failing_job", "begun_just_before", "several_jobs"]
    assert all(float(seconds) > 0 for _, seconds in after), after
