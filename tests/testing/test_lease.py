"""A lease in memory, as tests of guarded code use it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from spark_lease import ConfigError, LeaseLost, Loss, hold_lease
from spark_lease.testing import memory_lease


def test_it_is_held_until_the_test_says_otherwise(tmp_path: Path) -> None:
    with memory_lease("nightly") as lease:
        assert lease.check() == lease.wait_certain() == lease.epoch > 0
        with lease.fenced_sql(create_engine(f"sqlite:///{tmp_path}/x.db")) as connection:
            connection.exec_driver_sql("CREATE TABLE t (n int)")
        lease.lose(Loss.TAKEN, "by a test")
        with pytest.raises(LeaseLost, match="by a test"):
            lease.check()


def test_it_has_no_store() -> None:
    with pytest.raises(ConfigError, match="for run keys, hold_lease"), memory_lease(url="local"):
        pass


def test_a_guard_that_is_switched_off_says_one_thing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="spark_lease"), hold_lease("n", enabled=False) as lease:
        assert lease.check() == 0
    (said,) = [each.getMessage() for each in caplog.records]
    assert said == "n: enabled = false, NOTHING IS GUARDED: every process is master"
