"""The rules of a lease record over any store: which contender may take it, what "no" and a lost answer mean.

They know no deadline and stop no work: `hold.py` and `contender.py` do that.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable

from ..clock import Clock
from ..config.settings import Config
from ..errors import LockGone, StoreError
from .directive import directive_of
from .ports import Denied, Grant, LeaseStore, Lock, Notifies
from .record import (
    LeaseRecord,
    Protection,
    Snapshot,
    UnchangedSince,
    expires_in,
    is_grant_of,
    released,
    renewed,
    taken,
    taken_by_force,
)

log = logging.getLogger(__name__)

_TRIES = 3
"""Attempts when a swap is refused although no other holder is there: an earlier write of ours landed late, or another
lease's first row was inserted at the same moment. Both are rare."""
_DROPPED = ": a policy or a trigger on its table may drop our writes"
_POLLS = 1.5
"""Poll periods after which a standby of another site has certainly seen a release."""


class RecordRules:
    """The rules of a lease record, over any `LeaseStore`. Implements `Locker`.

    A swap whose answer was lost is recognised by what it wrote: `holder` is unique for every hold, so a record that
    carries it is ours, whether the store answered or not.
    """

    def __init__(
        self,
        store: LeaseStore,
        config: Config,
        clock: Clock,
        *,
        holder: str,
        protection: Callable[[], Protection] = lambda: Protection.THREAD,
        lock: Lock | None = None,
    ) -> None:
        """`protection` is asked at each write: it may become known, or change, while the lease is held."""
        self._store, self._clock, self._lock = store, clock, lock
        self._name, self._duration, self._site = config.name, config.lease_duration, config.site
        self._site_delay = site_delay_of(config, config.poll_period)
        self._holder, self._protection = holder, protection
        self._mine: LeaseRecord | None = None
        self._over: Snapshot | None = None
        self._freed: LeaseRecord | None = None
        self._asked = self._waits = self._is_locked_out = False
        self._standstill = UnchangedSince()
        self._applied, self._give_up_at, self._why = "", math.inf, ""
        self._closed = threading.Event()

    def try_acquire(self) -> Grant | Denied:
        answer: Grant | Denied | None = None
        self._is_locked_out = False
        try:
            answer = self._try_acquire()
            return answer
        finally:
            # A lock kept without a grant would keep out contenders that could take the lease. If our swap landed all
            # the same, its record keeps them out, and the next attempt locks again before it returns a grant.
            if self._lock and not isinstance(answer, Grant) and not self._is_locked_out:
                with contextlib.suppress(StoreError):
                    self._lock.unlock()

    def _try_acquire(self) -> Grant | Denied:
        freed, self._freed = self._freed, None
        for _ in range(_TRIES):
            # The notice of a release holds the record. If it has changed since, the swap is refused.
            seen = Snapshot(freed, 0.0) if freed else self._store.read(self._name)
            freed = None
            mine, held = is_grant_of(seen.record, self._holder), self._held(seen)
            if held.expires_in > 0 and not mine:
                self._waits = True
                return held
            if not mine and (blocked := self._blocked(seen) or self._lets_others_go_first(seen)):
                return blocked
            if self._lock and not self._lock.try_lock():
                self._is_locked_out = True
                return Denied(held.holder or "the owner of its lock", self._duration)
            if mine and seen.record:  # an object store may repeat a request that had landed, and answer "no" to it
                self._asked, self._mine = True, seen.record
                self._apply(seen.record.directive, seen)
                return self.renew(self._over)
            may_hold_it, self._asked, self._over = self._asked, True, seen
            wanted = taken(seen.record, holder=self._holder, duration=self._duration, protection=self._protection())
            if granted := self._keep(self._store.swap(self._name, seen.record, wanted)):
                return Grant(granted.epoch, over=seen)
            self._asked = may_hold_it  # this "no" is certain; an earlier lost answer stays unknown
        problem = f"{self._name} is free, but our write did not take effect after {_TRIES} attempts{_DROPPED}"
        raise StoreError(self._store.where, problem)

    def renew(self, over: Snapshot | None = None) -> Grant | Denied:
        """Renew the record that we know; if another one is there, look whether that is ours as well. `over`: what it
        had replaced, if its grant is found only now."""
        if self._lock and not self._lock.is_held():
            raise LockGone(self._store.where, "the lock is gone: the session or file that held it has ended")
        seen = Snapshot(self._mine)
        for _ in range(_TRIES):
            mine = seen.record
            if mine is None:
                return Denied(None)
            self._apply(mine.directive, seen)
            wanted = renewed(mine, duration=self._duration, protection=self._protection())
            if self._keep(self._store.swap(self._name, mine, wanted)):
                return Grant(mine.epoch, self._give_up_at, self._why, over)
            seen = self._store.read(self._name)
            if not is_grant_of(seen.record, self._holder, mine.epoch):
                return Denied(seen.record.holder, epoch=seen.record.epoch) if seen.record else Denied(None)
        raise StoreError(self._store.where, f"the record of {self._name} keeps changing under its own holder{_DROPPED}")

    def release(self) -> bool:
        if not self._asked:
            return False
        mine = self._mine  # as last confirmed; most often it is unchanged
        for _ in range(_TRIES):
            if mine and self._store.swap(self._name, mine, released(mine)):
                self._unlock()
                return True
            mine = self._store.read(self._name).record
            if mine is None or not is_grant_of(mine, self._holder):
                return False
        return False

    def wait(self, timeout: float, poll: float) -> None:
        waited: LeaseRecord | bool = False
        timeout = min(timeout, poll) if self._is_locked_out else timeout  # no store notifies of the end of a lock
        if isinstance(self._store, Notifies):
            waited = self._store.await_release(self._name, timeout, poll)
        if isinstance(waited, LeaseRecord):
            self._freed = None if self._site_delay else waited
        elif not waited:
            self._clock.wait(self._closed, min(timeout, poll))

    def close(self) -> None:
        self._closed.set()
        self._store.close()
        if self._lock:
            self._lock.close()

    def _apply(self, text: str, seen: Snapshot) -> None:
        """Compute by the own clock when to give up. An unchanged directive is not computed again."""
        if text == self._applied:
            return
        self._applied, directive = text, directive_of(text)
        self._give_up_at, self._why = math.inf, str(directive or "")
        if directive and not directive.is_for(self._holder, self._site):
            self._give_up_at = self._clock.now() + directive.give_up - seen.wall

    def _blocked(self, seen: Snapshot) -> Denied | None:
        directive, now = directive_of(seen.record.directive if seen.record else ""), seen.wall
        if directive and directive.blocks(self._holder, self._site, now=now):
            return Denied(None, min(directive.until - now, self._duration), str(directive))
        return None

    def _lets_others_go_first(self, seen: Snapshot) -> Denied | None:
        left = self._site_delay - self._still_for(seen.record)
        if self._waits and left > 0 and seen.record and seen.record.holder is None:
            return Denied(None, left, "lets the preferred site go first")
        return None

    def _unlock(self) -> None:
        try:
            if self._lock:
                self._lock.unlock()
        except StoreError as error:  # it is released all the same: only the lock is left
            log.warning("%s: released, but its lock stays until this process closes it: %s", self._name, error)

    def _held(self, seen: Snapshot) -> Denied:
        holder = seen.record.holder if seen.record else None
        left = expires_in(seen, still_for=self._still_for(seen.record))
        may_be_over = seen.left is None and not self._standstill.has_moved
        return Denied(holder, left, taken_by_force(holder), may_be_over)

    def _keep(self, written: LeaseRecord | None) -> LeaseRecord | None:
        self._mine = written or self._mine
        return written

    def _still_for(self, record: LeaseRecord | None) -> float:
        return self._standstill.still_for(record, self._clock.now())


def site_delay_of(config: Config, poll_period: float) -> float:
    """Seconds for which a contender that looks every `poll_period` leaves a free lease to the preferred site."""
    return poll_period * _POLLS if config.preferred_site not in ("", config.site) else 0.0
