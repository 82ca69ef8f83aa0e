"""Several leases in one process, with one Spark: a block ends nothing of another, and leaves nothing behind."""

from __future__ import annotations

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
    assert "short: waits for what Spark runs now: it may be of this block, or of another lease's" in said


def test_a_block_inside_another_leaves_the_work_of_that_one_alone(start: Callable[..., Driver]) -> None:
    driver = start(
        HELD
        + """
    with hold("outer"), ThreadPoolExecutor(1) as pool:
        stream = spark.readStream.format("rate").load().writeStream.format("noop").start()
        job = pool.submit(count, 20)
        while not spark.sparkContext.statusTracker().getActiveJobsIds():
            time.sleep(0.01)
        with hold("inner"):
            say(f"counted {count(0)}")
        try:
            with hold("fails"):
                raise ValueError("of its own")
        except ValueError:
            say(f"stream {stream.isActive}, job {not job.done()}")
        stream.stop()
        say(f"job {job.result()}")
    """
    )
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "counted 1" in said and "stream True, job True" in said and "job 1" in said


def test_what_a_failed_job_still_writes_is_waited_for(start: Callable[..., Driver]) -> None:
    driver = start(
        HELD
        + """
    def fail_or_write(part):
        if part:
            time.sleep(0.5)
            raise ValueError("one of the tasks")
        return write_for(20, "zombie")(part)
    with hold("outer"):
        try:
            with hold("inner"):
                spark.sparkContext.parallelize([0, 1], 2).map(fail_or_write).collect()
        except Exception:
            left = time.time()
        time.sleep(3)
        say(f"alive {count(0)}")
    last = float(Path(f"{FOLDER}/zombie-0").read_text().splitlines()[-1])
    say(f"{left - last:.3f} seconds after its last write")
    """
    )
    assert driver.end(90) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "alive 1" in said
    (after,) = [line.split()[0] for line in said.splitlines() if "after its last write" in line]
    assert float(after) > 0, said
