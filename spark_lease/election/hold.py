"""One hold on a lease: until when it is valid, and by when all guarded work must have stopped.

`record.py` has the rules of a record, `locker.py` applies them to a store's answers, `contender.py` turns the results
into a deadline, `keepalive.py` runs the loops that renew and watch.

A hold stops no work: `guard/` does. It cannot stop a write that was sent while the lease was valid and that lands after
the lease ran out: only a fence in the guarded store can.

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
"""Retry periods after which an unconfirmed renewal is overdue."""
_LOOK_AGAIN = 0.05
JUMP = 1.0
"""Seconds that the wall clock may gain on the monotonic one between two renewals: NTP moves it by less."""


class Deadline(Protocol):
    """The instant until which a lease is held, published to every process that works under it."""

    @property
    def instant(self) -> float: ...

    @property
    def ahead(self) -> float:
        """How far the wall clock was ahead when the last confirmed renewal was sent, see `Clock.ahead`."""
        ...

    def publish(self, instant: float, ahead: float) -> None: ...

    def lose(self) -> None:
        """Publish that the lease is lost."""
        ...

    def disarm(self) -> None:
        """No guarded work is left: when the deadline passes, end no process."""
        ...


class OwnDeadline:
    """Known to this process alone. Implements `Deadline`."""

    instant, ahead = -math.inf, 0.0

    def publish(self, instant: float, ahead: float) -> None:
        self.instant, self.ahead = instant, ahead

    def lose(self) -> None:
        """Does nothing: only this process reads it, and knows of the loss."""

    def disarm(self) -> None:
        """Does nothing: this deadline ends no process."""


class Hold(ABC):
    """A hold on one lease: acquired once, then lost or released for good.

    Several threads use it without a lock. Any thread may `check()`, and any thread that finds the lease lost records
    it: the first reason stays. The clock alone decides: past its deadline a lease is lost even if no thread noticed.
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
        """Why the last renewal failed; empty after a confirmed one."""
        self.released_at = 0.0
        self._ending = RELEASED, ""

    @property
    def is_kept_by_another(self) -> bool:
        """True if a keeper process renews it, which kills what is left of the guarded work when this process ends."""
        return False

    @property
    def epoch(self) -> int:
        """The fencing token of this hold, larger than that of every earlier hold. 0: not acquired yet."""
        return self._epoch

    def check(self) -> int:
        """The epoch, if the lease is held at this instant; else raises LeaseLost. Costs no I/O: call it freely.

        If the wall clock has jumped ahead by a second or more since the last renewal, this machine may have been
        suspended, and its monotonic clock with it: then it waits until the lease is renewed, or lost.
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
        """Seconds for which `check()` answers without another renewal; 0 once the lease is lost."""
        return 0.0 if self._lost else max(self._deadline.instant - self._clock.now(), 0.0)

    def __repr__(self) -> str:
        ended = self._lost[0][0] if self._lost else None
        state = "released" if ended is Loss.RELEASED else "lost" if ended else "held" if self._epoch else "not acquired"
        left = f", {self.remaining():.1f} s left" if state == "held" else ""
        return f"<Lease {self.name!r} {state}, epoch {self._epoch}, protection {self.protection}{left}>"

    @property
    def is_in_doubt(self) -> bool:
        """True while the lease is held but a renewal is overdue: it failed, or its answer has not come.

        `check()` still answers. Work that can wait should call `wait_certain`.
        """
        return bool(self.remaining()) and not self._is_certain()

    def wait_certain(self, timeout: float = math.inf) -> int:
        """Wait until no renewal is overdue and return the epoch, at once if none is. Call it before new work.

        Raises LeaseLost if the lease is lost meanwhile, StoreError if it is still in doubt after `timeout` seconds.
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
        """True if the last confirmation is no older than one renewal period.

        Computed from the deadline alone: forked children know nothing else, and a store that hangs counts like one that
        fails.
        """
        confirmed = self._deadline.instant - self._config.renew_deadline
        return self._clock.now() < confirmed + self._config.retry_period * _OVERDUE + _LOOK_AGAIN

    def stop_by(self) -> float:
        """The instant (own clock) by which all guarded work must have ended."""
        reason, _, at, by_force = self._lost[0] if self._lost else (Loss.EXPIRED, "", self._deadline.instant, False)
        if reason in (Loss.TAKEN, Loss.FENCED, Loss.UNREADABLE) and not by_force:
            return at  # another may be master already: no time for a polite stop
        return at + self._config.stop_budget

    def lose(self, reason: Loss, detail: str = "", *, by_force: bool = False) -> None:
        """Make the hold lost from now on; the first reason stays. Sends nothing and does not block.

        `by_force`: an operator took this very grant, and no contender gets it before it would have run out."""
        now, until = self._clock.now(), self._deadline.instant
        self._lost.append((reason, detail, min(now, until) if until > 0 else now, by_force))

    def loss(self) -> LeaseLost | None:
        """What `check()` would raise; None while the lease is held, and after its release."""
        try:
            self._still_mine()
        except LeaseLost as lost:
            return None if lost.reason is Loss.RELEASED else lost
        return None

    def lost_error(self) -> LeaseLost:
        """What `check()` raises. If the deadline has passed, this call makes the loss final."""
        if not self._acquired:
            return LeaseLost(self.name, self._epoch, Loss.EXPIRED, "not acquired yet")
        if not self._lost:
            last = f"; last: {self.last_problem}" if self.last_problem else ""
            self.lose(Loss.EXPIRED, f"not renewed within {self._config.renew_deadline:g} s{last}")
        reason, detail = self._lost[0][:2]
        return LeaseLost(self.name, self._epoch, reason, detail)

    @abstractmethod
    def acquire(self, *, still_wanted: Callable[[], None] = lambda: None) -> int:
        """Wait until the lease is granted and return its epoch.

        Asks at once, then every `poll_period` and when the holder's lease runs out, for `acquire_timeout`. Unless
        `if_held` is "wait", a lease that another holds is asked for only once, and a store that does not answer for at
        most a `lease_duration`. On a store without a clock, the record is always watched until it is renewed or has
        stayed unchanged for its own duration, because a dead master's record looks like a living one's.
        `still_wanted` is called before each attempt and ends the wait by raising.

        Raises LeaseHeldByOther if another holds it at the end, StoreError if the store did not answer at the end: the
        two are never mixed up. Raises RecordUnreadable and ConfigError at once: retrying does not help.
        """

    def ends_as(self, why: str, detail: str = "") -> None:
        """Set how the work ended, for the journal: one of `journal_entries.GIVEN_BACK`, and details."""
        self._ending = why, detail

    @property
    def ending(self) -> str:
        """How the work ended, as `ends_as` set it: "failed: exit 3"."""
        return ": ".join(filter(None, self._ending))

    @abstractmethod
    def release(self) -> bool:
        """Make the hold lost, then free the lease, so that a standby need not wait. False if there was none to free.

        Call it after all guarded work has ended and after the last renewal has returned. Raises StoreError; then the
        lease runs out by itself.
        """

    @abstractmethod
    def close(self, *, lost: bool = False) -> None:
        """Close the connections. `lost`: the work ended by a loss, and `on_lost` now ends this process."""

    def log_grant(self) -> None:
        if not self._config.enabled:  # a warning has said so instead
            return
        told = (self.name, self._epoch, self.holder, self.protection, self.store)
        log.info("%s: acquired, epoch %d, as %s, protection %s, in %s", *told)
        if self._config.url == local_url():
            message = "%s: this lease is a file of this user on this machine: it excludes no job elsewhere (--local)"
            log.warning(message, self.name)

    def note_loss(self) -> None:  # noqa: B027 (a keeper in another process does it)
        """Write a journal entry: why the lease was lost. Call it once no guarded work runs; never raises."""

    def settle(self, *, left: bool = True) -> None:  # noqa: B027 (a lease without a keeper tells no one)
        """Report that no Spark work is left under a lost lease, so that the keeper kills nothing. `left`: the guarded
        block has ended as well, so the lease may be released."""

    def give_back(self) -> None:
        """`release`, and log the result. Never raises: the caller could do nothing about it."""
        try:
            if self.release():
                self.released_at = wall_time()
                if self._config.enabled:
                    log.info("%s: released, epoch %d", self.name, self._epoch)
        except (StoreError, ConfigError) as error:
            log.warning("%s: not released, it runs out: %s", self.name, error)
        except Exception:  # any fault of a store: the work is done all the same
            log.exception("%s: not released, it runs out", self.name)
