"""A server that is frozen accepts connections, by its kernel, and never says a word."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from spark_lease.clock import BootClock
from spark_lease.errors import FenceUnreachable
from spark_lease.fencing.sql.claim import FenceTable, claim
from tests.support.guarded import engine_for
from tests.support.holders import Holder


@pytest.fixture(params=["postgresql", "mysql"])
def silent(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of such a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"{request.param}://user@127.0.0.1:{server.getsockname()[1]}/db"


def test_a_claim_waits_no_longer_for_a_connection(silent: str) -> None:
    engine, start = engine_for(silent), BootClock().now()
    with pytest.raises(FenceUnreachable, match="no answer within 2 s") as raised:
        claim(Holder("nightly", 5), engine, timeout=0.5)
    assert raised.value.may_pass
    with pytest.raises(FenceUnreachable):
        FenceTable(engine, timeout=0.5).done_under("nightly", "2026-11-20")
    assert BootClock().now() - start < 10
