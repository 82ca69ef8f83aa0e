"""The two loops that keep a lease: one renews, one watches.

The renewing thread talks to the store and never watches the time. The watching thread never talks to the store and
takes no lock of the other: it demotes even while the store hangs. One pass of each is `renew_once` and `watch_once`,
which the keeper process and the simulator run too.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence

from ..clock import Clock
from ..config.settings import Config
from ..errors import LeaseLost, Loss, StoreError
from .contender import Contender
from .hold import Hold

log = logging.getLogger(__name__)

WATCH_PERIOD = 0.1
"""Seconds between two looks at the deadline and the liveness checks: by so much demotion may start late."""
_RETRIES_IN_A_PERIOD = 5
LATE = 1.2
"""Factor on `attempt_timeout`: a request that is cut off ends a little after it."""

LivenessCheck = Callable[[], tuple[Loss, str] | None]
"""Returns why the lease must be given up although it could be renewed; None if it need not."""


def renew_once(lease: Contender, config: Config, clock: Clock) -> float | None:
    """Try to renew; returns the seconds until the next attempt, None if the lease is lost.

    After a failure the next attempt comes sooner: the deadline is near, and most failures are a broken connection.
    """
    sent, pause = clock.now(), config.retry_period / _RETRIES_IN_A_PERIOD
    try:
        lease.renew()
        log.debug("%s: renewed, epoch %d", lease.name, lease.epoch)
        lease.last_problem = ""
        pause = config.retry_period
    except LeaseLost:
        return None
    except StoreError as error:
        lease.last_problem = str(error)
        log.warning("%s: renewal failed, %.1f s left: %s", lease.name, lease.remaining(), error)
    except Exception as error:  # any fault of a store counts as no answer, and must not end the renewals
        lease.last_problem = type(error).__name__
        log.exception("%s: renewal failed, %.1f s left", lease.name, lease.remaining())
    return max(sent + pause - clock.now(), 0.0)


def watch_once(lease: Hold, liveness_checks: Sequence[LivenessCheck] = ()) -> LeaseLost | None:
    """The loss, if the lease is lost by now: by its deadline, by a renewal, or by a liveness check."""
    for check in liveness_checks:
        with contextlib.suppress(Exception):  # a failing check must not end the watch, which everything relies on
            if finding := check():
                lease.lose(*finding)
    return lease.loss()


class Keepalive:
    """Runs both loops on threads of this process, from `start` to `stop`."""

    def __init__(
        self,
        lease: Contender,
        config: Config,
        *,
        clock: Clock,
        on_lost: Callable[[LeaseLost], None],
        liveness_checks: Sequence[LivenessCheck] = (),
        on_look: Callable[[], None] = lambda: None,
        watch_period: float = WATCH_PERIOD,
        thread: Callable[..., threading.Thread] = threading.Thread,
    ) -> None:
        """`on_look` is called at each look. `watch_period` may be longer if another thread watches too. `thread` makes
        a thread; a simulator passes its own."""
        self._lease, self._config, self._clock = lease, config, clock
        self._on_lost, self._liveness_checks = on_lost, liveness_checks
        self._on_look, self._watch_period = on_look, watch_period
        self._stop = threading.Event()
        self._renewer = thread(target=self._renew, name=f"renew {lease.name}", daemon=True)
        self._watcher = thread(target=self._watch, name=f"watch {lease.name}", daemon=True)

    def start(self) -> None:
        self._watcher.start()
        self._renewer.start()

    def stop(self) -> bool:
        """End both loops; False if a request to the store is still under way after `attempt_timeout`."""
        self._stop.set()
        for thread in (self._renewer, self._watcher):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(self._config.attempt_timeout * LATE + WATCH_PERIOD)
        return not self._renewer.is_alive()

    def _renew(self) -> None:
        pause: float | None = self._config.retry_period
        while pause is not None and not self._clock.wait(self._stop, pause):
            pause = renew_once(self._lease, self._config, self._clock)

    def _watch(self) -> None:
        lost = None
        while lost is None and not self._clock.wait(self._stop, self._watch_period):
            lost = watch_once(self._lease, self._liveness_checks)
            if lost is None:
                with contextlib.suppress(Exception):  # a failing callback must not end the watch
                    self._on_look()
        if lost is not None:
            self._on_lost(lost)
