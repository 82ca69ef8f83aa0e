"""Another user for a process of the tests, who has no privilege at all."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

NOBODY = 65534
ROOT = Path(__file__).parents[2]


def python_for_all() -> str:
    """A Python of this version that every user may run: this one may be in a home of root's."""
    ours = Path(sys.executable).resolve()
    everybody = all(each.stat().st_mode & 0o005 == 0o005 for each in ours.parents)
    return sys.executable if everybody else f"/usr/bin/python3.{sys.version_info.minor}"


def unprivileged(arguments: list[str], home: Path) -> tuple[list[str], Mapping[str, str]]:
    """The command `python arguments…` as a user without privileges, and its environment; `home` becomes its folder."""
    if os.geteuid():
        return [sys.executable, *arguments], os.environ
    os.chown(home, NOBODY, NOBODY)
    for folder in home.parents:
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    python = python_for_all()
    environ = os.environ | {
        "HOME": str(home),
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(home),
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={home}",
    }
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return ["setpriv", *user, "--", python, *arguments], environ
