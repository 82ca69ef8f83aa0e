"""Takes a lease from a store and keeps it; decides what a late or missing answer means."""

import contextlib
import logging
import math
import shlex
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
"""Called after each renewal with the seconds it took and whether it was confirmed. Must not block."""


class StandbyNote(Protocol):
    """Shows other observers that this contender waits. No method blocks or raises."""

    period: float
    """Call `say` again within so many seconds."""

    def say(self) -> None:
        """Show that it still waits."""
        ...

    def become(self, state: str) -> None:
        """Change the kind of standby that the next `say` shows."""
        ...

    def forget(self) -> None:
        """Show that it no longer waits."""
        ...

    def close(self) -> None: ...


class Waits:
    """Logs why an acquisition waits: when the reason changes, and again every ten minutes."""

    def __init__(self) -> None:
        self._why, self._logged_at = "", -math.inf

    def say(self, now: float, why: str, message: str, *values: object) -> None:
        if why != self._why or now - self._logged_at >= _SAY_AGAIN:
            self._why, self._logged_at = why, now
            log.warning(message, *values)


class Contender(Hold):
    """A hold that this process takes from a store itself, and keeps by renewals.

    Only the renewing thread moves the deadline forward.
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
        """`stands_still` names a guarded process that is stopped (SIGSTOP, Ctrl-Z, a debugger); "" if none is."""
        super().__init__(config, holder=holder, clock=clock, deadline=published or OwnDeadline(), protection=protection)
        self._locker = locker
        # How long a confirmation is valid: for ever with `enabled = false`, where nothing can be lost.
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
                    # If the first look decided, a dead master's lease would be refused to every contender, for ever.
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
        """Ask once. Raises StoreError if the store does not answer, or if its grant arrives too late to be used."""
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
        # The deadline counts from before the request, because the store may stamp it at any moment from now on. If this
        # process is frozen for a minute before the answer, the deadline is long past when it wakes: so it must be.
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
        except ConfigError as error:  # the settings worked at the grant: the store has changed
            raise StoreError(self.name, str(error)) from error
        finally:
            with contextlib.suppress(Exception):  # a metric that fails must not lose the lease
                self._on_renewal(self._clock.now() - sent, confirmed)
        self._hears = True
        if isinstance(answer, Denied):
            held_by = f"held by {answer.holder}" if answer.holder else "it has no holder, or its record is gone"
            by_force = is_forced(answer.holder) and answer.epoch == self._epoch
            self.lose(Loss.TAKEN, taken_by_force(answer.holder) or held_by, by_force=by_force)
        # The lease may have been released, lost or expired meanwhile: a late answer revives nothing.
        self._still_mine()
        self._deadline.publish(sent + self._good_for, ahead)
        if isinstance(answer, Grant) and answer.give_up_at <= self._clock.now():
            self.lose(Loss.PREEMPTED, answer.why)
            raise self.lost_error()

    def _refuse_for_stopped_work(self) -> None:
        """Raise StoreError if guarded work is stopped, at this renewal and at the last: it could not end itself."""
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
        self._deadline.disarm()  # first: the store may take long to answer
        if self._standby_note:  # it may still be there if the hold ends right after its grant
            self._standby_note.close()
        try:
            released = self._locker.release()
        except ConfigError as error:  # as in `renew`: its rights were revoked, for example
            raise StoreError(self.name, str(error)) from error
        if released:
            self._is_given_back = True
            self._note_end(*self._ending)
        elif lost is None:
            message = (
                "%s: not released: its record was removed or taken meanwhile, by release --force or by another "
                "contender: spark-lease history %s shows by which, and whether two held it at one time"
            )
            log.warning(message, self.name, shlex.quote(self.name))
        return released

    def settle(self, *, left: bool = True) -> None:
        self._deadline.disarm()

    def note_loss(self) -> None:
        self.settle()
        # A store that did not answer the last renewal is not asked again: that would only take time.
        if self._hears and self._lost:
            self._note_end(*self._lost[0][:2])

    def _note_end(self, why: str, detail: str) -> None:
        if self._journal and self._lost and self._epoch:  # epoch 0: the answer to the grant was lost
            # Counted from the answer to the grant, which came after the grant: never later than the real end.
            held_for = self._lost[0][2] - self._granted
            self._journal.ended(self._epoch, why, at=self._epoch + math.floor(held_for * 1000), detail=detail)

    def close(self, *, lost: bool = False) -> None:
        if self._standby_note:
            self._standby_note.close()
        if self._journal:
            self._journal.close()
        self._locker.close()
