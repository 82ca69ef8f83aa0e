"""A file server for the tests, a process that can stand still: bindfs (FUSE) of this machine, or Debian's package.

python -m tests.services.bindfs
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.services.debian import libraries, unpack

UNPACKED = Path(__file__).parents[2] / ".bindfs"
PACKAGES = ["bindfs", "libfuse2"]
MISSING = "bindfs is not here: install it, or `python -m tests.services.bindfs` where there is apt-get and /dev/fuse"


def found() -> Path | None:
    """The bindfs that is here, and can mount."""
    if not Path("/dev/fuse").exists():
        return None
    ours = UNPACKED / "usr/bin/bindfs"
    path = shutil.which("bindfs")
    return Path(path) if path else ours if ours.exists() else None


@contextmanager
def serving(folder: Path, share: Path) -> Iterator[None]:
    """`folder` is seen at `share`, which hangs as long as the server stands still. Needs root."""
    binary = found()
    assert binary, MISSING
    server = subprocess.Popen([str(binary), "-f", str(folder), str(share)], env=libraries(UNPACKED))
    try:
        while subprocess.run(["mountpoint", "-q", str(share)], check=False).returncode:
            assert server.poll() is None, "bindfs has ended"
        yield
    finally:
        server.kill()
        server.wait(10)
        subprocess.run(["umount", "--lazy", str(share)], check=False)


if __name__ == "__main__":
    if not found():
        unpack("bindfs", PACKAGES, UNPACKED)
