"""Where the lease and the fenced rows of a round are, and which faults fit them."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import Engine, create_engine
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from tests.faults.campaign.machine import Disk, not_here
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import OF_NETWORK, OF_SERVER, OF_SITE, Kind
from tests.services.bindfs import serving
from tests.services.mariadb import INIT, MariaDb, running_mariadb
from tests.services.minio import MinIo, running_minio
from tests.services.objects import BUCKET, running_objects
from tests.services.pair import Pair, running_pair
from tests.services.pgbouncer import running_pgbouncer
from tests.services.postgres import PostgreSql, own_postgres

Server = PostgreSql | MariaDb | MinIo | Pair

TABLE = {
    "postgresql": "n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "sqlite": "n INTEGER PRIMARY KEY AUTOINCREMENT",
    "mysql": "n BIGINT AUTO_INCREMENT PRIMARY KEY",
}
_MEGABYTES = 400
"""Of the disk of a lease store."""
_SLOW = {"lease_duration": "6"}
"""Of a server that does one thing after the other: on a busy machine a call may take it half a second."""
_ANY_HOST = "10.0.0.%"
_TRUSTED = "host all all all trust\nhost replication all all trust\n"
_LOCAL = (*OF_SITE, Kind.STORE_FULL)
_ONE_MACHINE = tuple(each for each in _LOCAL if each is not Kind.CLOCK)
"""SQLite goes by the machine's clock, which is the same for all that have the file."""
_REMOTE = (*OF_SITE, *OF_NETWORK, Kind.SERVER_RESET)
_ALL = (*_REMOTE, *OF_SERVER, Kind.STORE_FULL)


@dataclass
class Store:
    url: str
    server: Server | None = None
    """On a host of its own, where it can be stopped and started again."""
    settings: dict[str, str] = field(default_factory=dict)
    past_the_library: str = ""
    """For libpq, where the database itself fences rows; empty: it does not."""

    @property
    def engine(self) -> Engine | None:
        """Of the database with fenced rows."""
        is_folder = self.url.startswith(("file:", "delta"))
        return None if is_folder else create_engine(usable_url(configure(url=self.url)), poolclass=NullPool)


def _hba(folder: Path) -> Path:
    (folder / "hba").write_text(_TRUSTED)
    return folder / "hba"


@contextmanager
def _postgresql(host: Host, folder: Path, **settings: str) -> Iterator[Store]:
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(own_postgres(listen_addresses="*", hba_file=_hba(folder)))
        url = server.url.replace("127.0.0.1", host.address)
        yield Store(url, server, settings, past_the_library=url)


@contextmanager
def _pair(host: Host, folder: Path) -> Iterator[Store]:
    """Clients know both, and take the one that accepts writes."""
    with ExitStack() as stack:
        with host.inside():
            pair = stack.enter_context(running_pair(folder, host.address, hba_file=_hba(folder)))
        yield Store(pair.url, pair, past_the_library=pair.libpq_url)


@contextmanager
def _pooled(host: Host, folder: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(own_postgres(listen_addresses="*", hba_file=_hba(folder)))
            passes = {"listen_addr": "*", "ignore_startup_parameters": "options"}
            url = stack.enter_context(running_pgbouncer(server.url, sessions=4, **passes))
        yield Store(url.replace("127.0.0.1", host.address), server)


@contextmanager
def _mariadb(host: Host, folder: Path) -> Iterator[Store]:
    (folder / "init.sql").write_text(INIT.replace("127.0.0.1", _ANY_HOST))
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_mariadb("--bind-address=*", f"--init-file={folder}/init.sql"))
        yield Store(server.url.replace("127.0.0.1", host.address), server)


@contextmanager
def _moto(host: Host, folder: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_objects(host.address))
        options = json.dumps(server.options())
        yield Store(f"delta+s3://{BUCKET}/leases", settings={"storage_options": options, **_SLOW, "poll_period": "1"})


@contextmanager
def _minio(host: Host, folder: Path) -> Iterator[Store]:
    with ExitStack() as stack:
        with host.inside():
            server = stack.enter_context(running_minio(host.address))
        yield Store(f"delta+s3://{BUCKET}/leases", server, {"storage_options": json.dumps(server.options())})


@contextmanager
def _files(url: str, folder: Path) -> Iterator[Store]:
    yield Store(url.format(folder))


@contextmanager
def _share(url: str, host: Host, folder: Path) -> Iterator[Store]:
    """A folder that a process on the host serves to both sites (FUSE): where that hangs, every call of theirs does."""
    for each in ("served", "share"):
        (folder / each).mkdir()
    with ExitStack() as stack:
        with host.inside():
            stack.enter_context(serving(folder / "served", folder / "share"))
        yield Store(url.format(folder / "share"), settings=_SLOW)


Opener = Callable[[Host, Path], AbstractContextManager[Store]]
STORES: dict[str, tuple[Opener, tuple[Kind, ...]]] = {
    "PostgreSQL": (_postgresql, _ALL),
    "PostgreSQL, row locked": (lambda host, folder: _postgresql(host, folder, locker="database"), _ALL),
    "PostgreSQL and its replica": (_pair, (*_REMOTE, *OF_SERVER, Kind.SERVER_PROMOTED)),
    "PostgreSQL behind PgBouncer": (_pooled, _ALL),
    "MariaDB": (_mariadb, _ALL),
    "SQLite": (lambda _, folder: _files("sqlite:///{}/lease.db", folder), _ONE_MACHINE),
    "shared folder": (lambda _, folder: _files("file://{}/leases", folder), _LOCAL),
    "folder of a file server": (partial(_share, "file://{}/leases"), (*_LOCAL, Kind.SERVER_FROZEN)),
    "Delta": (lambda _, folder: _files("delta://{}/leases", folder), _LOCAL),
    "Delta of a file server": (partial(_share, "delta://{}/leases"), (*_LOCAL, Kind.SERVER_FROZEN)),
    "Delta on S3 (moto)": (_moto, (*_REMOTE, Kind.SERVER_CUT, Kind.SERVER_FROZEN, Kind.SERVER_LIES)),
    "Delta on MinIO": (_minio, (*_REMOTE, *OF_SERVER)),
}
"""How each is opened, and the faults that fit. What is on files is on a disk of all hosts: no network is between."""


@contextmanager
def open_store(name: str, host: Host) -> Iterator[tuple[Store, Disk]]:
    """With the disk that it is on."""
    with TemporaryDirectory(prefix="sl-") as folder, closing(Disk(Path(folder) / "disk", _MEGABYTES)) as disk:
        Path(folder).chmod(0o755)
        before, tempfile.tempdir = tempfile.tempdir, f"{folder}/disk"
        try:
            with STORES[name][0](host, Path(folder) / "disk") as store:
                tempfile.tempdir = before
                yield store, disk
        finally:
            tempfile.tempdir = before


def kinds_of(name: str) -> tuple[Kind, ...]:
    """The faults that fit it, as far as this machine has the means for them."""
    lacking = not_here()
    return tuple(each for each in STORES[name][1] if each not in lacking)


def crash(server: Server) -> None:
    """It recovers when it starts."""
    server.stop(signal.SIGQUIT if isinstance(server, PostgreSql | Pair) else signal.SIGKILL)
