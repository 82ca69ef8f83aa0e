"""Where the lease and the fenced rows of a round are, and which faults fit them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import OF_NETWORK, OF_PROCESSES, OF_SERVER, Kind
from tests.services.mariadb import INIT, MariaDb, running_mariadb
from tests.services.objects import BUCKET, running_objects
from tests.services.postgres import PostgreSql, own_postgres

TABLE = {
    "postgresql": "n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "sqlite": "n INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "n BIGINT AUTO_INCREMENT PRIMARY KEY",
}
_ANY_HOST = "10.0.0.%"
_OF_BOTH = OF_PROCESSES + OF_NETWORK
_ALL = _OF_BOTH + OF_SERVER


@dataclass
class Store:
    url: str
    server: PostgreSql | MariaDb | None = None
    """On a host of its own, where it can be stopped and started again."""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> Engine | None:
        """Of the database with fenced rows."""
        is_folder = self.url.startswith(("file:", "delta"))
        return None if is_folder else create_engine(usable_url(configure(url=self.url)), poolclass=NullPool)


@contextmanager
def _postgresql(host: Host, folder: Path, **settings: str) -> Iterator[Store]:
    (folder / "hba").write_text("host all all all trust\n")
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(own_postgres(listen_addresses="*", hba_file=folder / "hba"))
        yield Store(server.url.replace("127.0.0.1", host.address), server, settings)


@contextmanager
def _mariadb(host: Host, folder: Path) -> Iterator[Store]:
    (folder / "init.sql").write_text(INIT.replace("127.0.0.1", _ANY_HOST))
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_mariadb("--bind-address=*", f"--init-file={folder}/init.sql"))
        yield Store(server.url.replace("127.0.0.1", host.address), server)


@contextmanager
def _objects(host: Host, folder: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_objects(host.address))
        yield Store(f"delta+s3://{BUCKET}/leases", settings={"storage_options": json.dumps(server.options())})


@contextmanager
def _files(url: str, folder: Path) -> Iterator[Store]:
    yield Store(url.format(folder))


Opener = Callable[[Host, Path], AbstractContextManager[Store]]
STORES: dict[str, tuple[Opener, tuple[Kind, ...]]] = {
    "PostgreSQL": (_postgresql, _ALL),
    "PostgreSQL, row locked": (lambda host, folder: _postgresql(host, folder, locker="database"), _ALL),
    "MariaDB": (_mariadb, _ALL),
    "SQLite": (lambda _, folder: _files("sqlite:///{}/lease.db", folder), OF_PROCESSES),
    "shared folder": (lambda _, folder: _files("file://{}/leases", folder), OF_PROCESSES),
    "Delta": (lambda _, folder: _files("delta://{}/leases", folder), OF_PROCESSES),
    "Delta on S3": (_objects, (*_OF_BOTH, Kind.SERVER_CUT, Kind.SERVER_FROZEN)),
}
"""How each is opened, and the faults that fit. The files are on a disk of all hosts: no network is between."""


@contextmanager
def open_store(name: str, host: Host) -> Iterator[Store]:
    with TemporaryDirectory(prefix="sl-") as folder:
        Path(folder).chmod(0o755)
        with STORES[name][0](host, Path(folder)) as store:
            yield store


def kinds_of(name: str) -> tuple[Kind, ...]:
    return STORES[name][1]


def crash(server: PostgreSql | MariaDb) -> None:
    """It recovers when it starts."""
    server.stop(signal.SIGQUIT if isinstance(server, PostgreSql) else signal.SIGKILL)
