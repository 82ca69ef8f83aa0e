"""`SparkLeaseSubmitOperator`: the Spark provider's operator, for a job that one of several schedulers runs."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.exceptions import TaskDeferralTimeout

from ..clock import span, wall_time
from ..config.settings import Config
from ..election.journal_entries import ALREADY_DONE
from ..errors import AlreadyDone, ConfigError, LeaseHeldByOther, SparkLeaseError
from ..monitoring.observer import LeaseObserver
from ..outcome import MISCONFIGURED, STANDBY, Outcome, outcome_of, refused
from .access import fitting, refuse_secrets, refuse_waiting
from .hook import SparkLeaseHook
from .link import LeaseLink, show_link
from .run_key import RUN_KEY, refuse_default
from .submission import GuardedSubmitHook, guarded
from .trigger import LeaseFreeTrigger

SKIP, FAIL, DEFER = "skip", "fail", "defer"
XCOM = "spark_lease"
_RECONNECTS = ("durable", "reconnect_on_retry", "yarn_track_via_rm_api", "track_driver_via_k8s_api")
"""With these the provider's spark-submit ends before its driver does."""
TEMPLATED = ("lease", "lease_conn_id", "run_key", "lease_settings")
_USAGE_CODES = (64, 78)
_SITES = "where each site has the setting site, it is skipped for a master of another one"


class SparkLeaseSubmitOperator(SparkSubmitOperator):  # type: ignore[misc]
    """Submits a Spark application that runs only while this site holds a lease.

    Takes every argument of SparkSubmitOperator except those by which a retry finds its driver again. A Python
    application gets its guard inside its driver, as by `spark-lease submit`; any other is guarded from outside, as by
    `spark-lease run`.

    :param lease: name of the lease; jobs under one name exclude each other across all DAGs and sites (templated)
    :param lease_conn_id: the Airflow connection of the lease store, see `SparkLeaseHook`; None: the settings of the
        worker's environment or of its conf/spark_lease.toml
    :param on_standby: what to do while another is master: `skip` the task, `fail` it (and maybe retry), or `defer` it:
        free the worker and try again once the lease is free. A retry is not skipped, but fails, unless the master is
        known to be of another `site`
    :param standby_timeout: seconds for which `defer`, or a warm standby, waits for the lease; then the task fails (with
        a warm standby: does what `on_standby` says); None: for ever
    :param run_key: names the work of this run for all sites: a key that is done is not run again, and the task succeeds
        (templated; by default DAG, task and logical date; empty: run whenever the lease is free). A mapped task needs
        one that names its work, as "flights {{ ds }} {{ task.application_args[0] }}"
    :param lease_settings: further settings of spark_lease, as {"lease_duration": 60} (templated)
    :param poll_period: seconds between looks at the lease while deferred

    The outcome is in the XCom `spark_lease`: lease, outcome, exit_code, epoch, holder, acquired, released, reason,
    run_key.
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, *TEMPLATED)
    operator_extra_links = (LeaseLink(),)

    def __init__(
        self,
        *,
        lease: str,
        lease_conn_id: str | None = None,
        on_standby: str = SKIP,
        standby_timeout: float | None = None,
        run_key: str = RUN_KEY,
        lease_settings: Mapping[str, Any] | None = None,
        poll_period: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"durable": False} | kwargs)
        if found := [each for each in _RECONNECTS if kwargs.get(each) or getattr(self, f"_{each}", False)]:
            raise ValueError(
                f"{found[0]}: a retry depends on the lease and the run key alone, and the driver's outcome is read "
                "from the lease store: remove this argument"
            )
        if on_standby not in (SKIP, FAIL, DEFER):
            raise ValueError(f"on_standby: {on_standby!r} is none of {SKIP}, {FAIL}, {DEFER}")
        self.lease_settings = settings = dict(lease_settings or {})
        self._is_warm = settings.get("standby") == "warm"
        if self._is_warm and on_standby == DEFER:
            raise ValueError(
                "on_standby: defer does not work with standby = 'warm': the task must wait in its worker, where "
                "Spark runs: use skip or fail, which apply after standby_timeout"
            )
        refuse_secrets(settings)
        refuse_waiting(settings, "if_held", *([] if self._is_warm else ["acquire_timeout"]))
        self.lease, self.lease_conn_id, self.on_standby = lease, lease_conn_id, on_standby
        self.standby_timeout, self.run_key, self.poll_period = standby_timeout, run_key, poll_period
        self._has_default_key = run_key == RUN_KEY and "run_key" not in settings

    def execute(self, context: Any) -> None:
        """Submit, unless another is master. Raises AirflowSkipException, AirflowException, or defers."""
        self._execute(context, None)

    def resume(self, context: Any, event: Mapping[str, Any], until: float | None = None) -> None:
        """Submit after a wait: the lease is free, or was a moment ago, or the run is done. `until`: the end of
        `standby_timeout`, in seconds since 1970."""
        if problem := event.get("problem"):
            raise AirflowException(problem)
        self._execute(context, until)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Any) -> Any:
        """As Airflow's method, but if the wait was too long, the error names the lease and the limit."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            limit = f"standby_timeout ({self.standby_timeout} s)"
            raise AirflowException(f"{self.lease}: was not free before {limit} was over") from None

    def on_kill(self) -> None:
        """End driver and JVM, wherever they run; its keeper releases the lease once they are gone."""
        # Airflow kills the task 5 s after this call: all of it has to be done by then, the release included.
        if self._hook:
            self._hook.on_kill()

    def _execute(self, context: Any, until: float | None) -> None:
        show_link(self, context["ti"])
        if self._has_default_key:
            refuse_default(context, "flights {{ ds }} {{ task.application_args[0] }}")
        try:
            config, settings, environment = self._prepare()
        except ConfigError as error:
            raise AirflowFailException(str(error)) from None
        known = known_before(config)
        if known is not None and not (self._is_warm and known.outcome == STANDBY):
            self._push(context, known)
            result, failed = known, None
        else:
            self._hook = guarded(self._get_hook(), settings, environment)
            result, failed = self._submit(context, config, self._hook)
        if result.outcome == STANDBY:
            self._stand_by(context, result, config, until)
        self._judge(result, failed)

    def _prepare(self) -> tuple[Config, Mapping[str, Any], Mapping[str, str]]:
        store = SparkLeaseHook(self.lease_conn_id)
        # Ask once, because Airflow handles a standby: a child that waits keeps the worker. Only a warm standby does.
        ours = {"run_key": fitting(self.run_key), **self.lease_settings, "if_held": "wait" if self._is_warm else SKIP}
        if self._is_warm and self.standby_timeout is not None:
            ours["acquire_timeout"] = self.standby_timeout
        return store.config(self.lease, ours), {"name": self.lease, **ours}, store.environment()

    def _submit(self, context: Any, config: Config, hook: GuardedSubmitHook) -> tuple[Outcome, AirflowException | None]:
        failed = None
        try:
            super().execute(context)
        except AirflowException as error:
            failed = error
        except BaseException:  # for example its time is over: the outcome is known once it has ended
            hook.end()
            raise
        finally:
            self._push(context, result := _outcome_of(hook, config))
        return result, failed

    def _judge(self, result: Outcome, failed: AirflowException | None) -> None:
        if result.outcome == ALREADY_DONE:
            self.log.info(result.reason)
            if result.exit_code:  # if_done = "skip"
                raise AirflowSkipException(result.reason)
        if failed is None:
            return
        if result.outcome == MISCONFIGURED or result.exit_code in _USAGE_CODES:
            raise AirflowFailException(result.reason or str(failed))
        if result.reason:
            raise AirflowException(f"{result.reason} (exit code {result.exit_code})") from None
        raise failed

    def _stand_by(self, context: Any, result: Outcome, config: Config, until: float | None) -> None:
        """Skip, fail or defer the task. Does not return."""
        if self.on_standby == SKIP:
            raise skipping(result.reason, config, context["ti"].try_number)
        if self.on_standby == FAIL:
            raise AirflowException(result.reason)
        if until is None and self.standby_timeout is not None:
            until = wall_time() + self.standby_timeout
        if until is not None and wall_time() >= until:
            raise AirflowException(f"{result.reason}; standby_timeout is over")
        self.log.info("%s; deferred until the lease is free", result.reason)
        seen_from_here = {key: getattr(config, key) for key in ("site", "preferred_site", "run_key")}
        trigger = LeaseFreeTrigger(
            lease=self.lease,
            lease_conn_id=self.lease_conn_id,
            lease_settings=self.lease_settings | seen_from_here,
            poll_period=self.poll_period if until is None else min(self.poll_period, max(until - wall_time(), 2.0) / 2),
            stands_by=config.holder or socket.gethostname(),
        )
        timeout = None if until is None else span(until - wall_time())
        self.defer(trigger=trigger, method_name="resume", kwargs={"until": until}, timeout=timeout)

    def _push(self, context: Any, result: Outcome) -> None:
        context["ti"].xcom_push(key=XCOM, value=asdict(result))


