"""The flights of a day, each day, by whichever site is master: this same file is in the DAGs of all of them.

What differs between the sites is their own: the connections `spark_default` and `lease`, SPARK_LEASE_HOLDER for the
site's name, and where the lake is.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from airflow.sdk import DAG

from jobs.jars import spark_conf
from spark_lease.airflow.operator import SparkLeaseSubmitOperator

LAKE = os.environ.get("FLIGHTS_LAKE", "out")

with DAG(
    "flights",
    schedule="@daily",
    start_date=datetime(2013, 1, 1, tzinfo=UTC),
    end_date=datetime(2013, 12, 31, tzinfo=UTC),
    catchup=True,
    max_active_runs=1,
) as dag:
    SparkLeaseSubmitOperator(
        task_id="summary",
        lease="flights",
        lease_conn_id="lease",
        on_standby="defer",
        poll_period=0.5,
        lease_settings={"lease_duration": 10, "create_table": "true"},
        application=str(Path(__file__).parents[2] / "flights_daily.py"),
        application_args=["--day", "{{ ds }}", "--table", f"{LAKE}/flights_daily", "--input", f"{LAKE}/input"],
        conf=spark_conf(),
    )
