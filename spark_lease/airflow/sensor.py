"""`SparkLeaseSensor`: waits until this site is master, or the lease is free. It looks and does not guard."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException, BaseSensorOperator

from ..clock import span
from ..errors import ConfigError, StoreError
from ..monitoring.observer import HELD, LeaseObserver, LeaseStatus
from .access import refuse_secrets
from .hook import SparkLeaseHook
from .link import LeaseLink, show_link
from .trigger import LeaseFreeTrigger, is_wanted

XCOM = "spark_lease"


class SparkLeaseSensor(BaseSensorOperator):  # type: ignore[misc]
    """Waits until a lease is free, or until a holder or site holds it.

    **It looks and does not guard.** What it saw may be over before the next task begins: another may take the lease in
    that moment, or the master may lose it. Use it to start work that does no harm if two do it. Work that must not be
    done twice needs the lease itself: `SparkLeaseSubmitOperator`, `spark-lease run`, `hold_lease`.

    :param lease: name of the lease (templated)
    :param holder: wait until the lease is held under this label, which is the `holder` setting of a site's jobs (their
        host's name, if they have none) (templated)
    :param site: wait until the lease is held by a job of this `site` (templated); without both: until it is free
    :param lease_conn_id: the Airflow connection of the lease store, see `SparkLeaseHook`
    :param lease_settings: further settings of spark_lease (templated)
    :param deferrable: wait in the triggerer, without a worker

    If the store does not answer, that is neither yes nor no: it is asked again until `timeout`. The last status is in
    the XCom `spark_lease`.
    """

    template_fields: Sequence[str] = ("lease", "holder", "site", "lease_conn_id", "lease_settings")
    operator_extra_links = (LeaseLink(),)

    def __init__(
        self,
        *,
        lease: str,
        holder: str = "",
        site: str = "",
        lease_conn_id: str | None = None,
        lease_settings: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_secrets(lease_settings or {})
        self.lease, self.holder, self.site, self.lease_conn_id = lease, holder, site, lease_conn_id
        self.lease_settings, self.deferrable = dict(lease_settings or {}), deferrable
        self._observer: LeaseObserver | None = None

    def execute(self, context: Any) -> None:
        show_link(self, context["ti"])
        if not self.deferrable:
            super().execute(context)
        elif not self.poke(context):
            trigger = LeaseFreeTrigger(
                lease=self.lease,
                lease_conn_id=self.lease_conn_id,
                lease_settings=self.lease_settings,
                poll_period=self.poke_interval,
                holder=self.holder,
                site=self.site,
            )
            self.defer(trigger=trigger, method_name="resume", timeout=span(self.timeout))

    def resume(self, context: Any, event: Mapping[str, Any]) -> None:
        """Push the status that the trigger has seen."""
        if problem := event.get("problem"):
            raise AirflowFailException(problem)
        context["ti"].xcom_push(key=XCOM, value=dict(event))

    def poke(self, context: Any) -> bool:
        seen = self._look()
        if seen is not None:
            context["ti"].xcom_push(key=XCOM, value=asdict(seen))
            self._refuse_to_forget(seen)
        return is_wanted(seen, self.holder, self.site)

    def _refuse_to_forget(self, seen: LeaseStatus) -> None:
        if (
            self.reschedule
            and not self.deferrable
            and not (self.holder or self.site)
            and seen.state == HELD
            and seen.expires_in is None
        ):
            raise AirflowFailException(
                f"{self.lease}: its store has no clock, and a sensor that is rescheduled cannot watch a lease until it "
                "runs out: deferrable=True, or mode='poke'"
            )

    def _look(self) -> LeaseStatus | None:
        try:
            if self._observer is None:
                config = SparkLeaseHook(self.lease_conn_id).config(self.lease, self.lease_settings)
                self._observer = LeaseObserver(config, tells_site=bool(self.site))
            return self._observer.look()
        except StoreError as error:
            self.log.warning("%s: cannot read the lease, trying again: %s", self.lease, error)
            return None
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
