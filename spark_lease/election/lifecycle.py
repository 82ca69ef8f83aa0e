"""How a hold begins and ends: nothing begins before it is certain, and the release comes last, whatever happens."""

import logging
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..errors import LeaseLost, Loss
from .hold import Hold

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.05


class Work(Protocol):
    """What a lease guards, after it was told to stop."""

    def wait_until_over(self, until: float) -> bool:
        """True once it is certain that nothing of it runs any more; False if it is not by the instant `until`."""
        ...

    def kill(self) -> None:
        """End all that is left, by force if that is allowed. Waits for nothing; may be called again and again."""
        ...


class Renewing(Protocol):
    """What renews the lease and watches it: `Keepalive`, or what stands for it in a process that is kept for."""

    def start(self) -> None: ...

    def stop(self) -> bool:
        """End that; False if a request to the store is still under way."""
        ...


def begin_hold(lease: Hold, keepalive: Renewing, *, still_wanted: Callable[[], None] = lambda: None) -> None:
    """Wait for the lease and keep it. Raises what `Hold.acquire` raises, and LeaseLost; then call `abandon`."""
    lease.acquire(still_wanted=still_wanted)
    keepalive.start()
    lease.check()  # this thread may have stood still since the grant: then nothing begins


def abandon(lease: Hold, keepalive: Renewing) -> None:
    """Give up a hold that did not begin: a request whose answer was lost, or came too late, may have taken it."""
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
    """See the work out, then give the lease back; the loss if it was lost before. May be called again.

    `on_over` is called in between, if the work is over and the lease still mine; it is renewed meanwhile.

    The lease is renewed until the work is over. It is killed after `stop_budget` seconds, or when a loss says so, and
    another `dying` seconds are allowed for it to be gone. If it may still run then, or the store still has a request,
    nothing is released: the lease runs out. If the work cannot even be looked at, it is not renewed any more.

    A lease that is lost runs out as well, with one exception: an operator has told its master to give it up. Its record
    is still mine, so it is given back, if `is_proven`: the work is over everywhere, not only where it can be seen.
    """
    try:
        over = _see_out(lease, work, clock, stop_budget, dying)
    except Exception:  # any error: a lease without an owner must not be renewed for ever
        keepalive.stop()
        raise
    if over and lease.loss() is None:
        on_over()
    lost = lease.loss()
    if over and lost is not None:
        lease.settle()  # first, because a request that hangs is waited for: nothing is left to be killed
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
    """True once the work is over; it is killed if it has to be."""
    end = clock.now() + stop_budget
    over = False
    while not over and clock.now() < (until := min(end, lease.stop_by())):
        over = work.wait_until_over(min(until, clock.now() + _LOOK_AGAIN))
    end = clock.now() + dying
    while not over and clock.now() < end:
        work.kill()
        over = work.wait_until_over(min(end, clock.now() + _LOOK_AGAIN))
    return over
