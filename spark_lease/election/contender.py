"""Taking a lease from a store and keeping it: what an answer means that came late, or not at all."""

import contextlib
import logging
import math
from collections.abc import Callable
from typing import Protocol

from ..clock import Clock
from ..config.settings import Config
from ..errors import ConfigError, LeaseHeldByOther, LockGone, Loss, RecordUnreadable, StoreError
from .hold import Deadline, Hold, OwnDeadline
from .ports import Denied, Grant, Journal, Locker
from .record import Protection, is_forced, taken_by_force

log = logging.getLogger(__name__)

_SAY_AGAIN = 600.0
OnRenewal = Callable[[float, bool], None]
"""Gets the seconds that a renewal took, and whether it was confirmed. Must not wait."""


class StandbyNote(Protocol):
    """Tells others that this contender waits. Its methods wait for nothing and never raise."""

    period: float
    """Seconds after which `say` is to be called again, at the latest."""

    def say(self) -> None:
        """It waits still."""
        ...

    def become(self, state: str) -> None:
        """What kind of standby it is has changed: the next `say` says that."""
        ...

    def forget(self) -> None:
        """It does not wait any more."""
        ...

    def close(self) -> None: ...


class Waits:
    """Says why an acquisition waits: when the reason changes, and again every ten minutes."""

    def __init__(self) -> None:
        self._why, self._logged_at = "", -math.inf

    def say(self, now: float, why: str, message: str, *values: object) -> None:
        if why != self._why or now - self._logged_at >= _SAY_AGAIN:
            self._why, self._logged_at = why, now
            log.warning(message, *values)


