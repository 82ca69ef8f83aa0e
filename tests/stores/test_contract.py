"""Every locker that is here under one contract, against the real thing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.testing import LockerContract
from tests.services.objects import BUCKET

POSTGRES, MARIADB = pytest.mark.postgres, pytest.mark.mariadb
LOCKERS = [
    pytest.param(("postgresql", "lease"), id="postgresql lease", marks=POSTGRES),
    pytest.param(("psycopg", "lease"), id="psycopg lease", marks=POSTGRES),
    pytest.param(("mariadb", "lease"), id="mariadb lease", marks=MARIADB),
    pytest.param(("sqlite", "lease"), id="sqlite lease"),
    pytest.param(("delta", "lease"), id="delta lease"),
    pytest.param(("objects", "lease"), id="delta object store lease"),
    pytest.param(("file", "lease"), id="file lease"),
    pytest.param(("postgresql", "database"), id="postgresql database", marks=POSTGRES),
    pytest.param(("mariadb", "database"), id="mariadb database", marks=MARIADB),
    pytest.param(("sqlite", "database"), id="sqlite database"),
]


@pytest.fixture(params=LOCKERS)
def config(request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str) -> Config:
    kind, locker = request.param
    if kind == "objects":
        options = request.getfixturevalue("objects").options()
        return configure(url=f"delta+s3://{BUCKET}/{table}", storage_options=options)
    return configure(url=url_of(kind), table=table, locker=locker, create_table="true")


@pytest.mark.shows("P1", "P2")
class TestEveryLocker(LockerContract):
    """The fixture `config` is this module's."""
