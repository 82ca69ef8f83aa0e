"""What tests need of this machine, and one sentence for each thing that is not there. In CI nothing is left out."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile

import pytest

from jobs.jars import FOLDER
from spark_lease.submit.command_line import JAVA_MISSING, has_java
from tests.services import mariadb, pgbouncer

DISK = 1000
"""Free megabytes for servers and Spark in the folder for temporary files."""


def leave_out(item: pytest.Item) -> None:
    """Skip a test for which something is missing here."""
    if os.environ.get("CI"):
        return
    needs = {
        "spark": spark_missing,
        "postgres": disk_missing,
        "mariadb": mariadb_missing,
        "pgbouncer": pgbouncer_missing,
    }
    for marker, missing in needs.items():
        if item.get_closest_marker(marker) and (reason := missing()):
            item.add_marker(pytest.mark.skip(reason=reason))
            return


@functools.cache
def disk_missing() -> str:
    free = shutil.disk_usage(folder := tempfile.gettempdir()).free >> 20
    return "" if free >= DISK else f"only {free} MB are free in {folder}, and servers and Spark need {DISK} MB"


@functools.cache
def spark_missing() -> str:
    if not has_java():
        return JAVA_MISSING
    if not (FOLDER / ".resolved").exists():
        return "Delta's jars are not here: make jars (it needs the network once)"
    return disk_missing()


@functools.cache
def mariadb_missing() -> str:
    return disk_missing() if mariadb.found() else mariadb.MISSING


@functools.cache
def pgbouncer_missing() -> str:
    return disk_missing() if pgbouncer.found() else pgbouncer.MISSING
