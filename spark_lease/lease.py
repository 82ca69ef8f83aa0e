"""The policy of a lease: how long I may believe that it is mine, and what an answer that came late means. What a store
says is judged in `locker.py`, the rules of a record are in `record.py`, the loops that call this in `keepalive.py`.

What it does not do: it stops no work (`guard.py`, `runner.py`) and it cannot hold back a write that was sent while
the lease was good and lands after it ran out. Only a fence in the guarded store can do that.

```
 renewal SENT   retry fails   retry fails   retry fails    renew_deadline      lease_duration
   |---------------x-------------x-------------x--------------|--- stop_budget ---|----> others may start
   check() answers ------------------------------------------>| raises           | all work has ended
```
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, Protocol

from .clock import Clock, wall_time
from .config import Config, local_url, redacted
from .errors import ConfigError, LeaseHeldByOther, LeaseLost, LockGone, Loss, RecordUnreadable, StoreError
from .fences import session
from .fences.base import NothingBegun
from .fences.databases import claim_databases, prepare
from .fences.delta_rs import FencedTable
from .fences.levels import Fences
from .locker import open_locker
from .lockers.base import Grant, Held, Locker, NotesEnds
from .lockers.changes import RELEASED, bounded_age
from .lockers.registry import open_notes
from .lockers.timed import OnRenewal
from .record import Protection, new_holder
from .runs import Runs

log = logging.getLogger(__name__)

_OVERDUE = 1.1
"""Retry periods after which a renewal that was not confirmed is overdue."""
_LOOK_AGAIN = 0.05
_SAY_AGAIN = 600.0
JUMP = 1.0
"""Seconds by which the wall clock may gain on the other one between two renewals: NTP moves it by less."""


def open_contender(
    config: Config, clock: Clock, *, on_renewal: OnRenewal | None = None, published: Deadline | None = None
) -> Contender:
    """A contender for `config.name` under a holder of its own; asks no store yet. Raises ConfigError."""
    holder = new_holder(config.holder)
    locker = open_locker(config, clock, holder=holder, on_renewal=on_renewal)
    return Contender(locker, config, holder=holder, clock=clock, published=published)


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


class Lease(ABC):
    """A hold on one lease, for those who work under it: acquired once, then lost or released for good.

    Several threads use it without a lock between them. A thread that finds it lost says so, and the first one wins;
    any thread may `check()`. Held is a comparison with a clock: a lease whose deadline has passed is lost even if no
    thread has noticed.
    """

    def __init__(
        self, config: Config, *, holder: str, clock: Clock, deadline: Deadline, protection: Protection
    ) -> None:
        self.name, self.holder, self.protection = config.name, holder, protection
        self.store = redacted(config.url)
        self._config, self._clock, self._deadline = config, clock, deadline
        self._epoch = 0
        self._acquired = False
        self._lost: list[tuple[Loss, str, float]] = []
        self.released_at = 0.0
        self.is_in_block = False
        self._ending = RELEASED, ""
        self.run_key, self.runs = config.run_key, Runs(self, config, clock)
        self.fences = Fences()

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
        state = "lost" if self._lost else "released" if self.released_at else "held" if self._epoch else "not acquired"
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

    def fenced_sql(self, engine: Any, *, completes: str = "") -> AbstractContextManager[Any]:
        """One transaction on an Engine of SQLAlchemy, which commits only while my epoch is the newest: `fences.sql`.

        Gives the Connection. Commits at the end of the block, rolls back if an exception leaves it. The run key
        `completes` is done with it, in the same transaction: no other can complete it, even as a later master.
        Raises Fenced, LeaseLost, StoreError, ConfigError, AlreadyDone (`completes` is), and what the database raises.
        """
        from .fences.sql import fenced_sql  # SQLAlchemy, for those who use it
        from .fences.sql_done import completing_sql

        if not completes:
            return fenced_sql(self, engine)
        return completing_sql(
            self, engine, completes, note=self.runs.heal, retention=bounded_age(self._config.run_retention)
        )

    def write_sql(
        self,
        df: Any,
        engine: Any,
        table: str,
        mode: str = "append",
        *,
        keys: Sequence[str] = (),
        through: str = "auto",
    ) -> int:
        """Rows of the DataFrame `df` into `table`, all or none, in one `fenced_sql`; how many (`fences.frames`).

        Columns by name. `mode`: "append"; "overwrite" (DELETE, then INSERT, in that transaction); "upsert", by the
        columns `keys` over which the table has a unique index. `through`: "driver" collects the rows, "executors" have
        them staged in a table beside `table`; "auto" takes the driver for up to 10 000 rows (to find out, the first
        rows may be computed twice) and for SQLite. Raises what `fenced_sql` and Spark raise; ConfigError if it does not
        fit together, before anything is written.
        """
        from .fences.frames import write_sql  # SQLAlchemy and Arrow, for those who use it

        return write_sql(self, df, engine, table, mode=mode, keys=keys, through=through)

    def jdbc_url(self, url: str) -> str:
        """`url`, a jdbc:postgresql: one, with the epoch in it, for tables that are fenced. Raises ConfigError."""
        return session.jdbc_url(url, self.name, self.check())

    def _is_certain(self) -> bool:
        """Confirmed no longer ago than it takes from one renewal to the next.

        Seen from the deadline alone, as forked children see it, and so that a store that hangs counts like one that
        fails.
        """
        confirmed = self._deadline.instant - self._config.renew_deadline
        return self._clock.now() < confirmed + self._config.retry_period * _OVERDUE + _LOOK_AGAIN

    def complete(self, run_key: str, **counts: int) -> None:
        """Note beside the lease that `run_key` is done, with numbers of your choice (rows=123); for good.

        May be repeated. Raises LeaseLost, StoreError, and AlreadyDone if it was done under another epoch.
        """
        self.runs.complete(run_key, counts=counts)

    def is_done(self, run_key: str) -> bool:
        """Whether a master has completed `run_key`. Raises StoreError."""
        return self.runs.is_done(run_key)

    def delta_rs(self, table: str) -> FencedTable:
        """Fenced writes to the Delta table at path or URL `table` without Spark: append, overwrite, merge, delete."""
        return FencedTable(self, table, self._config, self._clock)

    def stop_by(self) -> float:
        """The instant (own clock) by which all guarded work must have ended."""
        reason, _, at = self._lost[0] if self._lost else (Loss.EXPIRED, "", self._deadline.instant)
        if reason in (Loss.TAKEN, Loss.FENCED, Loss.UNREADABLE):
            return at  # another may be master already: there is no time to be polite
        return at + self._config.stop_budget

    def lose(self, reason: Loss, detail: str = "") -> None:
        """Close it from now on; the first reason stays. Sends nothing and waits for nothing."""
        now, until = self._clock.now(), self._deadline.instant
        self._lost.append((reason, detail, min(now, until) if until > 0 else now))

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
            self.lose(Loss.EXPIRED, f"not renewed within {self._config.renew_deadline:g} s")
        reason, detail, _ = self._lost[0]
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

    def prepare(self) -> None:
        """Import what the work needs from the grant on, while another may still be master. Never raises."""
        with contextlib.suppress(Exception):  # it is said when it is needed
            prepare(self._config)

    def claim_databases(self) -> bool:
        """Claim what `fences.databases` says, before the work begins; by the process that keeps the lease.

        Raises Fenced, LeaseLost, FenceUnreachable, ConfigError: then nothing may begin.
        """
        return claim_databases(self._config, NothingBegun(self), clock=self._clock)

    def noted(self, kind: str) -> dict[str, str]:
        """What was noted beside the lease, as `Notes.all` says; asked for by the process that keeps it.

        So the driver loads no client of the store. Raises StoreError, ConfigError.
        """
        with closing(open_notes(self._config, self._clock)) as notes:
            return notes.all(self._config.shared_name, kind)

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        """Have `text` noted beside the lease, as `Notes.add` says; by the process that keeps the lease.

        So no thread of the guarded program's is inside a client library while the program changes its environment:
        libpq reads that, and a read beside a change can end the process with SIGSEGV (getenv(3), "MT-Safe env").
        `newest`: the key is my epoch, and the text takes the place of what was noted under it, and under older ones.
        Raises StoreError, ConfigError.
        """
        name = self._config.shared_name
        with closing(open_notes(self._config, self._clock)) as notes:
            there = notes.all(name, kind) if newest else {}
            if key in there and there[key] != text:
                notes.remove(name, kind, key)
            noted = notes.add(name, kind, key, text, holder=self.holder, epoch=self._epoch)
            for older in there:
                if int(older) < self._epoch:  # only these: a newer master has a note of its own by now
                    notes.remove(name, kind, older)
        return noted

    def _refuse_in_block(self) -> None:
        """What runs in the block would go on beside the next master."""
        if self.is_in_block:
            raise ConfigError("release", f"{self.name} is given back at the end of its block: leave that instead")

    def ends_as(self, why: str, detail: str = "") -> None:
        """Say how the work ended, by one of `changes.GIVEN_BACK`: the release notes it, and `ending` tells it."""
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
            words = "%s: this lease is a file of this user on this machine: it excludes no job elsewhere (--local)"
            log.warning(words, self.name)

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


class Waits:
    """Says why an acquisition waits: when the reason changes, and again every ten minutes."""

    def __init__(self) -> None:
        self._why, self._told = "", -math.inf

    def say(self, now: float, why: str, words: str, *values: object) -> None:
        if why != self._why or now - self._told >= _SAY_AGAIN:
            self._why, self._told = why, now
            log.warning(words, *values)


class Contender(Lease):
    """A lease that this process itself takes from a store, and keeps by renewals.

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
    ) -> None:
        super().__init__(config, holder=holder, clock=clock, deadline=published or OwnDeadline(), protection=protection)
        self._locker = locker
        # How long a confirmation is good for; for ever where there is nothing to be lost.
        self._good_for = config.renew_deadline if config.enabled else math.inf
        self._granted, self._hears = 0.0, True

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
                words = answer.why or f"{holder} is master"
                if answer.may_be_over and left < answer.expires_in:
                    # Refused at the first look, a lease whose master died would be refused to all contenders, for ever.
                    left, words = answer.expires_in, f"{holder} was master: watching whether it still is"
                waits.say(now, words, "%s: standby, %s", self.name, words)
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
            self._locker.wait(min(pause, left), self._config.poll_period)

    def try_acquire(self) -> Grant | Held:
        """Ask once. Raises StoreError if the store gives no answer, also when the grant came too late to be of use."""
        sent, ahead = self._clock.now(), self._clock.ahead()
        answer = self._locker.try_acquire()
        if isinstance(answer, Grant):
            deadline = sent + self._good_for
            if self._clock.now() >= deadline:
                raise StoreError(self.name, "the grant took longer than renew_deadline to arrive")
            self._epoch, self._acquired, self._granted = answer.epoch, True, self._clock.now()
            self._deadline.publish(deadline, ahead)
        return answer

    def renew(self) -> None:
        """Try once to renew. Raises StoreError without an answer (the deadline stands), LeaseLost if it is lost."""
        # The deadline counts from before the request: the store may have stamped it at any moment since. Frozen for
        # a minute between here and the answer, I come back to a deadline that is long past, and so it must be.
        sent, ahead = self._clock.now(), self._clock.ahead()
        self._still_mine()
        self._hears = False
        try:
            answer = self._locker.renew()
        except (LockGone, RecordUnreadable) as error:
            self._hears = True
            self.lose(error.loss, str(error))
            raise self.lost_error() from error
        except ConfigError as error:  # the settings were right when it was granted: it is the store that has changed
            raise StoreError(self.name, str(error)) from error
        self._hears = True
        if isinstance(answer, Held):
            self.lose(
                Loss.TAKEN, f"held by {answer.holder}" if answer.holder else "it has no holder, or its record is gone"
            )
        # A late answer: released, lost or past the deadline while it was on its way. It brings nothing back.
        self._still_mine()
        self._deadline.publish(sent + self._good_for, ahead)
        if isinstance(answer, Grant) and answer.give_up_at <= self._clock.now():
            self.lose(Loss.DISMISSED, answer.why)
            raise self.lost_error()

    def lose(self, reason: Loss, detail: str = "") -> None:
        super().lose(reason, detail)
        self._deadline.lose()

    def release(self) -> bool:
        self._refuse_in_block()
        self.lose(Loss.RELEASED)
        self._deadline.disarm()  # before a store that may take its time
        try:
            if isinstance(self._locker, NotesEnds):
                self._locker.ends_as(*self._ending)
            return self._locker.release()
        except ConfigError as error:  # as in `renew`: rights that were taken away meanwhile, say
            raise StoreError(self.name, str(error)) from error

    def settle(self, *, left: bool = True) -> None:
        self._deadline.disarm()

    def note_loss(self) -> None:
        self.settle()
        # A store that did not answer the last time would be waited for in vain.
        if self._hears and self._lost and isinstance(self._locker, NotesEnds):
            reason, detail, at = self._lost[0]
            held_for = at - self._granted
            self._locker.note_loss(self._epoch, reason, self._epoch + round(held_for * 1000), detail)

    def close(self, *, lost: bool = False) -> None:
        self._locker.close()
