"""What a host has besides its network: a disk and a memory that can be full, a wall clock that can be wrong, its share
of the processors."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.faults.campaign.schedule import Kind

GROUPS = Path("/sys/fs/cgroup")
OF_GROUPS = (Kind.FREEZE_GROUP, Kind.STARVED, Kind.MEMORY)
_LIBRARY = Path(__file__).parents[3] / "out/campaign-kernel.so"
NO_TIMERS = {"LD_PRELOAD": str(_LIBRARY), "CAMPAIGN_NO_TIMERS": "1"}
"""The environment of what the kernel can kill at no instant."""
_QUOTA, _PERIOD = 3_000, 100_000
"""Microseconds of a processor in each period: 3 %."""
_MEGABYTE = 1 << 20


def not_here() -> tuple[Kind, ...]:
    """The faults that this machine has no means for."""
    groups = all((GROUPS / each).is_dir() for each in ("freezer", "cpu", "memory"))
    return (*(() if groups else OF_GROUPS), *(() if shutil.which("cc") else (Kind.CLOCK,)))


def build_kernel() -> None:
    """What stands between a site and the kernel. Before the first data centre; those that are there keep theirs."""
    if Kind.CLOCK in not_here():
        return
    _LIBRARY.parent.mkdir(exist_ok=True)
    source = Path(__file__).with_name("kernel.c")
    made = _LIBRARY.with_suffix(f".{os.getpid()}")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"], check=True)
    made.replace(_LIBRARY)


class Clock:
    """The wall clock of what is started with `environment`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(_LIBRARY), "CAMPAIGN_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """So much before the right time, or behind it."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("l", seconds))


class Disk:
    """A file system of its own in `folder`, which is unmounted with our mount namespace (unshare --mount)."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        folder.mkdir(exist_ok=True)
        options = f"size={megabytes}m,mode=1777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)
        self._folder, self._ballast = folder, folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        return self._ballast.exists()

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)


class Group:
    """A control group (cgroup v1) of one `controller`."""

    def __init__(self, controller: str, name: str) -> None:
        self._folder, self._root = GROUPS / controller / name, GROUPS / controller
        self._folder.mkdir(exist_ok=True)
        self.entrance = self._folder / "cgroup.procs"

    def add(self, pid: int) -> None:
        _move(pid, self._folder)

    def members(self) -> list[int]:
        return [int(pid) for pid in self.entrance.read_text().split()]

    def freeze(self) -> None:
        """All at once; no signal reaches them, SIGKILL neither."""
        self._write("freezer.state", "FROZEN")

    def thaw(self) -> None:
        self._write("freezer.state", "THAWED")

    def starve(self) -> None:
        self._write("cpu.cfs_period_us", str(_PERIOD))
        self._write("cpu.cfs_quota_us", str(_QUOTA))

    def feed(self) -> None:
        self._write("cpu.cfs_quota_us", "-1")

    def confine(self) -> None:
        """To the memory that is in use: the kernel kills the largest of those in it when one takes more."""
        self._write("memory.limit_in_bytes", str(int((self._folder / "memory.usage_in_bytes").read_text()) + _MEGABYTE))

    def release(self) -> None:
        self._write("memory.limit_in_bytes", "-1")

    def remove(self) -> None:
        """What is in it goes back to the group above."""
        while self._folder.exists():
            with suppress(OSError):  # what is just ending is in it still, or another thread has removed it
                for pid in self.members():
                    _move(pid, self._root)
                self._folder.rmdir()

    def _write(self, file: str, words: str) -> None:
        (self._folder / file).write_text(words)


def _move(pid: int, folder: Path) -> None:
    with suppress(ProcessLookupError):
        (folder / "cgroup.procs").write_text(str(pid))


def remove_groups(name: str) -> None:
    """Those that a data centre of that name has left when it was killed."""
    for folder in GROUPS.glob(f"*/{name}-*"):
        group = Group(folder.parent.name, folder.name)
        if folder.parent.name == "freezer":
            group.thaw()
        group.remove()
