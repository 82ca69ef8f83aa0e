"""The drill as a newcomer runs it, only shorter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.history import Commit, commits, problems, table_of_epochs

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


@pytest.mark.parametrize(
    ("store", "locker"),
    [
        pytest.param("pg_url", "database", marks=pytest.mark.postgres),
        pytest.param("mariadb", "lease", marks=pytest.mark.mariadb),
        ("delta", "lease"),
        ("file", "lease"),
    ],
)
def test_it_runs_on_every_locker(request: pytest.FixtureRequest, tmp_path: Path, store: str, locker: str) -> None:
    if store in ("delta", "file"):
        url = f"{store}://{tmp_path}/leases"
    else:
        service = request.getfixturevalue(store)
        url = getattr(service, "url", service)
    command = [sys.executable, "-m", "jobs.drill", "--days", "6", "--after", "2", "--lease-duration", "6"]
    environ = os.environ | {"SPARK_LEASE_URL": url, "SPARK_LEASE_LOCKER": locker}
    command += ["--folder", str(tmp_path / "drill")]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check       every day is there" in done.stdout
    assert float(re.findall(r"take-over +([\d.]+) s", done.stdout)[0]) < 3  # half the lease


@pytest.mark.parametrize("kind", ["crash", "everything", "pause", "zombie"])
def test_the_standby_takes_over_and_the_table_is_right(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs.drill", "--days", "9", "--after", "3", "--lease-duration", "6"]
    command += ["--folder", str(tmp_path / "drill"), *([f"--{kind}"] if kind != "crash" else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "check       every day is there" in done.stdout
    took = float(re.findall(r"take-over +([\d.]+) s", done.stdout)[0])
    assert took < 3 if kind == "crash" else took > 3  # half the lease: handed over, or run out
    if kind == "zombie":
        assert re.search(r"fence       version \d+ claims the table under epoch", done.stdout)
    history = commits(tmp_path / "drill" / "flights_daily")
    first, second = sorted({commit.epoch for commit in history})
    assert len({commit.holder for commit in history}) == 2
    assert problems(tmp_path / "drill" / "flights_daily", history, 9) == []
    # The check can fail: a zombie's commit, a missing day.
    zombie = Commit(len(history), history[-1].at + 1, first, "zombie", "2013-01-09")
    wrong = problems(tmp_path / "drill" / "flights_daily", [*history, zombie], 10)
    assert f"version {len(history)}: epoch {first} wrote after epoch {second}" in wrong
    assert f"2013-01-09 was written under the epochs [{first}, {second}]" in wrong
    assert "2013-01-10 has no commit" in wrong
    assert "zombie" not in table_of_epochs(history)
