"""One site of the drill: an Airflow home that runs the flights DAG for one logical date after the other.

    python -m jobs.airflow.site DAYS       (with Airflow's Python; its home and the connections are in the environment)

It stands for a scheduler, which it has no need of: `dag.test` runs a logical date in this process, deferred tasks too.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from jobs.airflow.dags.flights import dag

FIRST = datetime(2013, 1, 1, tzinfo=UTC)


def main(days: int) -> int:
    failed = 0
    for day in (FIRST + timedelta(days=each) for each in range(days)):
        run = dag.test(logical_date=day)
        state = str(run.state).rpartition(".")[2].lower()
        failed += state != "success"
        print(f"site: {day:%Y-%m-%d} ended: {state}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
