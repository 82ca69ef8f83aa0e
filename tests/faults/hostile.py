"""Work that does all it can to outlive its lease: run as `python hostile.py FOLDER WORD`, it starts children that hide.

Each of them writes the time into a file of its own, every few milliseconds, and has WORD on its command line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WRITE = """
import os, signal, sys, time
folder, word, name = sys.argv[1:4]
if name != "plain":
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if name == "orphan":
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
if name == "storm":
    # Bounded: at most 8 at a time, each lives for a tenth of a second.
    for turn in range(100000):
        if not os.fork():
            with open(f"{folder}/{name}", "a") as file:
                file.write(f"{time.time()}\\n")
            time.sleep(0.1)
            os._exit(0)
        if turn >= 8:
            os.wait()
if name == "another-user":
    os.setgid(65534)
    os.setuid(65534)
with open(f"{folder}/{name}", "a") as file:
    while True:
        file.write(f"{time.time()}\\n")
        file.flush()
        time.sleep(0.005)
"""
NAMES = ("plain", "stubborn", "session", "orphan", "clean", "storm", "another-user")


def writer(folder: str, word: str, name: str) -> subprocess.Popen[bytes]:
    how: dict[str, object] = {"start_new_session": name in ("session", "another-user", "storm")}
    how |= {"env": {}} if name in ("clean", "orphan") else {}
    return subprocess.Popen([sys.executable, "-c", WRITE, folder, word, name], **how)  # type: ignore[call-overload]


def main(folder: str, word: str) -> None:
    for name in NAMES:
        if name != "another-user" or os.geteuid() == 0:
            writer(folder, word, name)
    (Path(folder) / "up").touch()
    while True:
        time.sleep(1)


def names_here() -> list[str]:
    return [name for name in NAMES if name != "another-user" or os.geteuid() == 0]


def last_write(folder: Path, names: Callable[[], list[str]] = names_here) -> float:
    """The newest time that one of them wrote, in seconds since 1970."""
    found = []
    for name in NAMES:
        lines = (folder / name).read_text().split() if (folder / name).exists() else []
        found += [float(line) for line in lines[-3:] if line.count(".") == 1 and len(line) > 12]
    return max(found, default=0.0)


def all_write(folder: Path, names: list[str]) -> bool:
    return all((folder / name).exists() and (folder / name).stat().st_size for name in names)


if __name__ == "__main__":
    main(*sys.argv[1:3])
