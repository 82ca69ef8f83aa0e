"""A real MariaDB for the tests: that of this machine, or Debian's packages, which this unpacks:

    python -m tests.services.mariadb

The server then runs from `.mariadb` as an ordinary user. $SPARK_LEASE_TEST_MARIADBD is another version's mariadbd, or a
mysqld, for the same tests on MySQL.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.debian import libraries, unpack

UNPACKED = Path(__file__).parents[2] / ".mariadb"
PACKAGES = ["mariadb-server", "mariadb-server-core", "mariadb-common", "libaio1", "libnuma1", "liburing2", "galera-4"]
MISSING = "MariaDB is not here: install its server, or `python -m tests.services.mariadb` where there is apt-get"
PASSWORD = "s3cret"
INIT = f"""\
CREATE DATABASE IF NOT EXISTS leases CHARACTER SET latin1;
CREATE USER IF NOT EXISTS lease@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO lease@'127.0.0.1' WITH GRANT OPTION;
"""
"""latin1 and case-insensitive: a server's default of many years, and that of a broker's table."""


def found() -> Path | None:
    """The mariadbd that is here."""
    if asked := os.environ.get("SPARK_LEASE_TEST_MARIADBD"):
        return Path(asked)
    ours = UNPACKED / "usr/sbin/mariadbd"
    path = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    return Path(path) if path else ours if ours.exists() else None


class MariaDb:
    """One server on a port of its own, in a folder of its own; can be killed and started again."""

    def __init__(self, folder: Path, binary: Path, *options: str) -> None:
        self.folder, self._binary, self._options = folder, binary, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"mysql://lease:{PASSWORD}@127.0.0.1:{self.port}/leases"
        (folder / "init.sql").write_text(INIT)
        self._make_its_own_tables()
        self.start()

    def _make_its_own_tables(self) -> None:
        tables = [] if self.is_mysql else ["system_tables", "performance_tables", "system_tables_data"]
        files = [next(self._share.glob(f"m*_{each}.sql")) for each in tables]
        text = "CREATE DATABASE mysql;\nUSE mysql;\n" + "".join(each.read_text() for each in files)
        if not self.is_mysql:
            (self.folder / "data").mkdir()
        done = subprocess.run(
            [*self._command(), *(["--initialize-insecure"] if self.is_mysql else ["--bootstrap", "--skip-networking"])],
            input=text.encode(),
            env=libraries(self._home),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (done.returncode, done.stderr.decode(errors="replace")[-4000:])

    @property
    def is_mysql(self) -> bool:
        return self._binary.name == "mysqld"

    @property
    def _home(self) -> Path:
        """Where it was unpacked, with libraries."""
        return self._binary.parents[1] if self.is_mysql else UNPACKED

    @property
    def _share(self) -> Path:
        """With the first tables and the texts of messages: Debian's has a folder of its own."""
        share = self._binary.parents[1] / "share"
        return share / "mysql" if (share / "mysql").exists() else share

    def _command(self) -> list[str]:
        owner = ["--user=root"] if os.geteuid() == 0 else []
        small = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M", "--performance-schema=off"]
        where = [f"--basedir={self._binary.parents[1]}", f"--datadir={self.folder}/data"]
        where += [f"--lc-messages-dir={self._share}"]
        return [str(self._binary), "--no-defaults", *owner, *small, *where]

    def start(self) -> None:
        words = [
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--skip-ssl",  # 11.4 computes a key of 4096 bits first, which may take minutes
            f"--socket={self.folder}/socket",
            f"--init-file={self.folder}/init.sql",
            *self._options,
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._command(), *words], env=libraries(self._home), stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 30
        while "ready for connections" not in (self.folder / "log").read_text():
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        (self.folder / "log").write_text("")
        self.process.send_signal(number)
        self.process.wait(30)


def galera() -> Path | None:
    """The library that makes a MariaDB a node of a Galera cluster, if it is here."""
    places = (base / "usr/lib/galera/libgalera_smm.so" for base in (Path("/"), UNPACKED))
    return next((each for each in places if each.exists()), None)


def node_options(provider: Path) -> list[str]:
    """Of the only node of a Galera cluster."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = f"gmcast.listen_addr=tcp://127.0.0.1:{port};base_port={port}"
    options = {
        "wsrep-on": "ON",
        "wsrep-provider": str(provider),
        "wsrep-cluster-address": "gcomm://",
        "wsrep-node-address": "127.0.0.1",
        "wsrep-provider-options": where,
        "binlog-format": "ROW",
        "innodb-autoinc-lock-mode": "2",
    }
    return [f"--{key}={value}" for key, value in options.items()]


@contextmanager
def running_mariadb(*options: str) -> Iterator[MariaDb]:
    binary = found()
    assert binary, MISSING
    folder = Path(tempfile.mkdtemp(prefix="sl-maria-"))
    server = MariaDb(folder, binary, *options)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if not found():
        unpack("MariaDB", PACKAGES, UNPACKED)
