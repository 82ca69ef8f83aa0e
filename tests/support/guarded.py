"""A guarded database: its table, and a process that writes to it."""

from __future__ import annotations

import select
import signal
import subprocess
import sys

import pytest
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url

TABLES = (
    *("spark_lease_fence", "spark_lease_fence_run", "spark_lease_fence_done", "spark_lease_fence_table"),
    "guarded",
)


_KEY = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY",
}


class Writer:
    """The process of `writer.py`."""

    def __init__(self, engine: Engine, name: str, *, isolation: str, threads: int = 1, how: str = "fenced") -> None:
        url = engine.url.render_as_string(hide_password=False)
        words = [sys.executable, "-m", "tests.support.writer", url, name, isolation, str(threads), how]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def begin(self, epoch: int) -> None:
        assert self.process.stdin is not None
        print(epoch, file=self.process.stdin, flush=True)
        assert self.says() == "writing"

    def says(self, timeout: float = 60) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], timeout)[0], "it says nothing"
        return self.process.stdout.readline().strip()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


def engine_for(url: str, **options: object) -> Engine:
    return create_engine(usable_url(configure(url=url)), **options)


def create_guarded(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE guarded (id {_KEY[engine.dialect.name]}, epoch BIGINT)")


def clear(engine: Engine) -> None:
    other = create_engine(engine.url, poolclass=NullPool)
    with other.begin() as connection:
        if engine.dialect.name == "postgresql":  # a session that a test left behind is named, not waited for
            connection.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        for table in TABLES:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("DROP FUNCTION IF EXISTS spark_lease_check()")


def rows(engine: Engine, epoch: int | None = None) -> int:
    """How many rows are in the guarded table, of one epoch or of all."""
    which = "" if epoch is None else f" WHERE epoch = {epoch}"
    with engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM guarded{which}").scalar() or 0)


def end_session(engine: Engine, connection: Connection) -> None:
    """The server ends the session of `connection`."""
    number, end = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
        "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
    }[engine.dialect.name]
    session = connection.exec_driver_sql(number).scalar()
    with create_engine(engine.url, poolclass=NullPool).connect() as other:
        other.exec_driver_sql(end.format(session))


def commit_of(engine: Engine) -> bytes:
    """By which to know the message that commits a fenced transaction."""
    is_mysql = engine.dialect.name == "mysql" and not engine.dialect.is_mariadb  # type: ignore[attr-defined]
    return b"\x03COMMIT" if is_mysql else b"; COMMIT"


SERVERS = pytest.mark.parametrize(
    "database",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)


DRIVERS = pytest.mark.parametrize(
    "database",
    [
        pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("psycopg", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)
DOORS = pytest.mark.parametrize(
    ("database", "door"),
    [
        pytest.param("postgresql", "postgresql", marks=pytest.mark.postgres),
        pytest.param("mariadb", "mariadb", marks=pytest.mark.mariadb),
    ],
    indirect=True,
)
