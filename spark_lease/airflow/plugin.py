"""Airflow's plugin (entry point `airflow.plugins`): its web server shows what a task's link leads to."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from .link import PREFIX


async def serve(scope: Any, receive: Any, send: Any) -> None:
    """The pages. Every process of Airflow loads its plugins, and only the web server needs what these import."""
    from .pages import app

    await app(scope, receive, send)


class SparkLeasePlugin(AirflowPlugin):  # type: ignore[misc]
    name = "spark_lease"
    fastapi_apps: ClassVar[list[Any]] = [{"name": "Spark lease", "app": serve, "url_prefix": PREFIX}]
