from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from spark_lease.fencing.sql.transaction import fenced_sql
from tests.services.postgres import with_psycopg
from tests.support.guarded import Writer, clear, create_guarded, engine_for
from tests.support.holders import Holder


@pytest.fixture
def writer() -> Iterator[Callable[..., Writer]]:
    started: list[Writer] = []

    def start(engine: Engine, name: str, **options: object) -> Writer:
        started.append(Writer(engine, name, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(
    params=[
        pytest.param("sqlite"),
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("psycopg", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that may be guarded."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/guarded.db"
        case "postgresql" | "postgresql, used before":
            return str(request.getfixturevalue("pg_url"))
        case "psycopg":
            return with_psycopg(str(request.getfixturevalue("pg_url")))
    return str(request.getfixturevalue("mariadb").url)


@pytest.fixture
def engine(database: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine to a database with a table `guarded (id, epoch)` and without a fence of the test's."""
    engine = engine_for(database)
    clear(engine)
    create_guarded(engine)
    if "used before" in request.node.name:
        with fenced_sql(Holder("before", 1), engine):
            pass
    yield engine
    engine.dispose()
    clear(engine)
