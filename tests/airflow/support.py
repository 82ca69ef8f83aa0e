"""The home of Airflow in the tests, and what its tasks have started."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

from spark_lease.system.processes import Process, look

ROOT = Path(__file__).parents[2]
FOLDER = Path(tempfile.mkdtemp(prefix="spark-lease-airflow-"))


def holder_of(lease: str) -> str | None:
    connection = sqlite3.connect(FOLDER / "lease.db", timeout=10)
    try:
        row = connection.execute("SELECT broker_name FROM spark_lease WHERE name = ?", (lease,)).fetchone()
    except sqlite3.OperationalError:  # no contender has made the table yet
        row = None
    connection.close()
    return row[0] if row else None


def alive(found: list[Process]) -> list[Process]:
    return [each for each in found if (now := look(each.pid)) and now.alive and now.started == each.started]
