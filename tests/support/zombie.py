"""A process that writes to a fenced table, and knows nothing of leases."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from spark_lease.fencing.sql.session import session_environment

COPIES = """
import io, sys, psycopg2
for line in sys.stdin:
    url, options, application, epoch = line.rstrip("\\n").split("\\t")
    connection = psycopg2.connect(url, options=options, application_name=application)
    try:
        for turn in range(500):
            with connection, connection.cursor() as cursor:
                cursor.execute("INSERT INTO guarded (epoch) VALUES (%s)", (epoch,))
                cursor.copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO(epoch + "\\n"))
            if not turn:
                print("writing", flush=True)
        print("done", flush=True)
    except (psycopg2.Error, SystemError):  # the latter from psycopg2, where a session ends in the middle of a COPY
        print("refused", flush=True)
"""


class Zombie:
    """A program on libpq that knows nothing of leases; its epoch comes with its connection."""

    def __init__(self, url: str) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.url, self.process = url, subprocess.Popen([sys.executable, "-c", COPIES], **pipes)

    def begin(self, epoch: int) -> None:
        told = session_environment("nightly", epoch, {})
        print(self.url, told["PGOPTIONS"], told["PGAPPNAME"], epoch, sep="\t", file=self.process.stdin, flush=True)
        assert self.says() == "writing"

    def says(self) -> str:
        return str(self.process.stdout.readline()).strip()  # type: ignore[union-attr]
