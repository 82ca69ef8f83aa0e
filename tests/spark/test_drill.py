"""The drill as a newcomer runs it, only shorter."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.history import Commit, commits, problems, table_of_epochs

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("kind", "store", "locker"),
    [
        ("crash", "sqlite", "lease"),
        pytest.param("crash", "file", "lease", marks=pytest.mark.fault),
        pytest.param("warm", "sqlite", "lease", marks=pytest.mark.fault),  # three minutes
        pytest.param("everything", "postgresql", "database", marks=[pytest.mark.postgres, pytest.mark.fault]),
        pytest.param("pause", "mariadb", "lease", marks=[pytest.mark.mariadb, pytest.mark.fault]),
        pytest.param("zombie", "delta", "lease", marks=pytest.mark.fault),
    ],
)
def test_the_standby_takes_over_and_the_table_is_right(
    kind: str, store: str, locker: str, url_of: Callable[[str], str], tmp_path: Path
) -> None:
    """Each locker once, and each kind; most of them in `make test-variants`."""
    days = 60 if kind == "warm" else 8  # enough for as long as a standby warms up
    command = [sys.executable, "-m", "jobs.drill", "--days", str(days), "--after", "2", "--lease-duration", "6"]
    command += ["--folder", str(tmp_path / "drill"), *([f"--{kind}"] if kind != "crash" else [])]
    environ = os.environ | {"SPARK_LEASE_URL": url_of(store), "SPARK_LEASE_LOCKER": locker}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check       every day is there" in done.stdout
    took = float(re.findall(r"take-over +([\d.]+) s", done.stdout)[0])
    assert took < 3 if kind in ("crash", "warm") else took > 3  # half the lease: handed over, or run out
    assert f"by a {'warm' if kind == 'warm' else 'cold'} standby" in done.stdout
    if kind == "zombie":
        assert re.search(r"fence       version \d+ claims the table under epoch", done.stdout)
    history = commits(tmp_path / "drill" / "flights_daily")
    first, second = sorted({commit.epoch for commit in history})
    assert len({commit.holder for commit in history}) == 2
    assert problems(tmp_path / "drill" / "flights_daily", history, days) == []
    # The check can fail: a zombie's commit, a missing day.
    zombie = Commit(len(history), history[-1].at + 1, first, "zombie", "2013-01-08")
    wrong = problems(tmp_path / "drill" / "flights_daily", [*history, zombie], days + 1)
    assert f"version {len(history)}: epoch {first} wrote after epoch {second}" in wrong
    assert f"2013-01-08 was written under the epochs [{first}, {second}]" in wrong
    assert f"{dt.date(2013, 1, 1) + dt.timedelta(days)} has no commit" in wrong
    level = {"zombie": "thread"}.get(kind, "contained" if os.geteuid() == 0 else "kernel")
    assert done.stdout.count(f" {level} ") >= 2
    assert "zombie" not in table_of_epochs(history, {first: level, second: level})
