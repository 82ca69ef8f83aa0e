"""Every locker that is here under one contract, against the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_lease.config import Config, configure
from spark_lease.testing import LockerContract
from tests.services.objects import BUCKET

POSTGRES, MARIADB = pytest.mark.postgres, pytest.mark.mariadb
LOCKERS = [
    pytest.param(("postgresql", "lease"), id="postgresql lease", marks=POSTGRES),
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
def config(request: pytest.FixtureRequest, tmp_path: Path, table: str) -> Config:
    kind, locker = request.param
    options: dict[str, str] = {}
    match kind:
        case "postgresql":
            url = request.getfixturevalue("pg_url")
        case "mariadb":
            url = request.getfixturevalue("mariadb").url
        case "sqlite":
            url = f"sqlite:///{tmp_path}/lease.db"
        case "objects":
            url, options = f"delta+s3://{BUCKET}/{table}", request.getfixturevalue("objects").options()
        case _:
            url = f"{kind}://{tmp_path}/leases"
    return configure(url=url, table=table, locker=locker, create_table="true", storage_options=options)


class TestEveryLocker(LockerContract):
    """The fixture `config` is this module's."""
