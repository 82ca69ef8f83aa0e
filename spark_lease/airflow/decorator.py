"""`@task.leased`: runs a callable under a lease, in the Python of another environment, which may have Spark."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    task_decorator_factory,
)
from airflow.providers.standard.decorators.external_python import _PythonExternalDecoratedOperator

from ..clock import BootClock
from ..election.journal_entries import ALREADY_DONE
from ..errors import ConfigError
from .access import as_environment, fitting, refuse_secrets, refuse_waiting
from .hook import SparkLeaseHook
from .link import LeaseLink, show_link
from .operator import FAIL, SKIP, TEMPLATED, known_before, skipping
from .run_key import RUN_KEY, refuse_default


class LeasedPythonOperator(_PythonExternalDecoratedOperator):  # type: ignore[misc]
    """ExternalPythonOperator whose callable is called only while this site holds a lease, by `spark_lease.leased`.

    Takes the arguments of `@task.external_python`; its `python` must have spark_lease, and a driver of the lease
    store's database. The callable may build a SparkSession; `spark_lease.current_lease()` gives it its lease.

    :param lease: name of the lease (templated)
    :param lease_conn_id: the Airflow connection of the lease store, see `SparkLeaseHook` (templated)
    :param on_standby: `skip` the task while another is master, or `fail` it; a retry is skipped only if the master is
        known to be of another `site`
    :param run_key: see `SparkLeaseSubmitOperator`; if it is done, the task succeeds and returns None (templated). A
        mapped task needs one that names its work, as "flights {{ ds }} {{ task.op_kwargs.file }}"
    :param lease_settings: further settings of spark_lease (templated)
    """

    template_fields: Sequence[str] = (*_PythonExternalDecoratedOperator.template_fields, *TEMPLATED)
    operator_extra_links = (LeaseLink(),)
    custom_operator_name = "@task.leased"

    def __init__(
        self,
        *,
        lease: str,
        lease_conn_id: str | None = None,
        on_standby: str = SKIP,
        run_key: str = RUN_KEY,
        lease_settings: Mapping[str, Any] | None = None,
        expect_airflow: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(expect_airflow=expect_airflow, **kwargs)
        if on_standby not in (SKIP, FAIL):
            raise ValueError(f"on_standby: {on_standby!r} is none of {SKIP}, {FAIL}")
        self.lease_settings = settings = dict(lease_settings or {})
        if settings.get("standby") == "warm":
            raise ValueError(
                "standby: this task asks once, and does not wait: use SparkLeaseSubmitOperator for a warm one"
            )
        refuse_secrets(settings)
        refuse_waiting(settings, "if_held", "acquire_timeout")
        self.lease, self.lease_conn_id, self.on_standby, self.run_key = lease, lease_conn_id, on_standby, run_key
        self._has_default_key = run_key == RUN_KEY and "run_key" not in settings

    def get_python_source(self) -> str:
        name, left = self.python_callable.__name__, 0.0
        if self.execution_timeout:
            left = max(self._begun + self.execution_timeout.total_seconds() - BootClock().now(), 0.1)
        guarded = f"{name} = under_lease({name}, {os.getpid()}, {left})"
        return f"{super().get_python_source()}\nfrom spark_lease.airflow.callable import under_lease\n{guarded}\n"

    def execute(self, context: Any) -> Any:
        self._begun, self._try_number = BootClock().now(), context["ti"].try_number
        show_link(self, context["ti"])
        if self._has_default_key:
            refuse_default(context, "flights {{ ds }} {{ task.op_kwargs.file }}")
        return super().execute(context)

    def _is_pendulum_installed_in_target_env(self) -> bool:
        """As the provider's method, which leaves a traceback in the log of each task."""
        if self.expect_pendulum:
            return bool(super()._is_pendulum_installed_in_target_env())
        with suppress(OSError):
            asked = subprocess.run([self.python, "-c", "import pendulum"], stderr=subprocess.DEVNULL, check=False)
            return asked.returncode == 0
        return False

    def execute_callable(self) -> Any:
        store = SparkLeaseHook(self.lease_conn_id)
        ours = {"run_key": fitting(self.run_key), **self.lease_settings, "if_held": SKIP}
        try:
            config = store.config(self.lease, ours)
            variables = store.environment() | as_environment({"name": self.lease, **ours})
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        self.env_vars: dict[str, str] = {**(self.env_vars or {}), **variables}
        try:
            return super().execute_callable()
        except subprocess.CalledProcessError as ended:
            if ended.returncode != config.standby_exit_code:
                raise
            known = known_before(config)  # the same look again, to learn the reason
            reason = known.reason if known else f"{self.lease}: another was master"
            if known and known.outcome == ALREADY_DONE:
                raise AirflowSkipException(reason) from None
            if self.on_standby == FAIL:
                raise AirflowException(reason) from None
            raise skipping(reason, config, self._try_number) from None


def leased_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> Any:
    """`@task.leased(lease="nightly", python="/opt/spark/bin/python")`, see `LeasedPythonOperator`."""
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=LeasedPythonOperator, **kwargs
    )