class Contender(Hold):
    """A hold that this process itself takes from a store, and keeps by renewals.

    The renewing thread alone moves the deadline forward.
    """

    def __init__(
        self,
        locker: Locker,
        config: Config,
        *,
        holder: str,
        clock: Clock,
        protection: Protection = Protection.THREAD,
        published: Deadline | None = None,
        standby_note: StandbyNote | None = None,
        journal: Journal | None = None,
        on_renewal: OnRenewal = lambda took, confirmed: None,
        stands_still: Callable[[], str] = lambda: "",
    ) -> None:
        """`stands_still` says which guarded process was stopped, by SIGSTOP, Ctrl-Z or a debugger; "" if none was."""
        super().__init__(config, holder=holder, clock=clock, deadline=published or OwnDeadline(), protection=protection)
        self._locker = locker
        # How long a confirmation is good for; for ever where there is nothing to be lost.
        self._good_for = config.renew_deadline if config.enabled else math.inf
        self._granted, self._hears = 0.0, True
        self._standby_note, self._journal = standby_note, journal
        self._on_renewal, self._stands_still = on_renewal, stands_still
        self._stood_still, self._is_given_back = "", False

    def acquire(self, *, still_wanted: Callable[[], None] = lambda: None) -> int:
        start, waits, down = self._clock.now(), Waits(), self._config.acquire_timeout
        held = down if self._config.if_held == "wait" else 0.0
        if held < down:
            down = min(down, self._config.lease_duration)
        while True:
            still_wanted()
            problem: LeaseHeldByOther | StoreError
            try:
                answer = self.try_acquire()
                if isinstance(answer, Grant):
                    return answer.epoch
                holder = answer.holder or "another contender"
                problem = LeaseHeldByOther(self.name, holder, answer.expires_in, answer.why)
                now = self._clock.now()
                left, pause = start + held - now, max(answer.expires_in, 0.0)
                message = answer.why or f"{holder} is master"
                if answer.may_be_over and left < answer.expires_in:
                    # Refused at the first look, a lease whose master died would be refused to all contenders, for ever.
                    left, message = answer.expires_in, f"{holder} was master: watching whether it still is"
                waits.say(now, message, "%s: standby, %s", self.name, message)
            except RecordUnreadable:
                raise
            except StoreError as error:
                problem = error
                now = self._clock.now()
                left, pause = start + down - now, self._config.poll_period
                until = "" if math.isinf(left) else f" for {max(left, 0):.0f} s"
                waits.say(now, str(error), "%s: cannot ask for the lease, trying again%s: %s", self.name, until, error)
            if left <= 0:
                raise problem
            pause = min(pause, left)
            if self._standby_note:
                self._standby_note.say()
                pause = min(pause, self._standby_note.period)
            self._locker.wait(pause, self._config.poll_period)

    def try_acquire(self) -> Grant | Denied:
        """Ask once. Raises StoreError if the store gives no answer, also when the grant came too late to be of use."""
        sent, ahead = self._clock.now(), self._clock.ahead()
        answer = self._locker.try_acquire()
        if isinstance(answer, Grant):
            deadline = sent + self._good_for
            if self._clock.now() >= deadline:
                raise StoreError(self.name, "the grant took longer than renew_deadline to arrive")
            self._epoch, self._acquired, self._granted = answer.epoch, True, self._clock.now()
            self._deadline.publish(deadline, ahead)
            self._is_given_back = False
            if self._standby_note:
                self._standby_note.forget()
            if self._journal and answer.over:
                self._journal.granted(self.holder, answer.epoch, answer.over)
        return answer

    def renew(self) -> None:
        """Try once to renew. Raises StoreError without an answer (the deadline stands), LeaseLost if it is lost."""
        # The deadline counts from before the request: the store may have stamped it at any moment since. Frozen for
        # a minute between here and the answer, I come back to a deadline that is long past, and so it must be.
        sent, ahead = self._clock.now(), self._clock.ahead()
        self._still_mine()
        self._refuse_for_stopped_work()
        self._hears = confirmed = False
        try:
            answer = self._locker.renew()
            confirmed = isinstance(answer, Grant)
        except (LockGone, RecordUnreadable) as error:
            self._hears = True
            self.lose(error.loss, str(error))
            raise self.lost_error() from error
        except ConfigError as error:  # the settings were right when it was granted: it is the store that has changed
            raise StoreError(self.name, str(error)) from error
        finally:
            with contextlib.suppress(Exception):  # a number that cannot be told is no reason to lose a lease
                self._on_renewal(self._clock.now() - sent, confirmed)
        self._hears = True
        if isinstance(answer, Denied):
            held_by = f"held by {answer.holder}" if answer.holder else "it has no holder, or its record is gone"
            by_force = is_forced(answer.holder) and answer.epoch == self._epoch
            self.lose(Loss.TAKEN, taken_by_force(answer.holder) or held_by, by_force=by_force)
        # A late answer: released, lost or past the deadline while it was on its way. It brings nothing back.
        self._still_mine()
        self._deadline.publish(sent + self._good_for, ahead)
        if isinstance(answer, Grant) and answer.give_up_at <= self._clock.now():
            self.lose(Loss.PREEMPTED, answer.why)
            raise self.lost_error()

    def _refuse_for_stopped_work(self) -> None:
        """Do not renew for work that was stopped, now and at the renewal before: it could not end itself.

        Raises StoreError.
        """
        before, self._stood_still = self._stood_still, self._stands_still()
        if before and self._stood_still:
            raise StoreError(self.name, f"not renewed, because {self._stood_still}")

    def lose(self, reason: Loss, detail: str = "", *, by_force: bool = False) -> None:
        super().lose(reason, detail, by_force=by_force)
        self._deadline.lose()

    def release(self) -> bool:
        if self._is_given_back:
            return False
        lost = self.loss()
        self.lose(Loss.RELEASED)
        self._deadline.disarm()  # before a store that may take its time
        if self._standby_note:  # of a hold that ends right after its grant, it may still be there
            self._standby_note.close()
        try:
            released = self._locker.release()
        except ConfigError as error:  # as in `renew`: rights that were taken away meanwhile, say
            raise StoreError(self.name, str(error)) from error
        if released:
            self._is_given_back = True
            self._note_end(*self._ending)
        elif lost is None:
            message = "%s: not released: its record has another holder, or none: another may have been master too"
            log.warning(message, self.name)
        return released

    def settle(self, *, left: bool = True) -> None:
        self._deadline.disarm()

    def note_loss(self) -> None:
        self.settle()
        # A store that did not answer the last time would be waited for in vain.
        if self._hears and self._lost:
            self._note_end(*self._lost[0][:2])

    def _note_end(self, why: str, detail: str) -> None:
        if self._journal and self._lost and self._epoch:  # 0: what was given back was never known to be mine
            # Counted from the answer to the grant, which came after the grant: no later than it really ended.
            held_for = self._lost[0][2] - self._granted
            self._journal.ended(self._epoch, why, at=self._epoch + math.floor(held_for * 1000), detail=detail)

    def close(self, *, lost: bool = False) -> None:
        if self._standby_note:
            self._standby_note.close()
        if self._journal:
            self._journal.close()
        self._locker.close()
