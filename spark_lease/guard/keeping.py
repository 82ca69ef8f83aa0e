"""Opens the hold of a block: a keeper process or two threads of this one renew it."""

import logging
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..config.settings import Config
from ..election.keepalive import Keepalive, LivenessCheck
from ..election.record import new_holder
from ..errors import ConfigError, LeaseLost
from ..holds import GuardedHold, open_contender
from ..keeper.client import KeeperHold
from ..keeper.deadline import shared_with_forks
from ..keeper.spawn import CannotStart, FrontDoor, start
from ..monitoring.events import Events
from ..spark.reporter import SparkReporter
from ..spark.session import Spark

log = logging.getLogger(__name__)

_NOT_HERE = "a guard inside a driver cannot contain it, spark-lease submit can"


def open_hold(
    config: Config,
    spark: Spark,
    *,
    clock: Clock,
    mark: str,
    front_door: FrontDoor | None,
    events: Events,
    liveness_checks: Sequence[LivenessCheck],
    on_lost: Callable[[LeaseLost], None],
    on_unprotected: Callable[[str], None],
) -> tuple[GuardedHold, Keepalive | SparkReporter]:
    """Open a contender in a keeper process, if configured and possible; else on threads of this process.

    Raises ConfigError if `keeper = "process"` or `require_protection` cannot be met.
    """
    if config.enabled and config.keeper != "thread":
        try:
            if front_door:
                started = front_door.begin(config)
            else:
                started = start(config, holder=new_holder(config.holder), mark=spark.mark, announces=bool(mark))
            kept = KeeperHold(started, config, clock=clock, on_renewal=events.renewal)
            if started.why:
                log.warning("%s: protection %s: %s", config.name, started.level, started.why)
            _require_protection(config, kept, started.why)
            return kept, SparkReporter(
                kept,
                spark,
                on_lost=on_lost,
                on_look=lambda: events.look(kept),
                on_unprotected=on_unprotected,
                liveness_checks=liveness_checks,
            )
        except CannotStart as error:
            if config.keeper == "process":
                raise ConfigError("keeper", f"cannot start the keeper process: {error}") from error
            log.warning("%s: cannot start the keeper process, renewing from threads instead: %s", config.name, error)
    hold = open_contender(config, clock, on_renewal=events.renewal, published=shared_with_forks())
    _require_protection(config, hold, "threads renew the lease")

    def look() -> None:
        events.look(hold)
        spark.look()

    return hold, Keepalive(hold, config, clock=clock, on_lost=on_lost, on_look=look, liveness_checks=liveness_checks)


def _require_protection(config: Config, hold: GuardedHold, why: str) -> None:
    wanted = config.require_protection
    if config.enabled and not hold.protection.covers(wanted):
        hold.close()
        raise ConfigError("require_protection", f"{wanted} is required, not {hold.protection}: {why or _NOT_HERE}")
