"""A lease store of each kind, as a command is told of it, and a lease in it as a contender would make it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from spark_lease.config.sources import configure
from spark_lease.stores.registry import open_store
from tests.services.objects import BUCKET
from tests.support.shop import KINDS, Shop


@pytest.fixture
def shop_of(
    request: pytest.FixtureRequest,
    url_of: Callable[[str], str],
    table: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Shop]:
    def made(kind: str, **settings: object) -> Shop:
        if kind == "objects":
            options = request.getfixturevalue("objects").options()
            monkeypatch.setenv("SPARK_LEASE_STORAGE_OPTIONS", json.dumps(options))
            config = configure(url=f"delta+s3://{BUCKET}/{table}", storage_options=options, **settings)
        else:
            config = configure(url=url_of(kind), table=table, **settings)
        store = open_store(replace(config, create_table="true"))
        request.addfinalizer(store.close)
        if kind in ("postgresql", "mariadb", "sqlite"):
            store.init()  # type: ignore[attr-defined]
        return Shop(kind, config, store, capsys)

    return made


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, shop_of: Callable[..., Shop]) -> Shop:
    return shop_of(request.param)
