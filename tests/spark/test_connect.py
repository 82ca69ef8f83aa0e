"""The address of a session on a Spark Connect server; a server that the guarded process itself has started.

`test_elsewhere.py` has one of another process."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest

from spark_lease.spark import connect
from tests.support.drivers import Driver

NEW = "7e1c5a54-2f8c-4c58-9d06-0d7f6a3a1e6b"


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://db:15002", f"sc://db:15002/;session_id={NEW}"),
        ("http://db/;token=a%3Bb;use_ssl=true;session_id=old", f"sc://db/;token=a%3Bb;use_ssl=true;session_id={NEW}"),
        (None, ""),
    ],
)
def test_an_address_leads_to_the_very_session(monkeypatch: pytest.MonkeyPatch, url: str | None, address: str) -> None:
    monkeypatch.delenv("SPARK_LOCAL_REMOTE", raising=False)
    builder = SimpleNamespace(url=urlparse(url)) if url else SimpleNamespace()
    client: Any = SimpleNamespace(_builder=builder)
    session = SimpleNamespace(client=client, session_id=NEW, is_stopped=False)
    monkeypatch.setattr(connect, "_session_class", lambda: SimpleNamespace(_default_session=session))
    assert connect.session_address() == address
    monkeypatch.setenv("SPARK_LOCAL_REMOTE", "1")
    assert connect.session_address() == "", "its server ends with this process"


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.timeout(180)
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
