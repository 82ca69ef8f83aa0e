"""A real PgBouncer for the tests, in transaction mode: that of this machine, or Debian's package, which this unpacks:

python -m tests.services.pgbouncer
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
from urllib.parse import urlsplit

from tests.services.debian import unpack

UNPACKED = Path(__file__).parents[2] / ".pgbouncer"
PACKAGES = ["pgbouncer", "libc-ares2", "libevent-2.1-7"]
MISSING = "PgBouncer is not here: install it, or `python -m tests.services.pgbouncer` where there is apt-get"


def found() -> Path | None:
    """The pgbouncer that is here."""
    ours = UNPACKED / "usr/sbin/pgbouncer"
    path = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    return Path(path) if path else ours if ours.exists() else None


@contextmanager
def running_pgbouncer(server: str, *, sessions: int, **settings: object) -> Iterator[str]:
    """The URL of one before `server`, which trusts: all clients share so many sessions. `settings`: pgbouncer.ini's."""
    binary, behind = found(), urlsplit(server)
    assert binary, MISSING
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    wanted = {
        "listen_addr": "127.0.0.1",
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": sessions,
    } | settings
    place = f"host=127.0.0.1 port={behind.port} user={behind.username} dbname=postgres"
    lines = [
        "[databases]",
        f"postgres = {place}",
        "[pgbouncer]",
        *(f"{key} = {value}" for key, value in wanted.items()),
    ]
    folder = Path(tempfile.mkdtemp(prefix="sl-bouncer-"))
    try:
        folder.chmod(0o755)
        (folder / "pgbouncer.ini").write_text("\n".join(lines))
        copy = shutil.copy(binary, folder)  # it does not run as root, and another user may not see our folders
        for library in UNPACKED.glob("usr/lib/*/*.so*"):
            shutil.copy(library, folder)
        environ = os.environ | {"LD_LIBRARY_PATH": str(folder)}
        user = "nobody" if os.geteuid() == 0 else None
        words, log = [str(copy), str(folder / "pgbouncer.ini")], folder / "log"
        with log.open("wb") as out:
            process = subprocess.Popen(words, env=environ, user=user, stdout=out, stderr=out, start_new_session=True)
        try:
            end = time.monotonic() + 30
            while "process up" not in log.read_text():
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.02)
            yield f"postgresql://{behind.username}@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if not found():
        unpack("PgBouncer", PACKAGES, UNPACKED)