def known_before(config: Config) -> Outcome | None:
    """The outcome, if one look can tell it, which spares a JVM: the run is done, or another is master. None if that is
    unknown: then the submission finds out."""
    try:
        LeaseObserver(config).refuse_known(again=False)
    except (AlreadyDone, LeaseHeldByOther) as known:
        return refused(config, known)
    except SparkLeaseError:
        return None
    return None


def skipping(reason: str, config: Config, try_number: int) -> AirflowException:
    """The exception that skips a standby. A retry fails, unless the master is of another site: the master may be an
    earlier attempt that outlived its worker and may still fail, and the run would be green."""
    if try_number <= 1 or _is_held_elsewhere(config):
        return AirflowSkipException(reason)
    return AirflowException(
        f"{reason}; a retry is not skipped: an earlier attempt of this task may be at work still ({_SITES})"
    )


def _is_held_elsewhere(config: Config) -> bool:
    if not config.site:
        return False
    try:
        site = LeaseObserver(config, tells_site=True).look().site
    except SparkLeaseError:
        return False
    return site not in ("", config.site)


def _outcome_of(hook: GuardedSubmitHook, config: Config) -> Outcome:
    """The outcome that the submission printed last, or one made from its exit code if it printed none."""
    if hook.outcome is not None:
        return Outcome(**hook.outcome)
    code = hook.exit_code
    if code is None:  # nothing was started: the provider says why
        return outcome_of(config, "failed", 1)
    word, reason = ("failed", "the submission ended without saying how") if code else ("finished", "")
    return outcome_of(config, word, code, reason=reason)
