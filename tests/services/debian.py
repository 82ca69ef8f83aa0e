"""Debian's packages, unpacked without being installed: apt-get and dpkg, but no root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def unpack(name: str, packages: list[str], folder: Path) -> None:
    """Fetch `packages` into `folder`. Raises SystemExit with a sentence if that cannot be done."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise SystemExit(f"{name} is not here, nor apt-get to fetch it: install it. Its tests are left out")
    print(f"unpacking {name} into {folder.name} ...", flush=True)
    folder.mkdir(exist_ok=True)
    download = ["apt-get", "download", *packages]
    done = subprocess.run(download, cwd=folder, capture_output=True, check=False)
    if done.returncode and os.geteuid() == 0:  # a new machine has no lists yet
        subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
        done = subprocess.run(download, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} cannot be fetched, is Debian's package archive within reach? Its tests are left out")
    for package in folder.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, folder], check=True)
        package.unlink()


def libraries(folder: Path) -> dict[str, str]:
    """The environment in which a program from `folder` finds its libraries."""
    found = [str(each) for each in [*folder.glob("*lib/x86_64-linux-gnu"), *folder.glob("*/lib/*-linux-gnu")]]
    return os.environ | {"LD_LIBRARY_PATH": ":".join(found)}
