"""A PostgreSQL and its streaming replica, which becomes the primary when it is told to."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg2

from tests.services.postgres import PostgreSql, own_postgres


class Pair:
    """What `PostgreSql` can do is done to the primary. It waits with each commit for the replica, if it has one."""

    def __init__(self, primary: PostgreSql, folder: Path, address: str) -> None:
        """`folder` is for the replica; `address`: the URLs' host, instead of loopback."""
        self._folder, self._address = folder, address
        self._folders = 0
        self.primary = primary
        self.replica = self._join()
        places = ",".join(f"{address}:{each.port}" for each in (self.primary, self.replica))
        self.libpq_url = f"postgresql://postgres@{places}/postgres?target_session_attrs=read-write"
        hosts = "&".join(f"host={address}:{each.port}" for each in (self.primary, self.replica))
        self.url = f"postgresql://postgres@/postgres?{hosts}&target_session_attrs=read-write&connect_timeout=2"

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.primary.process

    def stop(self, number: int = signal.SIGINT) -> None:
        self.primary.stop(number)

    def start(self) -> None:
        self.primary.start()

    def fail_over(self, *, lacking: float = 0.0) -> None:
        """Crash the primary, and promote the replica; `lacking`: it has received nothing for the last so many seconds,
        and the primary did not wait for it."""
        if lacking:
            self._say(self.primary, "ALTER SYSTEM SET synchronous_standby_names = ''", "SELECT pg_reload_conf()")
            self._say(self.replica, "ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
            time.sleep(lacking)
        self.primary.stop(signal.SIGKILL)
        self._say(self.replica, "SELECT pg_promote()")
        self.primary, self.replica = self.replica, self.primary

    def rejoin(self) -> None:
        """The one that crashed starts again as the replica of the other, from a new copy."""
        if self.replica.process.poll() is not None:
            shutil.rmtree(self.replica.folder)
            self.replica = self._join(self.replica.port)

    def _join(self, port: int = 0) -> PostgreSql:
        self._folders += 1
        folder = self._folder / str(self._folders)
        folder.mkdir()
        replica = self.primary.replica(folder, port)
        end = time.monotonic() + 30
        while not self._say(self.primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"):
            assert time.monotonic() < end, "the replica does not stream"
            time.sleep(0.02)
        self._say(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        return replica

    def _say(self, server: PostgreSql, *statements: str) -> int:
        """The first value of the last one's answer."""
        session = psycopg2.connect(server.url.replace("127.0.0.1", self._address), connect_timeout=10)
        session.autocommit = True
        try:
            with session.cursor() as cursor:
                for each in statements:
                    cursor.execute(each)
                return int(cursor.fetchone()[0])
        finally:
            session.close()


@contextmanager
def running_pair(folder: Path, address: str, **settings: object) -> Iterator[Pair]:
    """On all addresses; both in the network namespace in which they are started and restarted."""
    with own_postgres(listen_addresses="*", **settings) as primary:
        pair = Pair(primary, folder, address)
        try:
            yield pair
        finally:
            other = pair.primary if pair.replica is primary else pair.replica
            with suppress(ProcessLookupError):
                other.stop(signal.SIGQUIT)
