"""A site's Airflow: one task, which runs the guarded $CAMPAIGN_COMMAND once (`dag.test`, in a home that is migrated).

.venv-airflow/bin/python dags/guarded.py
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("campaign", schedule=None) as dag:
    BashOperator(task_id="guarded", bash_command=f"exec {os.environ['CAMPAIGN_COMMAND']}", append_env=True)

if __name__ == "__main__":
    dag.test(logical_date=datetime.now(UTC))
