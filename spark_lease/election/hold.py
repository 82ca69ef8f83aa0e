"""One hold on a lease: how long I may believe that it is mine, and what I must have stopped by when.

What a store says is judged in `locker.py`, what its answers mean for a hold in `contender.py`; the rules of a record
are in `record.py`, the loops that renew and watch in `keepalive.py`.

What it does not do: it stops no work (`guard/`) and it cannot hold back a write that was sent while
the lease was good and lands after it ran out. Only a fence in the guarded store can do that.

```
 renewal SENT   retry fails   retry fails   retry fails    renew_deadline      lease_duration
   |---------------x-------------x-------------x--------------|--- stop_budget ---|----> others may start
   check() answers ------------------------------------------>| raises           | all work has ended
```
"""

import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock, wall_time
from ..config.settings import Config
from ..config.urls import local_url, redacted
from ..errors import ConfigError, LeaseLost, Loss, StoreError
from .journal_entries import RELEASED
from .record import Protection

log = logging.getLogger(__name__)

_OVERDUE = 1.1
"""Retry periods after which a renewal that was not confirmed is overdue."""
_LOOK_AGAIN = 0.05
JUMP = 1.0
"""Seconds by which the wall clock may gain on the other one between two renewals: NTP moves it by less."""


class Deadline(Protocol):
    """The instant until which a lease is mine, where all can see it who work under it."""

    @property
    def instant(self) -> float: ...

    @property
    def ahead(self) -> float:
        """How far the wall clock was ahead when the renewal was sent that confirmed it, see `Clock.ahead`."""
        ...

    def publish(self, instant: float, ahead: float) -> None: ...

    def lose(self) -> None:
        """Publish that it is lost."""
        ...

    def disarm(self) -> None:
        """Nothing runs any more that would have to be ended because of it."""
        ...


class OwnDeadline:
    """Seen in this process alone. Implements `Deadline`."""

    instant, ahead = -math.inf, 0.0

    def publish(self, instant: float, ahead: float) -> None:
        self.instant, self.ahead = instant, ahead

    def lose(self) -> None:
        """Only this process reads it, and it knows of the loss."""

    def disarm(self) -> None:
        """It ends no process."""


