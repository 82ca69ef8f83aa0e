"""The body of a foreachBatch, on a thread of Py4J's, and a call of the JVM's that was cut off end first."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.support.drivers import Driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

BODY = """
    import signal, time
    FILE = FOLDER / "body"
    def body(rows, number):
        while True:
            with open(FILE, "a") as file:
                print(time.time(), file=file)
            try:
                time.sleep(0.02)
            except Exception:
                pass
    def stream():
        begun = session().readStream.format("rate").load().writeStream.foreachBatch(body).start()
        while not FILE.exists():
            time.sleep(0.01)
        return begun
    def lines():
        return len(FILE.read_text().splitlines())
    def look():
        before = lines()
        time.sleep(1)  # for what must not come there is nothing to wait for
        say(f"wrote {lines() - before} more")
"""


@pytest.mark.parametrize("ending", ["pass", "raise ValueError", "lease._hold.lose(Loss.TAKEN)"])
def test_a_body_has_ended_before_the_lease_is_given_back(start: Callable[..., Driver], ending: str) -> None:
    driver = start(
        BODY
        + f"""
    from spark_lease.errors import Loss
    try:
        with hold_lease("n", on_lost="stop", **SETTINGS) as lease:
            query = stream()
            {ending}
    except BaseException as error:
        say(f"left by {{type(error).__name__}}")
    look()
    """
    )
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "wrote 0 more" in said and "Exception in thread" not in said, said
    assert ("released" in said) is ("lose" not in ending)


@pytest.mark.fault
def test_what_the_jvm_does_for_a_call_that_was_cut_off_has_ended_before_the_release(
    start: Callable[..., Driver],
) -> None:
    """It moves the files of a job to where they belong, and no task runs any more."""
    driver = start(
        """
    import signal, time
    parts = [FOLDER / "table" / f"part={number}" for number in range(800)]
    for each in parts:
        each.mkdir(parents=True)
    def files():
        return sum(name.endswith("parquet") for each in parts for name in os.listdir(each))
    def interrupt():
        while not any(os.listdir(each) for each in parts[:50]):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        with hold_lease("n", on_lost="stop", **SETTINGS):
            rows = session("local[1]").range(0, len(parts), 1, 1).selectExpr("id", "id AS part")
            threading.Thread(target=interrupt).start()
            rows.write.mode("append").partitionBy("part").parquet(str(FOLDER / "table"))
    except KeyboardInterrupt:
        found = files()
        time.sleep(2)
        say(f"left with {found} files, {files() - found} more came")
    """
    )
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert re.search("left with [1-9][0-9]* files, 0 more came", said) and "released" in said, said
