"""A Spark Connect server that the guarded process itself has started, by `remote("local")`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.drivers import Driver

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.mark.fault
def test_after_a_loss_the_next_block_has_a_server_that_works(start: Callable[..., Driver]) -> None:
    driver = start(
        """
    from pyspark.sql import SparkSession
    from spark_lease.errors import Loss
    def count(rows):
        return SparkSession.builder.remote("local[1]").getOrCreate().range(rows).count()
    try:
        with hold_lease("n", on_lost="stop", **SETTINGS) as lease:
            say(f"counted {count(3)}")
            lease._hold.lose(Loss.TAKEN)
            time.sleep(60)
    except LeaseLost:
        say("lost")
    with hold_lease("again", on_lost="stop", **SETTINGS):
        say(f"counted {count(4)}")
    """
    )
    assert driver.end(90) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "counted 3" in said and "lost" in said and "counted 4" in said
