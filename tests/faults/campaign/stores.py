"""Where the lease and the fenced rows of a round are, and what can be done to their server."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from tests.faults.campaign.network import Host
from tests.services.mariadb import INIT, MariaDb, running_mariadb
from tests.services.postgres import PostgreSql, own_postgres

TABLE = {
    "postgresql": "n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "sqlite": "n INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "n BIGINT AUTO_INCREMENT PRIMARY KEY",
}
ANY_HOST = "10.0.0.%"


@dataclass
class Store:
    url: str
    server: PostgreSql | MariaDb | None = None
    """On a host of its own; without one the store is a file, which all hosts see."""

    @property
    def engine(self) -> Engine | None:
        """Of the database with fenced rows."""
        is_folder = self.url.startswith(("file:", "delta:"))
        return None if is_folder else create_engine(usable_url(configure(url=self.url)), poolclass=NullPool)


@contextmanager
def _postgresql(host: Host, folder: Path) -> Iterator[Store]:
    (folder / "hba").write_text("host all all all trust\n")
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(own_postgres(listen_addresses="*", hba_file=folder / "hba"))
        yield Store(server.url.replace("127.0.0.1", host.address), server)


@contextmanager
def _mariadb(host: Host, folder: Path) -> Iterator[Store]:
    (folder / "init.sql").write_text(INIT.replace("127.0.0.1", ANY_HOST))
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_mariadb("--bind-address=*", f"--init-file={folder}/init.sql"))
        yield Store(server.url.replace("127.0.0.1", host.address), server)


@contextmanager
def _files(host: Host, folder: Path, url: str) -> Iterator[Store]:
    yield Store(url.format(folder))


STORES = {
    "PostgreSQL": _postgresql,
    "MariaDB": _mariadb,
    "SQLite": lambda host, folder: _files(host, folder, "sqlite:///{}/lease.db"),
    "shared folder": lambda host, folder: _files(host, folder, "file://{}/leases"),
    "Delta": lambda host, folder: _files(host, folder, "delta://{}/leases"),
}
SERVERS = ("PostgreSQL", "MariaDB")


@contextmanager
def open_store(name: str, host: Host) -> Iterator[Store]:
    with TemporaryDirectory(prefix="sl-") as folder:
        Path(folder).chmod(0o755)
        with STORES[name](host, Path(folder)) as store:
            yield store


def crash(server: PostgreSql | MariaDb) -> None:
    """It recovers when it starts."""
    server.stop(signal.SIGQUIT if isinstance(server, PostgreSql) else signal.SIGKILL)
