"""An Airflow home whose database is migrated: each site of each round has a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[3]
AIRFLOW_HOME, AIRFLOW_PYTHON = _ROOT / "out/campaign-airflow", _ROOT / ".venv-airflow/bin/python"

DAGS = Path(__file__).with_name("dags")


def airflow_settings(home: Path) -> dict[str, str]:
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # no host of ours asks a name server
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
    }


def migrate() -> None:
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)
    AIRFLOW_HOME.mkdir(parents=True)
    command = [str(AIRFLOW_PYTHON.with_name("airflow")), "db", "migrate"]
    subprocess.run(command, env=os.environ | airflow_settings(AIRFLOW_HOME), check=True, capture_output=True)
