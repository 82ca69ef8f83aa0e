"""The address of a session on a Spark Connect server; `test_elsewhere.py` has a real server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from urllib.parse import urlparse

import pytest

from spark_lease.spark import connect

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
