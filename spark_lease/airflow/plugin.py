"""The Airflow plugin (entry point `airflow.plugins`): serves the pages to which a task's link leads."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from .link import PREFIX


async def serve(scope: Any, receive: Any, send: Any) -> None:
    """Serve the pages. All Airflow processes load plugins, but only the web server needs the imports of the pages."""
    from .pages import app

    await app(scope, receive, send)


class SparkLeasePlugin(AirflowPlugin):  # type: ignore[misc]
    name = "spark_lease"
    fastapi_apps: ClassVar[list[Any]] = [{"name": "Spark lease", "app": serve, "url_prefix": PREFIX}]
