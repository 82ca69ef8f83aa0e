"""A real MinIO for the fault suite: $MINIO, that of this machine, or a new one (five minutes of Go, 150 MB):

python -m tests.services.minio
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.objects import BUCKET, KEY, SECRET, options_of

_BUILT = Path(__file__).parents[2] / ".minio/minio"
MISSING = "MinIO is not here: put it on the path, or `python -m tests.services.minio` where there is Go"


def found() -> str | None:
    return os.environ.get("MINIO") or shutil.which("minio") or (str(_BUILT) if _BUILT.exists() else None)


class MinIo:
    """One server on a port of its own, with one bucket; can be killed and started again."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        with socket.socket() as free:
            free.bind((address, 0))
            self.port = free.getsockname()[1]
        (folder / "data" / BUCKET).mkdir(parents=True)
        self.start()

    def options(self) -> dict[str, str]:
        return options_of(self.address, self.port)

    def start(self) -> None:
        binary = found()
        assert binary, MISSING
        environ = os.environ | {"MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
        words = [binary, "server", "--quiet", "--address", f"{self.address}:{self.port}", str(self.folder / "data")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(words, env=environ, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 30
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < end, (self.folder / "log").read_text()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}:{self.port}/minio/health/ready", timeout=1):
                return True
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self.process.wait(30)


@contextmanager
def running_minio(address: str) -> Iterator[MinIo]:
    folder = Path(tempfile.mkdtemp(prefix="sl-minio-"))
    server = MinIo(folder, address)
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if not found():
        _BUILT.parent.mkdir(exist_ok=True)
        words = ["go", "install", "github.com/minio/minio@latest"]
        sys.exit(subprocess.run(words, env=os.environ | {"GOBIN": str(_BUILT.parent)}, check=False).returncode)
