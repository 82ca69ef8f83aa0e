"""What Airflow sees of the package, and what the package needs of Airflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.airflow.support import ROOT

MODULES = {path.stem for path in (ROOT / "spark_lease" / "airflow").glob("[a-z]*.py")}
WEB = {"pages"}
"""What only the web server imports; Airflow's own server warns of its own imports."""

pytestmark = pytest.mark.timeout(120)


def test_airflow_lists_it() -> None:
    airflow = str(Path(sys.executable).with_name("airflow"))
    done = subprocess.run([airflow, "providers", "list"], capture_output=True, text=True, timeout=100, check=True)
    assert "spark-lease" in done.stdout
    got = subprocess.run([airflow, "providers", "hooks"], capture_output=True, text=True, timeout=100, check=True)
    assert "SparkLeaseHook" in got.stdout


def test_it_imports_without_a_warning_and_without_spark() -> None:
    lines = [f"import spark_lease.airflow.{each}" for each in sorted(MODULES - WEB)]
    lines += [
        "import jobs.airflow.dags.flights, sys",
        "sys.exit('py4j' in sys.modules or 'spark_lease.airflow.pages' in sys.modules)",
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
