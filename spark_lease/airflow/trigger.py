"""`LeaseFreeTrigger`: waits in the triggerer, without a worker, by reading the lease."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

from airflow.providers.common.compat.sdk import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from ..clock import BootClock
from ..config.settings import Config
from ..election.directive import label_of
from ..election.locker import site_delay_of
from ..election.record import new_holder
from ..errors import ConfigError, SparkLeaseError, StoreError
from ..journal.standbys import Presence
from ..monitoring.observer import BLOCKED, HELD, LeaseObserver, LeaseStatus
from .access import config_of
from .hook import SparkLeaseHook


class LeaseFreeTrigger(BaseTrigger):  # type: ignore[misc]
    """Fires once the lease is free; with `holder` or `site`: once that label, or site, holds it.

    It reads the lease and never takes it. It first looks one `poll_period` after its start: the task itself has just
    looked, and Airflow fails a task whose trigger fires before the scheduler knows that the task is deferred.

    A store that does not answer is asked again; bad settings become an event with a `problem`. With `stands_by`, the
    label of a contender, it is noted beside the lease and lets a contender of the preferred site go first; it then also
    fires once another has done the `run_key` of the settings.
    """

    def __init__(
        self,
        *,
        lease: str,
        lease_conn_id: str | None = None,
        lease_settings: Mapping[str, Any] | None = None,
        poll_period: float = 10.0,
        holder: str = "",
        site: str = "",
        stands_by: str = "",
    ) -> None:
        super().__init__()
        self.lease, self.lease_conn_id, self.holder, self.site = lease, lease_conn_id, holder, site
        self.lease_settings, self.poll_period, self.stands_by = dict(lease_settings or {}), poll_period, stands_by

    def serialize(self) -> tuple[str, dict[str, Any]]:
        keys = ("lease", "lease_conn_id", "lease_settings", "poll_period", "holder", "stands_by")
        # A triggerer that was not upgraded yet knows no site.
        values = {key: getattr(self, key) for key in keys} | ({"site": self.site} if self.site else {})
        return f"{type(self).__module__}.{type(self).__qualname__}", values

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            config = await self._config()
            observer, seen = LeaseObserver(config, tells_site=bool(self.site)), None
            site_delay = site_delay_of(config, self.poll_period) if self.stands_by else 0.0
            with closing(Presence(config, BootClock(), holder=new_holder(self.stands_by))) as presence:
                left_alone, pause = not site_delay, self.poll_period
                while True:
                    if self.stands_by:
                        presence.say()
                    await asyncio.sleep(pause)  # before the first look too: until then Airflow may not know of the wait
                    is_free = is_wanted(seen := await self._look(observer), self.holder, self.site)
                    if (is_free and left_alone) or (self.stands_by and await self._is_done(observer)):
                        break
                    left_alone, pause = is_free or not site_delay, site_delay if is_free else self.poll_period
            yield TriggerEvent(asdict(seen) if seen else {})
        except (ConfigError, AirflowException) as error:
            yield TriggerEvent({"problem": str(error)})

    async def _config(self) -> Config:
        connection = None
        if self.lease_conn_id:
            connection = await SparkLeaseHook.aget_connection(self.lease_conn_id)
        config = config_of(self.lease, connection, self.lease_settings)
        return replace(config, holder=self.stands_by) if self.stands_by else config  # not the triggerer's

    async def _look(self, observer: LeaseObserver) -> LeaseStatus | None:
        try:
            return await asyncio.to_thread(observer.look)
        except StoreError as error:
            self.log.warning("%s: cannot read the lease, trying again: %s", self.lease, error)
            return None

    async def _is_done(self, observer: LeaseObserver) -> bool:
        try:
            return bool(await asyncio.to_thread(observer.done_under))
        except SparkLeaseError:  # `_look` logs why, or the task reports it once it is back
            return False


def is_wanted(seen: LeaseStatus | None, holder: str, site: str) -> bool:
    """True if the lease can be taken; with `holder` or `site`: if that one holds it. False if unknown."""
    if seen is None:
        return False
    if holder or site:
        return seen.state == HELD and holder in ("", label_of(seen.holder)) and site in ("", seen.site)
    return seen.state not in (HELD, BLOCKED)
