"""The connection of `lease_conn_id`: a lease store's URL, user and password, and settings in its extra."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook, mask_secret

from ..config.settings import SECRETS, Config, as_text
from ..errors import SparkLeaseError
from ..stores.registry import open_store
from .access import as_environment, config_of, seen_from_elsewhere, settings_of

_SHORTEST = 5
"""Airflow masks no shorter secret, and warns about one."""


class SparkLeaseHook(BaseHook):  # type: ignore[misc]
    """Reaches a lease store by an Airflow connection.

    Any connection that names a database will do (type postgres, mysql, sqlite), or one of type `spark_lease` whose host
    is the whole URL, as `delta+s3://bucket/leases`. Its extra may have any setting.
    """

    conn_name_attr = "lease_conn_id"
    default_conn_name = "spark_lease_default"
    conn_type = "spark_lease"
    hook_name = "Spark lease"

    def __init__(self, lease_conn_id: str | None = default_conn_name, **_: Any) -> None:
        super().__init__()
        self.lease_conn_id = lease_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["schema", "port"],
            "relabeling": {"host": "URL of the lease store", "login": "User"},
            "placeholders": {"host": "postgresql://db/ops", "extra": '{"table": "spark_lease"}'},
        }

    def config(self, lease: str, settings: Mapping[str, Any]) -> Config:
        """All settings of `lease`. Raises ConfigError."""
        return config_of(lease, self._connection(), settings)

    def seen_from_elsewhere(self, lease: str, settings: Mapping[str, Any]) -> Config:
        """The settings for a look at `lease` from a machine that knows only the connection. Raises ConfigError."""
        return seen_from_elsewhere(lease, self._connection(), settings)

    def environment(self) -> dict[str, str]:
        """The settings of the connection for a child process's environment, with secrets. Raises ConfigError."""
        connection = self._connection()
        return as_environment(settings_of(connection)) if connection else {}

    def test_connection(self) -> tuple[bool, str]:
        try:
            with closing(open_store(self.config("connection", {}))) as store:
                return True, f"{store.where} has {len(store.names())} leases"
        except SparkLeaseError as error:
            return False, str(error)

    def _connection(self) -> Any:
        if not self.lease_conn_id:
            return None
        connection = self.get_connection(self.lease_conn_id)
        for key, value in settings_of(connection).items():
            if key in SECRETS:
                for secret in (as_text(value), *(map(as_text, value.values()) if isinstance(value, Mapping) else ())):
                    if len(secret) >= _SHORTEST:
                        mask_secret(secret)
        return connection
