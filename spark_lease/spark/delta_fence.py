"""The Delta fence of a guarded driver: makes claims before work begins, puts the hook into every new Spark."""

import contextlib
import logging
from typing import Any

from ..clock import Clock
from ..config.settings import Config
from ..errors import ConfigError
from ..fencing.delta.fence import property_of
from ..fencing.delta.tables import DeltaFence, level_of
from ..fencing.status import FencingStatus
from ..holds import GuardedHold
from .connect import is_connected
from .contexts import is_watchable, unwatch_contexts, watch_contexts
from .delta_observer import NO_DELTA, DeltaObserver
from .jvm import under_spark_submit

log = logging.getLogger(__name__)

_SERVED = "a Spark of this process (it is a Spark Connect server's)"
hook = DeltaObserver()
"""Shared by all leases of this process: a transaction asks the fence of each."""


class Fencing:
    """The claims and the Delta fence of one lease, from its grant to its end."""

    def __init__(self, lease: GuardedHold, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._levels = lease, config, FencingStatus(lease, config)
        self._fence = DeltaFence(lease, config, clock)
        self._problem = self._said = ""

    def prepare(self) -> None:
        """Import the needed modules while another may still be master, so that the grant does not wait for them."""
        if self._fence.is_wanted:
            with contextlib.suppress(Exception):  # any error: it is reported when the module is needed
                is_watchable()

    def begin(self) -> bool:
        """Claim, then watch for new Spark contexts; True if a database was claimed. Raises Fenced, LeaseLost,
        StoreError, ConfigError: then no work may begin."""
        if has_claimed := self._lease.claim_databases():
            self._levels.show(sql="claimed")
        hook.forget(self._fence.property)
        self._problem = self._fence.claim_all()
        self._levels.show(delta=level_of(self._fence, self._problem))
        if self._fence.is_wanted:
            if not self._problem:
                hook.add(self._fence)
            watch_contexts(self._install)
            if is_connected():
                self._install(None)
        return has_claimed

    def end(self) -> None:
        """Retire the fence after the work has ended. Never raises, does not block."""
        unwatch_contexts(self._install)
        hook.retire(self._fence)

    def _install(self, context: Any | None) -> None:
        try:
            lacking = _SERVED if context is None else hook.install(context)
        except Exception as error:  # Py4J may raise anything
            lacking = f"the hook ({type(error).__name__}: {error})"
        if not self._problem:
            self._levels.show(delta="claims" if lacking else "hook")
        if not lacking:
            self._fence.get_ready()
        if lacking == NO_DELTA and (packages := _asked_for_too_late(context)):
            message = "%s: the script needs %s, but Spark already runs: start spark-submit with --packages %s"
            log.warning(message, self._lease.name, packages, packages)
        if lacking == NO_DELTA and self._config.fence_delta == "auto":
            return
        if lacking and self._config.fence_delta == "required":
            raise ConfigError("fence_delta", f"is required, but needs {lacking}")
        if lacking and lacking == self._said:
            return
        self._said = lacking
        if self._problem:
            log.warning("%s: Delta tables are NOT FENCED: %s", self._lease.name, self._problem)
        elif lacking:
            log.warning(
                "%s: Delta tables are fenced by claims alone: a write that a former master begins after a claim is not "
                "refused; missing: %s",
                self._lease.name,
                lacking,
            )


def retire_fence(config: Config) -> None:
    """Retire the fence of `config`'s lease, which has ended: its block was entered by the parent of this fork."""
    for fence in hook.fences:
        if fence.property == property_of(config.shared_name):
            hook.retire(fence)


def _asked_for_too_late(context: Any) -> str:
    """The Delta packages that a script requests too late, e.g. by `configure_spark_with_delta_pip`; usually ""."""
    packages = str(context.getConf().get("spark.jars.packages", "") or "")
    return packages if "io.delta:" in packages and under_spark_submit() else ""
