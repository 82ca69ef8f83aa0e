"""Guarded work inside this process: one block, from the wait for its lease to the release.

A guard waits as a standby without a SparkSession, has the lease kept by a process beside this one (or by two threads
of it) while the block runs, and ends the work when the lease is lost or a signal comes. The order of an ending is
always the same: no more `check()`, stop Spark, interrupt the block, kill what is left when `stop_budget` is spent; and
the release comes last, after it is known that nothing runs any more.

No thread of this process acts while a C call of the block holds the GIL, or while it is frozen: then the keeper ends
it, or the kernel.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from ..clock import BootClock
from ..config.settings import Config
from ..election.journal_entries import CRASHED, FAILED, INTERRUPTED
from ..election.lifecycle import abandon, begin_hold, end_hold
from ..errors import AlreadyDone, ConfigError, LeaseLost, Loss, SparkLeaseError
from ..fencing.delta.tables import KIND as DELTA_TABLES
from ..fencing.sql.databases import look_for_a_newer_claim
from ..keeper.messages import LAST_WORDS
from ..keeper.spawn import FrontDoor
from ..lease import Lease
from ..monitoring.events import OnEvent, open_events
from ..outcome import ending_of, is_all_done, is_success
from ..spark.applications import Applications
from ..spark.delta_fence import Fencing
from ..spark.jvm import drop_local_server, forget_a_jvm_that_ended, submitting_jvm, under_spark_submit
from ..spark.reporter import SparkReporter
from ..spark.session import Spark
from ..spark.shared_work import SharedWork
from ..spark.warm_standby import WarmStandby, WarmUp
from ..system.processes import need_linux, signal_name
from .demotion import DYING, Demotion
from .held import EnteredOnce, enter, held, leave, refuse_own
from .interrupt import BlockInterrupt, Ended
from .keeping import open_hold

log = logging.getLogger(__name__)

JVM_ENDED = "its JVM ended"
_LOOK_AGAIN = 1.0
_ANSWERS_WITHIN = 2.0


class Guard:
    """One hold, from the wait to the release; a context manager that gives the Lease. Use `hold_lease`."""

    def __init__(
        self,
        config: Config,
        *,
        mark: str = "",
        last_words: Callable[[LeaseLost], str] = lambda lost: "",
        on_event: OnEvent | None = None,
        front_door: FrontDoor | None = None,
        warm_up: WarmUp | None = None,
    ) -> None:
        """`mark` is the one that the JVM was started with, if it was. `last_words` go to standard output if the process
        has to be killed: for a launcher that owes an outcome. `front_door` keeps the lease, if it has started us.
        `warm_up` is what a warm standby calls."""
        self.config, self._mark, self._front_door = config, mark, front_door
        self._last_words, self._warm_up = last_words, warm_up
        self._clock = BootClock()
        self._events = open_events(config, on_event)
        self._interrupt = BlockInterrupt(self._clock)
        self._has_begun = self._has_claimed = False
        self._entered = EnteredOnce(config.name)
        self.has_crashed = False
        """True once the block has failed and its JVM had ended."""
        self.left = ""
        """Work that the block left running, and that had to be ended."""
        self._unnoted: list[SparkLeaseError] = []
        self._refused: ConfigError | None = None

    @property
    def signalled(self) -> bool:
        """True if a signal from outside ended the block, or the wait for it."""
        return bool(self._interrupt.signal)

    def _is_lost(self) -> bool:
        return self._lease in held and self.hold.loss() is not None

    def __enter__(self) -> Lease:
        self._entered.enter()
        refuse_own(self.config)
        if self.config.enabled:
            need_linux()
        if self.config.contain == "required" and not self._front_door:
            raise ConfigError("contain", "is required, but works only under spark-lease run and spark-lease submit")
        self._pid = os.getpid()
        self._assemble()
        try:
            return self._begin()
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
                self._interrupt.end()
            if isinstance(error, Ended) and (lost or self._refused or self.signalled):
                raise lost or self._refused or SystemExit(128 + self._interrupt.signal) from None
            raise

    def _assemble(self) -> None:
        """Make all that takes part. Of these only the keeper process runs already, and asks for nothing yet."""
        if not held:
            forget_a_jvm_that_ended()
        submitter = submitting_jvm() if under_spark_submit() else 0
        self._spark = Spark(self.config, clock=self._clock, submitter=submitter, mark=self._mark)
        self._shared = SharedWork(self._clock)
        self.hold, self._keepalive = open_hold(
            self.config,
            self._spark,
            clock=self._clock,
            mark=self._mark,
            front_door=self._front_door,
            events=self._events,
            liveness_checks=[self._jvm_ended],
            on_lost=lambda lost: self._demotion.begin(lost),
            on_unprotected=self._on_unprotected,
        )
        self._lease = Lease(self.hold, self.config, self._clock)
        self._demotion = Demotion(
            self.hold,
            self._spark,
            self._interrupt,
            self.config,
            clock=self._clock,
            events=self._events,
            last_words=self._last_words,
        )
        self._fencing = Fencing(self.hold, self.config, self._clock)
        self._applications = Applications(self.hold, self.config)
        self._standby = WarmStandby(
            self.config,
            self._clock,
            warm_up=self._warm_up,
            is_wanted=self.config.standby == "warm" and self.config.enabled and not held,
            noted_tables=lambda: self.hold.noted(DELTA_TABLES),
            is_master=lambda: any(each is not self._lease for each in held),
            on_state=self._on_standby,
            submitter=submitter,
        )

    def _begin(self) -> Lease:
        """Wait for the lease, then claim. Whatever is raised: `_take_back`."""
        self._interrupt.begin(is_lost=self._is_lost)
        self._events.begin(self.hold)
        self.hold.prepare()
        self._fencing.prepare()
        begin_hold(self.hold, self._keepalive, still_wanted=self._still_wanted)
        self._has_begun = True
        if held:
            with contextlib.suppress(Exception):  # Py4J raises anything: then it is as if nothing ran
                self._shared.begin()
        enter(self._lease)
        self.hold.log_grant()
        if problem := self._standby.granted(max(self.hold.remaining() / 2, _ANSWERS_WITHIN)):
            self.hold.lose(Loss.SPARK_GONE, problem)
        if self.config.run_key:
            self.hold.runs.begin(self.config.run_key)
        self._has_claimed = self._fencing.begin()
        self._standby.end()
        self._applications.begin()
        self.hold.check()  # all that may have taken its time
        self._events.held(self.hold)
        return self._lease

    def _still_wanted(self) -> None:
        """Called as long as it waits. Raises LeaseLost if this process has no Spark to work with."""
        if not held:  # one that an earlier block has killed may end only now
            forget_a_jvm_that_ended()
        if finding := self._jvm_ended():
            raise LeaseLost(self.config.name, 0, *finding)
        self._standby.look()
        if self._standby.has_begun and isinstance(self._keepalive, SparkReporter):
            with contextlib.suppress(Exception):  # Spark is being started, on another thread
                self._keepalive.report()

    def _on_standby(self, state: str) -> None:
        self.hold.stands_by(state)
        self._events.standby(self.hold, state)

    def _take_back(self, error: BaseException, *, is_noted: bool) -> LeaseLost | None:
        """Nothing of the block has begun, and nothing will; the loss if that is why. May be called again."""
        self.hold.ends_as(*self._ending_of(error))
        lost = self.hold.loss() if self._has_begun else None
        self._leave_the_block()
        self._applications.end()
        self._fencing.end()
        if lost is not None:
            self._standby.end()
            self._demotion.begin(lost, grace=LAST_WORDS)
        elif not is_noted:
            self.hold.runs.note_end(self.config.run_key, INTERRUPTED)
        budget = 0.0 if is_noted else self.config.stop_budget
        try:
            if self._has_begun and lost is None:  # no other is to begin before this Spark has ended
                self._standby.give_up(budget)
        finally:
            abandon(self.hold, self._keepalive)
        self.hold.settle()
        self.hold.close(lost=lost is not None)
        if not self._has_begun:  # it is not contended for any more, and none waits for this Spark
            self._standby.give_up(budget)
        self._standby.close()
        self._events.end(lost=lost is not None)
        return lost

    def _leave_the_block(self) -> None:
        self._interrupt.leave()
        leave(self._lease)

    def _on_unprotected(self, why: str) -> None:
        """End the block if that is not to be; the lease is renewed until it has ended."""
        if not self.hold.protection.covers(self.config.require_protection):
            self._refused = ConfigError("require_protection", f"{self.config.require_protection} is required: {why}")
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._interrupt.insist, name="refuse", daemon=True).start()

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _tb: TracebackType | None
    ) -> None:
        try:
            while True:
                try:
                    if os.getpid() != self._pid:
                        return  # a forked child leaves its copy of the block: the lease is not its to give back
                    if sys.is_finalizing():  # a generator kept it open: no thread runs any more, and none can be begun
                        is_kept = isinstance(self._keepalive, SparkReporter)
                        free = "released when this process has ended" if is_kept else "not released, it runs out"
                        log.warning("%s: Python exits while a generator holds the block open: %s", self.hold.name, free)
                        return
                    lost = self._leave(error)
                    break
                except KeyboardInterrupt as interrupt:  # sent to the block just before it was left, or Ctrl-C once more
                    error = error or interrupt
        finally:  # whatever comes now: the signals are the program's again
            try:
                self._interrupt.end()
            except KeyboardInterrupt as interrupt:
                error = error or interrupt
        if lost is not None:
            raise lost from (None if isinstance(error, Ended) else error)
        if self._refused:
            raise self._refused from None
        number = self._interrupt.signal
        if number and not (number == signal.SIGINT and isinstance(error, Exception | KeyboardInterrupt)):
            raise SystemExit(128 + number) from None
        if isinstance(error, KeyboardInterrupt):
            raise error
        if self._unnoted:
            raise self._unnoted[0]

    def _leave(self, error: BaseException | None) -> LeaseLost | None:
        """End all work, then release; the loss if there was one."""
        self._interrupt.look_for_sigint()
        has_failed = isinstance(error, Exception | SystemExit) and not is_success(error)  # not ended from outside
        # Its JVM was killed, and the error of the call that noticed it has left the block before the watch saw it.
        if has_failed and self._spark.is_its_jvm_ending():
            self.has_crashed = True
            log.error("%s: the work has crashed: %s", self.hold.name, JVM_ENDED)
        self._leave_the_block()
        if self._has_claimed and has_failed and self.hold.loss() is None:
            look_for_a_newer_claim(self.config, self.hold)
        if self._is_shared(error) and self._shared.see_out(self.hold.name, lambda: self._is_shared(error)):
            self._standby.cancel_jobs()
            self._spark.leave_running()
        elif self.hold.loss() is None and is_success(error):
            self._standby.cancel_jobs()
            self._spark.quiesce(self._interrupt.has_left)
        else:
            # After a block that failed, it is not known what its tasks still do.
            self._spark.stop(self._interrupt.has_left)
        end, dying = self._clock.now() + self.config.stop_budget, DYING
        if self._spark.cannot_be_proven(min(end, self.hold.stop_by())):
            what = "Spark worked on other machines, or on a server"
            log.warning("%s: %s, and nothing proves that it has ended", self.hold.name, what)
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
            self._demotion.begin(lost, grace=LAST_WORDS)
            self._events.lost(lost)  # last of all, whichever thread is about to say it
            drop_local_server()
        self._applications.end()
        if self._spark.wait_until_over(self._clock.now()):
            self._put_away(is_over=True)
        else:  # what Spark may still write is refused as long as it lives
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._put_away, name="put away", daemon=True).start()
        self.hold.close(lost=lost is not None)
        if lost is None:
            self._events.ended(self.hold)
        self._events.end(lost=lost is not None)
        return lost

    def _is_shared(self, error: BaseException | None) -> bool:
        """True if Spark is to go on after this block, for another lease of this process."""
        is_ended = self.signalled or self._refused or isinstance(error, KeyboardInterrupt)
        return bool(held) and not is_ended and self.hold.loss() is None

    def _put_away(self, *, is_over: bool = False) -> None:
        while not (is_over or self._spark.end_is_unprovable.is_set()):
            is_over = self._spark.wait_until_over(self._clock.now() + _LOOK_AGAIN)
        self._fencing.end()
        self._standby.close()
        if is_over:
            self.hold.settle()
        self._spark.close()
        if not held:
            forget_a_jvm_that_ended()

    def _ending_of(self, error: BaseException | None) -> tuple[str, str]:
        """How the block ended: a word of `journal_entries.GIVEN_BACK`, and more. No message: it may have a secret."""
        if self._refused:
            return FAILED, self._refused.key
        if self.signalled or isinstance(error, KeyboardInterrupt):
            number = self._interrupt.signal or (0 if isinstance(error, Ended) else signal.SIGINT)
            return INTERRUPTED, signal_name(number) if number else "the loss of another lease"
        if isinstance(error, AlreadyDone) and not is_all_done(error, self.config):
            return FAILED, type(error).__name__
        if is_success(error) and self._spark.was_busy:
            return INTERRUPTED, "Spark still worked"
        return (CRASHED, JVM_ENDED) if self.has_crashed else ending_of(error)

    def _note_the_run(self, error: BaseException | None) -> None:
        if self._spark.was_busy and is_success(error):
            self.left = "the block was left while Spark still worked"
        self._unnoted = self.hold.note_run(*self._ending_of(error), left=self.left)

    def _jvm_ended(self) -> tuple[Loss, str] | None:
        # Ctrl-C ends the JVM together with us: once the block was left that is no loss but what we wait for.
        return None if self._interrupt.has_left.is_set() else self._spark.end_of_its_jvm()
