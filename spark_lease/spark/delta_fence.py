"""The Delta fence of a guarded driver: claims before its work begins, and the hook in every Spark that it makes."""

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
"""One for all leases of this process: a transaction asks each of them."""


class Fencing:
    """From the grant of one lease to its end."""

    def __init__(self, lease: GuardedHold, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._levels = lease, config, FencingStatus(lease, config)
        self._fence = DeltaFence(lease, config, clock)
        self._problem = self._said = ""

    def prepare(self) -> None:
        """While another may still be master: import what will be needed, so that the grant does not wait for it."""
        if self._fence.is_wanted:
            with contextlib.suppress(Exception):  # whatever it is, it is said when it is needed
                is_watchable()

    def begin(self) -> bool:
        """Claim, then watch for Sparks; True if a database was claimed. Raises Fenced, LeaseLost, StoreError,
        ConfigError: then nothing must begin."""
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
        """After the work has ended. Never raises, waits for nothing."""
        unwatch_contexts(self._install)
        hook.retire(self._fence)

    def _install(self, context: Any | None) -> None:
        try:
            lacking = _SERVED if context is None else hook.install(context)
        except Exception as error:  # Py4J raises anything
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
    """The lease of `config` has ended, whose block was entered by another process: this one was forked in it."""
    for fence in hook.fences:
        if isinstance(fence, DeltaFence) and fence.property == property_of(config.shared_name):
            hook.retire(fence)


def _asked_for_too_late(context: Any) -> str:
    """The packages of Delta that a script asks for in vain, by `configure_spark_with_delta_pip` say; most often ""."""
    packages = str(context.getConf().get("spark.jars.packages", "") or "")
    return packages if "io.delta:" in packages and under_spark_submit() else ""