class Hold(ABC):
    """A hold on one lease, for those who work under it: acquired once, then lost or released for good.

    Several threads use it without a lock between them. A thread that finds it lost says so, and the first one wins;
    any thread may `check()`. A clock alone says whether it is held: past its deadline a lease is lost even if no thread
    has noticed.
    """

    def __init__(
        self, config: Config, *, holder: str, clock: Clock, deadline: Deadline, protection: Protection
    ) -> None:
        self.name, self.holder, self.protection = config.name, holder, protection
        self.store = redacted(config.url)
        self._config, self._clock, self._deadline = config, clock, deadline
        self._epoch = 0
        self._acquired = False
        self._lost: list[tuple[Loss, str, float, bool]] = []
        self.last_problem = ""
        """Of the renewals since the last one that was confirmed."""
        self.released_at = 0.0
        self._ending = RELEASED, ""

    @property
    def is_kept_by_another(self) -> bool:
        """True if another process keeps it, which kills what is left of the guarded work when this one ends."""
        return False

    @property
    def epoch(self) -> int:
        """The fencing token of this hold; larger than that of every hold before it. 0: not acquired yet."""
        return self._epoch

    def check(self) -> int:
        """The epoch, if the lease is mine at this instant; else raises LeaseLost. Costs no I/O, call it freely.

        Where the wall clock has jumped ahead since the last renewal, by a second or more, this machine may have stood
        still, and its other clock with it: then it waits until the lease is renewed, or lost.
        """
        while True:
            epoch = self._still_mine()
            if self._clock.ahead() - self._deadline.ahead < JUMP:
                return epoch
            self._clock.wait(threading.Event(), _LOOK_AGAIN)

    def _still_mine(self) -> int:
        if not self._lost and self._clock.now() < self._deadline.instant:
            return self._epoch
        raise self.lost_error()

    def remaining(self) -> float:
        """Seconds that `check()` will go on to answer without another renewal; 0 once lost."""
        return 0.0 if self._lost else max(self._deadline.instant - self._clock.now(), 0.0)

    def __repr__(self) -> str:
        ended = self._lost[0][0] if self._lost else None
        state = "released" if ended is Loss.RELEASED else "lost" if ended else "held" if self._epoch else "not acquired"
        left = f", {self.remaining():.1f} s left" if state == "held" else ""
        return f"<Lease {self.name!r} {state}, epoch {self._epoch}, protection {self.protection}{left}>"

    @property
    def is_in_doubt(self) -> bool:
        """True while the lease is mine and yet a renewal is overdue: it failed, or its answer does not come.

        `check()` still answers. What can wait for certainty should: `wait_certain`.
        """
        return bool(self.remaining()) and not self._is_certain()

    def wait_certain(self, timeout: float = math.inf) -> int:
        """The epoch, once the lease is mine beyond doubt; returns at once if it is. To be called before new work.

        Raises LeaseLost if it is lost meanwhile, StoreError if it is still in doubt after `timeout` seconds.
        """
        end, never = self._clock.now() + timeout, threading.Event()
        while True:
            epoch = self.check()
            if self._is_certain():
                return epoch
            left = end - self._clock.now()
            if left <= 0:
                raise StoreError(self.name, f"in doubt for longer than {timeout:g} s: a renewal is overdue")
            self._clock.wait(never, min(left, _LOOK_AGAIN))

    def _is_certain(self) -> bool:
        """Confirmed no longer ago than it takes from one renewal to the next.

        Seen from the deadline alone, as forked children see it, and so that a store that hangs counts like one that
        fails.
        """
        confirmed = self._deadline.instant - self._config.renew_deadline
        return self._clock.now() < confirmed + self._config.retry_period * _OVERDUE + _LOOK_AGAIN

    def stop_by(self) -> float:
        """The instant (own clock) by which all guarded work must have ended."""
        reason, _, at, by_force = self._lost[0] if self._lost else (Loss.EXPIRED, "", self._deadline.instant, False)
        if reason in (Loss.TAKEN, Loss.FENCED, Loss.UNREADABLE) and not by_force:
            return at  # another may be master already: there is no time to be polite
        return at + self._config.stop_budget

    def lose(self, reason: Loss, detail: str = "", *, by_force: bool = False) -> None:
        """Close it from now on; the first reason stays. Sends nothing and waits for nothing.

        `by_force`: an operator took this very grant, and no contender may have it before it would have run out."""
        now, until = self._clock.now(), self._deadline.instant
        self._lost.append((reason, detail, min(now, until) if until > 0 else now, by_force))

    def loss(self) -> LeaseLost | None:
        """What `check()` would raise; None while the lease is mine, and after I gave it back."""
        try:
            self._still_mine()
        except LeaseLost as lost:
            return None if lost.reason is Loss.RELEASED else lost
        return None

    def lost_error(self) -> LeaseLost:
        """What `check()` raises. A deadline that has passed is made final by asking."""
        if not self._acquired:
            return LeaseLost(self.name, self._epoch, Loss.EXPIRED, "not acquired yet")
        if not self._lost:
            last = f"; last: {self.last_problem}" if self.last_problem else ""
            self.lose(Loss.EXPIRED, f"not renewed within {self._config.renew_deadline:g} s{last}")
        reason, detail = self._lost[0][:2]
        return LeaseLost(self.name, self._epoch, reason, detail)

    @abstractmethod
    def acquire(self, *, still_wanted: Callable[[], None] = lambda: None) -> int:
        """Wait until the lease is mine and return its epoch.

        Asks at once, then whenever the holder's lease runs out and every `poll_period`, for `acquire_timeout`. Unless
        `if_held` is "wait" it asks only once where another has it, and a store that gives no answer for no longer than
        a `lease_duration`. On a store without a clock a record is watched in any case until it is seen to be renewed,
        or has stood still for its own duration: a dead master's looks like a living one's. `still_wanted` is called
        before each try and ends the wait by raising.

        Raises LeaseHeldByOther if it is held at the end, StoreError if the store could not be asked at the end: the
        two are never mixed up. RecordUnreadable and ConfigError are raised at once, waiting does not heal them.
        """

    def ends_as(self, why: str, detail: str = "") -> None:
        """Say how the work ended: a word of `journal_entries.GIVEN_BACK`, and more. The release notes it."""
        self._ending = why, detail

    @property
    def ending(self) -> str:
        """What `ends_as` was told: "failed: exit 3"."""
        return ": ".join(filter(None, self._ending))

    @abstractmethod
    def release(self) -> bool:
        """Close it, then give it back, so that a standby need not wait. False if there was nothing to give.

        Call it after all guarded work has ended and after the last renewal has returned. Raises StoreError; then the
        lease runs out by itself.
        """

    @abstractmethod
    def close(self, *, lost: bool = False) -> None:
        """Let go of the store. `lost`: that is how its work ended, and so does this process, as `on_lost` says."""

    def log_grant(self) -> None:
        if not self._config.enabled:  # which was said instead
            return
        told = (self.name, self._epoch, self.holder, self.protection, self.store)
        log.info("%s: acquired, epoch %d, as %s, protection %s, in %s", *told)
        if self._config.url == local_url():
            message = "%s: this lease is a file of this user on this machine: it excludes no job elsewhere (--local)"
            log.warning(message, self.name)

    def note_loss(self) -> None:  # noqa: B027 (a keeper in another process does it)
        """Note beside the lease why it was lost. To be called once nothing runs any more under it; never raises."""

    def settle(self, *, left: bool = True) -> None:  # noqa: B027 (a lease without a keeper tells no one)
        """Report that no Spark work is left under a lost lease, so that the keeper kills nothing. `left`: the guarded
        block has ended as well, so that the lease may be given back."""

    def give_back(self) -> None:
        """`release`, and say in the log what came of it. Never raises: there is nothing left to do about it."""
        try:
            if self.release():
                self.released_at = wall_time()
                if self._config.enabled:
                    log.info("%s: released, epoch %d", self.name, self._epoch)
        except (StoreError, ConfigError) as error:
            log.warning("%s: not released, it runs out: %s", self.name, error)
        except Exception:  # a store's own fault, whatever it is: the work is done all the same
            log.exception("%s: not released, it runs out", self.name)
