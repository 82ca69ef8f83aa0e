"""The Spark provider's submission, with `spark-lease` around its command line.

The provider's hook still builds spark-submit's command line and reads its output. This module adds the words before it,
the secrets in the environment, a process group that can be ended, and the outcome in the last JSON line.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.common.compat.sdk import AirflowFailException

from ..clock import BootClock
from ..submit.command_line import is_for_cluster
from ..system.processes import shell_code
from .access import as_flags

_POLITE = 3.0
"""Seconds that a submission gets to end by itself: Airflow kills the task 5 s after telling it to end."""
_GONE = 1.0
_LOOK_AGAIN = 0.05
_NOT_IN_CLUSTER = (
    "deploy mode cluster: a guard around spark-submit cannot end a driver elsewhere: use client mode, or "
    "spark_lease.leased inside the application with SparkSubmitOperator"
)


def around(settings: Mapping[str, Any], command: list[str], application: str) -> list[str]:
    """The command line that runs `command`, a spark-submit of `application`, under the lease of `settings`.

    A Python script gets its guard inside the driver; anything else is run as a command, and killed for certain.
    """
    ours, flags = [sys.executable, "-m", "spark_lease"], as_flags(settings)
    if sys.platform == "linux":  # so that a killed task leaves no driver behind
        flags += [f"--ends-with={os.getpid()}"]
    if _is_script(application, is_for_cluster(_options(command, application))):
        return [*ours, "submit", *flags, f"--spark-submit={command[0]}", "--", *command[1:]]
    return [*ours, "run", *flags, "--", *command]


def _options(command: list[str], application: str) -> list[str]:
    return command[: command.index(application)] if application in command else command


def _is_script(application: str, in_cluster: bool) -> bool:
    """True for a Python script; in a cluster, it may be a file of the cluster, or of its image."""
    return application.endswith(".py") and (in_cluster or Path(application).is_file())


class GuardedSubmitHook(SparkSubmitHook):  # type: ignore[misc]
    """A SparkSubmitHook whose submission runs under a lease; made by `guarded`."""

    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    outcome: dict[str, Any] | None
    in_cluster: bool

    def submit(self, application: str = "", **kwargs: Any) -> Any:
        return super().submit(application, start_new_session=True, **kwargs)

    def _build_spark_submit_command(self, application: str) -> list[str]:
        command = super()._build_spark_submit_command(application)
        # Not as env_vars: on YARN and Kubernetes the provider writes those on the command line.
        self._env: dict[str, str] = {**(self._env or {}), **self.environment}
        if is_for_cluster(_options(command, application)):  # an argument, the connection, or a setting of Spark
            if not _is_script(application, True):
                raise AirflowFailException(_NOT_IN_CLUSTER)
            self.in_cluster, self._connection["deploy_mode"] = True, "cluster"  # so the provider finds the driver
        return around(self.settings, command, application)

    def _process_spark_submit_log(self, itr: Iterator[str]) -> None:
        super()._process_spark_submit_log(self._overheard(itr))

    def _overheard(self, lines: Iterable[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith('{"lease": '):
                with contextlib.suppress(ValueError):
                    self.outcome = json.loads(line)
            yield line

    def end(self) -> None:
        """End the submission, and read its last output, which may come from a process that lives on."""
        self.on_kill()
        if self._submit_sp and self._submit_sp.stdout:
            lines = iter(self._submit_sp.stdout)
            last = threading.Thread(target=self._process_spark_submit_log, args=(lines,), daemon=True)
            last.start()
            last.join(_GONE)

    @property
    def exit_code(self) -> int | None:
        """The exit code as a shell reports it; None if nothing was started, or it has not ended."""
        code = self._submit_sp.returncode if self._submit_sp else None
        return None if code is None else shell_code(code)

    def on_kill(self) -> None:
        if self.in_cluster:
            self._kill_in_cluster()
            return
        if self._submit_sp and self._submit_sp.poll() is None:
            self.log.info("ending the submission, process group %d", self._submit_sp.pid)
            if not self._end_group(signal.SIGTERM, _POLITE):
                self.log.warning("spark-submit did not end in time: killing it")
                self._end_group(signal.SIGKILL, _GONE)
        super().on_kill()

    def _kill_in_cluster(self) -> None:
        """End the driver by the provider, which can do so while its own process lives: so that ends last."""
        is_there = self._submit_sp is not None and self._submit_sp.poll() is None
        self.log.warning("ending the application in the cluster; if that fails, it goes on and keeps its lease")
        try:
            super().on_kill()
        except FileNotFoundError as error:
            self.log.error("the application is not ended, end it in the cluster: %s", error)
        finally:
            if is_there:
                self._end_group(signal.SIGKILL, _GONE)

    def _end_group(self, number: int, patience: float) -> bool:
        clock, never = BootClock(), threading.Event()
        end = clock.now() + patience
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._submit_sp.pid, number)
            while clock.now() < end:
                self._submit_sp.poll()
                os.killpg(self._submit_sp.pid, 0)
                clock.wait(never, _LOOK_AGAIN)
            return False
        return True


def guarded(hook: Any, settings: Mapping[str, Any], environment: Mapping[str, str]) -> GuardedSubmitHook:
    """Turn the hook of the provider's operator, with all arguments of its version, into one under a lease.

    `settings` go onto the command line, `environment` has the secrets."""
    hook.__class__ = GuardedSubmitHook
    hook.settings, hook.environment, hook.outcome, hook.in_cluster = settings, environment, None, False
    return hook  # type: ignore[no-any-return]
