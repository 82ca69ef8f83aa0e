"""What `airflow providers list` shows of us (entry point `apache_airflow_provider`). Imports nothing of Airflow."""

from typing import Any

_HERE = "spark_lease.airflow"
_INTEGRATION = "Spark lease"


def get_provider_info() -> dict[str, Any]:
    """Airflow's description of a provider (its provider_info.schema.json)."""
    return {
        # The distribution's name, with a dash: a wrong name keeps all of Airflow from starting.
        "package-name": "spark-lease",
        "name": _INTEGRATION,
        "description": "Only one of several redundant Spark applications may write: leases for Spark jobs.",
        "integrations": [{"integration-name": _INTEGRATION, "external-doc-url": "", "tags": ["software"]}],
        "operators": [{"integration-name": _INTEGRATION, "python-modules": [f"{_HERE}.operator"]}],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": [f"{_HERE}.sensor"]}],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": [f"{_HERE}.trigger"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": [f"{_HERE}.hook"]}],
        "connection-types": [{"connection-type": "spark_lease", "hook-class-name": f"{_HERE}.hook.SparkLeaseHook"}],
        "task-decorators": [{"class-name": f"{_HERE}.decorator.leased_task", "name": "leased"}],
        "extra-links": [f"{_HERE}.link.LeaseLink"],
    }
