"""How a hold begins and ends: work starts after the grant is certain, and the release always comes last."""

import logging
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..errors import LeaseLost, Loss
from .hold import Hold

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.05


class Work(Protocol):
    """Guarded work that has been told to stop."""

    def wait_until_over(self, until: float) -> bool:
        """True once all of it has certainly ended; False if that is not certain by the instant `until`."""
        ...

    def kill(self) -> None:
        """Kill what is left, if that is allowed. Does not block; may be called repeatedly."""
        ...


class Renewing(Protocol):
    """Renews and watches the lease: `Keepalive`, or its stand-in beside a keeper process."""

    def start(self) -> None: ...

    def stop(self) -> bool:
        """Stop; False if a request to the store is still under way."""
        ...


def begin_hold(lease: Hold, keepalive: Renewing, *, still_wanted: Callable[[], None] = lambda: None) -> None:
    """Wait for the lease and start to renew it. If it raises (as `Hold.acquire` does, or LeaseLost), call `abandon`."""
    lease.acquire(still_wanted=still_wanted)
    keepalive.start()
    lease.check()  # this thread may have been frozen since the grant: then no work starts


def abandon(lease: Hold, keepalive: Renewing) -> None:
    """Give up a hold that did not begin. A request whose answer was lost or late may have taken the lease."""
    if keepalive.stop():
        lease.give_back()


def end_hold(
    lease: Hold,
    keepalive: Renewing,
    work: Work,
    *,
    clock: Clock,
    stop_budget: float,
    dying: float,
    on_over: Callable[[], None] = lambda: None,
    is_proven: Callable[[], bool] = lambda: True,
) -> LeaseLost | None:
    """Wait until the work is over, then release the lease; returns the loss if it was lost. May be called again.

    The lease is renewed until the work is over. The work is killed after `stop_budget` seconds, or earlier after a
    loss, and gets another `dying` seconds to end. If it may still run then, or a request to the store is still under
    way, nothing is released: the lease runs out. If looking at the work raises, the renewals stop.

    `on_over` is called between the end of the work and the release, if the lease is still held.

    A lost lease runs out as well, with one exception: if an operator told its master to give it up, the record is still
    ours. It is released if `is_proven`: the work is over everywhere, not only where this process can see it.
    """
    try:
        over = _see_out(lease, work, clock, stop_budget, dying)
    except Exception:  # a lease must not be renewed for ever after its block failed
        keepalive.stop()
        raise
    if over and lease.loss() is None:
        on_over()
    lost = lease.loss()
    if over and lost is not None:
        lease.settle()  # before `stop`, which waits for a hanging request: nothing is left to kill
    answered = keepalive.stop()
    if lost is None and over and answered:
        lease.give_back()
    elif lost is None:
        why = "the store hangs" if over else "it is not certain that the work has ended"
        log.error("%s: not released, it runs out: %s", lease.name, why)
    elif over and answered:
        lease.note_loss()
        if lost.reason is Loss.PREEMPTED and is_proven():
            lease.give_back()
    return lost


def _see_out(lease: Hold, work: Work, clock: Clock, stop_budget: float, dying: float) -> bool:
    """True once the work is over; kills it if its time is up."""
    end = clock.now() + stop_budget
    over = False
    while not over and clock.now() < (until := min(end, lease.stop_by())):
        over = work.wait_until_over(min(until, clock.now() + _LOOK_AGAIN))
    end = clock.now() + dying
    while not over and clock.now() < end:
        work.kill()
        over = work.wait_until_over(min(end, clock.now() + _LOOK_AGAIN))
    return over
