"""Guarded work inside this process: one block, from the wait for its lease to the release.

A guard waits as a standby without a SparkSession, has the lease kept by a process beside this one (or by two threads
of it) while the block runs, and ends the work when the lease is lost or a signal comes. The order of an ending is
always the same: no more `check()`, stop Spark, interrupt the block, kill what is left when `stop_budget` is spent; and
the release comes last, after it is known that nothing runs any more.

What it does not do: nothing of this process can act while a C call of the block holds the GIL, or while it is frozen.
Then the keeper ends it, or the kernel. With threads alone the work may go on beside the next master until the call
returns or the process thaws.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ..clock import BootClock, Clock
from ..config.settings import Config
from ..election.journal_entries import FAILED, INTERRUPTED
from ..election.keepalive import Keepalive, LivenessCheck
from ..election.lifecycle import abandon, begin_hold, end_hold
from ..election.record import new_holder
from ..errors import AlreadyDone, ConfigError, LeaseLost, Loss, SparkLeaseError
from ..fencing.sql.databases import look_for_a_newer_claim
from ..fencing.status import Levels
from ..holds import GuardedHold, open_contender
from ..keeper.client import KeeperHold, SparkReporter
from ..keeper.deadline import shared_with_forks
from ..keeper.main import LAST_WORDS
from ..keeper.spawn import CannotStart, FrontDoor, Started, start
from ..lease import Lease
from ..monitoring.events import OnEvent, open_events
from ..outcome import ending_of
from ..spark.applications import Applications
from ..spark.contexts import application_id
from ..spark.delta_fence import Fencing
from ..spark.liveness import liveness_checks
from ..spark.session import Spark, forget_a_jvm_that_ended, submitting_jvm, under_spark_submit
from ..system.processes import need_linux, signal_name
from ..system.signals import HandledSignals

log = logging.getLogger(__name__)

_INTERRUPT_AGAIN = 1.0
_AT_ONCE = 0.5
"""Seconds in which two signals are one: systemd and terminals send SIGTERM and SIGHUP together."""
_DYING = 2.0
"""Seconds that the kernel may take to tear down what was killed."""
_NOT_HERE = "a guard inside a driver cannot contain it, spark-lease submit can"
_held: list[Lease] = []


class _Ended(KeyboardInterrupt):
    """Raised in the guarded block to end it.

    Not an Exception, so that a retry around a query does not swallow it; and of the one kind after which Py4J closes
    the connection that was waiting, instead of taking the late answer for that of the next call.
    """


def current_lease() -> Lease | None:
    """The lease that this process holds, the innermost if there are several; for code that was not handed one."""
    return _held[-1] if _held else None


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in _held]


def _is_success(error: BaseException | None) -> bool:
    return error is None or (isinstance(error, SystemExit) and not error.code)


def _has_failed(error: BaseException | None) -> bool:
    """By itself: it was not ended from outside."""
    return isinstance(error, Exception | SystemExit) and not _is_success(error)


class Guard:
    """One hold, from the wait to the release; a context manager that gives the Lease. Use `hold_lease`."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        mark: str = "",
        last_words: Callable[[LeaseLost], str] = lambda lost: "",
        on_event: OnEvent | None = None,
        front_door: FrontDoor | None = None,
    ) -> None:
        """`mark` is the one that the JVM was started with, if it was. `last_words` go to standard output if the process
        has to be killed: for a launcher that owes an outcome. `front_door` keeps the lease, if it has started us."""
        self.config, self._mark, self._front_door = config, mark, front_door
        self._clock = clock or BootClock()
        self._last_words = last_words
        self._events = open_events(config, on_event)
        self._left = threading.Event()
        self._interrupting, self._seen_lost = threading.Lock(), threading.Lock()
        self._signal, self._ended_at = 0, -math.inf
        self._has_begun = self._has_claimed = False
        self._unnoted: list[SparkLeaseError] = []
        self._refused: ConfigError | None = None
        self._signals = HandledSignals(self._on_signal)

    @property
    def signalled(self) -> bool:
        """True if a signal from outside ended the block, or the wait for it."""
        return bool(self._signal)

    def __enter__(self) -> Lease:
        if self._left.is_set():
            raise ConfigError("hold_lease", "its block has ended: call hold_lease again for each block")
        if self.config.enabled:
            need_linux()
        if self.config.contain == "required" and not self._front_door:
            raise ConfigError("contain", "is required, and only what spark-lease run and submit start can be contained")
        self._pid, self._thread = os.getpid(), threading.get_ident()
        if not _held:
            forget_a_jvm_that_ended()
        submitter = submitting_jvm() if under_spark_submit() else 0
        self._spark = Spark(
            clock=self._clock,
            submitter=submitter,
            mark=self._mark,
            ends_python=self.config.on_lost == "exit",
            grace=self.config.release_on_death if isinstance(self.config.release_on_death, float) else None,
        )
        signs = [functools.partial(self._while_inside, sign) for sign in liveness_checks(submitter, self._spark)]
        self.hold, self._keepalive = self._open(signs)
        self._lease = Lease(self.hold, self.config, self._clock)
        levels = Levels(self.hold, self.config)
        self._fencing = Fencing(self.hold, self.config, self._clock, levels)
        self._applications = Applications(self.hold, self.config)
        self.hold.runs.application = application_id

        def still_wanted() -> None:
            if not _held:  # one that an earlier block has killed may end only now
                forget_a_jvm_that_ended()
            for finding in filter(None, (sign() for sign in signs)):
                raise LeaseLost(self.config.name, 0, *finding)

        try:
            self._signals.begin()
            self._events.begin(self.hold)
            self.hold.prepare()
            self._fencing.prepare()
            begin_hold(self.hold, self._keepalive, still_wanted=still_wanted)
            self._has_begun = True
            _held.append(self._lease)
            self.hold.log_grant()
            if self.config.run_key:
                self.hold.runs.begin(self.config.run_key)
            self._has_claimed = self.hold.claim_databases()
            if self._has_claimed:
                levels.show(sql="claimed")
            self._fencing.begin()
            self._applications.begin()
            self.hold.check()  # all that may have taken its time
            self._events.held(self.hold)
            return self._lease
        except BaseException as error:
            is_noted = False  # and no call before the `try`: another signal may have come together with the first
            try:
                while True:
                    try:
                        lost = self._take_back(error, is_noted=is_noted)
                        break
                    except KeyboardInterrupt:  # once more: a lease that is given up by half is renewed for ever
                        is_noted = True
            finally:  # whatever comes now: the signals are the program's again
                self._signals.end()
            if isinstance(error, _Ended):
                raise lost or self._refused or SystemExit(128 + self._signal) from None
            raise

    def _take_back(self, error: BaseException, *, is_noted: bool) -> LeaseLost | None:
        """Nothing of the block has begun, and nothing will; the loss if that is why. May be called again."""
        self.hold.ends_as(*self._ending_of(error))
        lost = self.hold.loss() if self._has_begun else None
        self._leave_the_block()
        self._applications.end()
        self._fencing.end()
        if lost is not None:
            self._on_lost(lost, grace=LAST_WORDS)
        elif not is_noted:
            self.hold.runs.settle(self.config.run_key, INTERRUPTED)
        abandon(self.hold, self._keepalive)
        self.hold.settle()
        self.hold.close(lost=lost is not None)
        self._events.end(lost=lost is not None)
        return lost

    def _leave_the_block(self) -> None:
        self._left.set()
        with self._interrupting:  # an interrupt that is being sent now arrives before the handlers are taken away
            pass
        if self._lease in _held:
            _held.remove(self._lease)

    def _open(self, signs: Sequence[LivenessCheck]) -> tuple[GuardedHold, Keepalive | SparkReporter]:
        """A contender of its own process if that is wanted and can be had, else one of two threads."""
        clock = self._clock
        if self.config.enabled and self.config.keeper != "thread":
            try:
                started = self._start()
                kept = KeeperHold(started, self.config, clock=clock, on_renewal=self._events.renewal)
                if started.why:
                    log.warning("%s: protection %s: %s", self.config.name, started.level, started.why)
                self._require(kept, started.why)
                return kept, SparkReporter(
                    kept,
                    self._spark,
                    on_lost=self._on_lost,
                    on_look=lambda: self._look(kept),
                    on_unprotected=self._on_unprotected,
                    liveness_checks=signs,
                )
            except CannotStart as error:
                if self.config.keeper == "process":
                    raise ConfigError("keeper", f"cannot start the keeper process: {error}") from error
                log.warning(
                    "%s: cannot start the keeper process, renewing from threads instead: %s",
                    self.config.name,
                    error,
                )
        deadline = shared_with_forks()
        hold = open_contender(self.config, clock, on_renewal=self._events.renewal, published=deadline)
        self._require(hold, "threads keep it")

        def look() -> None:
            self._look(hold)
            self._spark.look()

        return hold, Keepalive(
            hold,
            self.config,
            clock=clock,
            on_lost=self._on_lost,
            on_look=look,
            liveness_checks=signs,
        )

    def _require(self, hold: GuardedHold, why: str) -> None:
        """Raise ConfigError unless `hold` is as well protected as it has to be."""
        wanted = self.config.require_protection
        if self.config.enabled and not hold.protection.covers(wanted):
            hold.close()
            raise ConfigError("require_protection", f"{wanted} is required, not {hold.protection}: {why or _NOT_HERE}")

    def _on_unprotected(self, why: str) -> None:
        """End the block if that is not to be; the lease is renewed until it has ended."""
        if not self.hold.protection.covers(self.config.require_protection):
            self._refused = ConfigError("require_protection", f"{self.config.require_protection} is required: {why}")
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._interrupt, name="refuse", daemon=True).start()

    def _start(self) -> Started:
        if self._front_door:
            return self._front_door.begin(self.config)
        holder = new_holder(self.config.holder)
        return start(self.config, holder=holder, mark=self._spark.mark, announces=bool(self._mark))

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child leaves its copy of the block: the lease is not its to give back
        while True:
            try:
                lost = self._leave(error)
                break
            except KeyboardInterrupt as interrupt:  # sent to the block just before it was left, or Ctrl-C once more
                error = error or interrupt
        try:
            self._signals.end()
        except KeyboardInterrupt as interrupt:
            error = error or interrupt
        if lost is not None:
            raise lost from (None if isinstance(error, _Ended) else error)
        if self._refused:
            raise self._refused from None
        if self._signal:
            raise SystemExit(128 + self._signal) from None
        if isinstance(error, KeyboardInterrupt):
            raise error
        if self._unnoted:
            raise self._unnoted[0]

    def _leave(self, error: BaseException | None) -> LeaseLost | None:
        """End all work, then release; the loss if there was one."""
        self._leave_the_block()
        if self._has_claimed and _has_failed(error) and self.hold.loss() is None:
            look_for_a_newer_claim(self.config, self.hold, clock=self._clock)
        if self.hold.loss() is None and _is_success(error):
            self._spark.quiesce(self._left)
        else:
            # After a block that failed, it is not known what its tasks still do.
            self._spark.stop(self._left)
        end, dying = self._clock.now() + self.config.stop_budget, _DYING
        if self._spark.cannot_be_proven(min(end, self.hold.stop_by())):
            log.warning(
                "%s: executors on other machines were at work, and nothing proves that they ended", self.hold.name
            )
            end = dying = 0.0
        lost = end_hold(
            self.hold,
            self._keepalive,
            self._spark,
            clock=self._clock,
            stop_budget=max(end - self._clock.now(), 0.0),
            dying=dying,
            on_over=lambda: self._note_the_run(error),
            is_proven=lambda: False,  # threads and children that the block left may still write
        )
        if lost is not None:  # the block may have seen it first
            self._on_lost(lost, grace=LAST_WORDS)
            self._events.lost(lost)  # last of all, whichever thread is about to say it
        self._applications.end()
        if self._spark.wait_until_over(self._clock.now()):
            self._put_away()
        else:  # what Spark may still write is refused as long as it lives
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._put_away_once_over, name="put away", daemon=True).start()
        self.hold.close(lost=lost is not None)
        if lost is None:
            self._events.ended(self.hold)
        self._events.end(lost=lost is not None)
        return lost

    def _put_away(self) -> None:
        self._fencing.end()
        self.hold.settle()
        self._spark.close()
        if not _held:
            forget_a_jvm_that_ended()

    def _put_away_once_over(self) -> None:
        while not self._spark.wait_until_over(self._clock.now() + _INTERRUPT_AGAIN):
            pass
        self._put_away()

    def _ending_of(self, error: BaseException | None) -> tuple[str, str]:
        """How the block ended: a word of `journal_entries.GIVEN_BACK`, and more. No message: it may have a secret."""
        if self._refused:
            return FAILED, self._refused.key
        if self._signal or isinstance(error, KeyboardInterrupt):
            return INTERRUPTED, signal_name(self._signal or signal.SIGINT)
        if isinstance(error, AlreadyDone) and error.key != self.config.run_key:
            return FAILED, type(error).__name__
        if _is_success(error) and self._spark.was_busy:
            return INTERRUPTED, "Spark still worked"
        return ending_of(error)

    def _note_the_run(self, error: BaseException | None) -> None:
        outcome, detail = self._ending_of(error)
        self.hold.ends_as(outcome, detail)
        if self.config.run_key and self._spark.was_busy and _is_success(error):
            log.error(
                "%s: the block was left while Spark still worked: its run key is not marked as done", self.config.name
            )
        self._unnoted = self.hold.runs.settle(self.config.run_key, outcome)

    def _look(self, hold: GuardedHold) -> None:
        self._events.look(hold)
        self._signals.look()

    def _while_inside(self, sign: LivenessCheck) -> tuple[Loss, str] | None:
        # Ctrl-C ends the JVM together with us: once the block was left that is no loss but what we wait for.
        return None if self._left.is_set() else sign()

    def _on_lost(self, lost: LeaseLost, *, grace: float = 0.0) -> None:
        """Called by the watching thread, which must not be held up. Or once all is over, if the block saw it first:
        then the program has `grace` seconds to say so itself."""
        if not self._seen_lost.acquire(blocking=False):
            return
        if isinstance(self.hold, KeeperHold):
            self.hold.report_loss(lost)
        if self.config.on_lost == "exit":
            # The kernel's turn (SIGALRM) if _die never gets its own, because Python has begun to finish.
            left = self.hold.stop_by() - self._clock.now()
            signal.setitimer(signal.ITIMER_REAL, max(left, grace) + self.config.kill_budget / 2)
        self._spark.stop(self._left)
        self._events.lost(lost)
        if callable(self.config.on_lost):
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.config.on_lost, args=(lost,), name="on_lost", daemon=True).start()
        try:
            threading.Thread(target=self._demote, args=(lost, grace), name=f"demote {lost.name}", daemon=True).start()
        except RuntimeError:  # this machine gives us no thread any more: then it has to be this one
            self._demote(lost, grace)
        log.error("%s", lost)  # act first, talk later: a log handler may block

    def _demote(self, lost: LeaseLost, grace: float) -> None:
        stop_by = max(self.hold.stop_by(), self._clock.now() + grace)
        # Py4J answers the interrupt of one thread by cutting the calls of all threads: the JVM would leave `stop()`
        # half done, and take every later one for done already.
        self._spark.wait_until_asked(min(stop_by, self._clock.now() + self.config.stop_budget / 2))
        while not self._left.is_set() and self._clock.now() < stop_by:
            self._interrupt()
            self._clock.wait(self._left, min(_INTERRUPT_AGAIN, stop_by - self._clock.now()))
        if self.config.on_lost != "exit":
            if not self._spark.wait_until_over(stop_by):
                self._spark.kill()
            if self._spark.wait_until_over(stop_by + _DYING):
                self.hold.settle(left=self._left.is_set())
            return
        # The block may be left and the process still have threads that write: it has to be gone by then.
        never = threading.Event()
        while self._clock.now() < stop_by:
            self._clock.wait(never, stop_by - self._clock.now())
        self._die(lost)

    def _die(self, lost: LeaseLost) -> None:
        # Nothing here may block or raise: no log, no lock, no pipe that is full or broken. Under spark-submit the words
        # go through the JVM, so they come before its end; a pipe that takes anything takes PIPE_BUF bytes at once.
        sys.setswitchinterval(1e-5)  # threads that compute would hold up each of the many looks at /proc for 5 ms
        try:
            for stream, words in ((2, f"{lost}; killing all that is left"), (1, self._last_words(lost))):
                with contextlib.suppress(OSError):
                    if words and select.select([], [stream], [], 0)[1]:
                        os.write(stream, words.encode()[: select.PIPE_BUF - 1] + b"\n")
            if not self.hold.is_kept_by_another:
                self._spark.kill()
        finally:
            os._exit(lost.exit_code)

    def _interrupt(self) -> None:
        """Raise _Ended in the guarded block; a signal also gets it out of a blocking call."""
        with self._interrupting:
            if self._left.is_set():
                return
            if self._signals:
                signal.pthread_kill(self._thread, signal.SIGTERM)
            else:
                import ctypes  # heavy, and hardly ever needed

                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_Ended))

    def _on_signal(self, number: int, _frame: object) -> None:
        """In the main thread: a signal from outside, or `_interrupt`. Talks neither to Py4J nor to the store."""
        if self._lease not in _held or self.hold.loss() is None:
            self._signal = number
        if not self._left.is_set() and self._clock.now() > self._ended_at + _AT_ONCE:
            self._ended_at = self._clock.now()
            raise _Ended
