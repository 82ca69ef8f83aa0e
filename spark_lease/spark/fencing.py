"""The Delta fence of a guarded driver: claims before its work begins, and the hook in every Spark that it makes."""

from __future__ import annotations

import logging
from typing import Any

from ..clock import Clock
from ..config import Config
from ..errors import ConfigError
from ..fences.delta_tables import DeltaFence
from ..lease import Lease
from .connect import is_connected
from .contexts import unwatch_contexts, watch_contexts
from .delta_hook import NO_DELTA, DeltaHook

log = logging.getLogger(__name__)

_hook = DeltaHook()
"""One for all leases of this process: a transaction asks each of them."""


class Fencing:
    """From the grant of one lease to its end."""

    def __init__(self, lease: Lease, config: Config, clock: Clock) -> None:
        self._lease, self._config = lease, config
        self._fence = DeltaFence(lease, config, clock)
        self._problem = ""

    def begin(self) -> None:
        """Claim, then watch for Sparks. Raises Fenced, LeaseLost, StoreError, ConfigError: then nothing must begin."""
        self._problem = self._fence.claim_all()
        if self._config.fence_delta == "off" or not self._config.enabled:
            return
        if self._config.fence_delta == "required" and is_connected():
            raise ConfigError("fence_delta", "is required, and cannot be had on a Spark Connect server")
        if not self._problem:
            _hook.add(self._fence)
        watch_contexts(self._install)

    def end(self) -> None:
        """After the work has ended. Never raises."""
        unwatch_contexts(self._install)
        _hook.discard(self._fence)

    def _install(self, context: Any) -> None:
        lacking = _hook.install(context)
        if lacking == NO_DELTA and self._config.fence_delta == "auto":
            return
        if lacking and self._config.fence_delta == "required":
            raise ConfigError("fence_delta", f"is required, and cannot be had without {lacking}")
        if self._problem:
            log.warning("%s: Delta tables are NOT FENCED: %s", self._lease.name, self._problem)
        elif lacking:
            log.warning(
                "%s: Delta tables are fenced by claims alone: what a former master begins to write after them is not "
                "refused, without %s",
                self._lease.name,
                lacking,
            )
