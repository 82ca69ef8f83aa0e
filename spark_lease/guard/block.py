"""Guards work inside this process: one block, from the wait for its lease to the release.

A guard waits as a standby without a SparkSession. While the block runs, a keeper process (or two threads of this
process) renews the lease. When the lease is lost or a signal comes, the guard ends the work, always in this order: no
more `check()`, stop Spark, interrupt the block, kill what is left when `stop_budget` is spent. The release comes last,
once it is certain that no guarded work runs.

While a C call of the block holds the GIL, or this process is frozen, none of its threads can act: then the keeper or
the kernel ends the process.
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
    """A context manager for one hold, from the wait to the release, that gives the Lease. Use `hold_lease`."""

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
        """`mark`: the mark with which the JVM was started, if any. `last_words` returns what goes to standard output if
        the process has to be killed: a launcher must print an outcome. `front_door`: the keeper outside, if it has
        started this process; it keeps the lease. `warm_up`: called by a warm standby."""
        self.config, self._mark, self._front_door = config, mark, front_door
        self._last_words, self._warm_up = last_words, warm_up
        self._clock = BootClock()
        self._events = open_events(config, on_event)
        self._interrupt = BlockInterrupt(self._clock)
        self._has_begun = self._has_claimed = False
        self._entered = EnteredOnce(config.name)
        self.has_crashed, self.left = False, ""
        """True once the block has failed and its JVM had ended; the work that it left running, which was then ended."""
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
            is_noted = False  # no call before the `try`: another signal may come together with the first
            try:
                while True:
                    try:
                        lost = self._take_back(error, is_noted=is_noted)
                        break
                    except KeyboardInterrupt:  # try again: a lease that is only half given up would be renewed for ever
                        is_noted = True
            finally:  # in any case: the program handles its signals again
                self._interrupt.end()
            if isinstance(error, Ended) and (lost or self._refused or self.signalled):
                raise lost or self._refused or SystemExit(128 + self._interrupt.signal) from None
            raise

    def _assemble(self) -> None:
        """Create all parts of the guard. Only the keeper process runs already; it does not ask for the lease yet."""
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
        """Wait for the lease, then claim. After any exception, call `_take_back`."""
        self._interrupt.begin(is_lost=self._is_lost)
        self._events.begin(self.hold)
        self.hold.prepare()
        self._fencing.prepare()
        begin_hold(self.hold, self._keepalive, still_wanted=self._still_wanted)
        self._has_begun = True
        if held:
            with contextlib.suppress(Exception):  # Py4J may raise anything: then assume that no Spark work runs
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
        self.hold.check()  # the steps before may have taken long
        self._events.held(self.hold)
        return self._lease

    def _still_wanted(self) -> None:
        """Called repeatedly during the wait. Raises LeaseLost if this process has no Spark to work with."""
        if not held:  # a JVM that an earlier block has killed may end only now
            forget_a_jvm_that_ended()
        if finding := self._jvm_ended():
            raise LeaseLost(self.config.name, 0, *finding)
        self._standby.look()
        if self._standby.has_begun and isinstance(self._keepalive, SparkReporter):
            with contextlib.suppress(Exception):  # another thread is starting Spark
                self._keepalive.report()

    def _on_standby(self, state: str) -> None:
        self.hold.stands_by(state)
        self._events.standby(self.hold, state)

    def _take_back(self, error: BaseException, *, is_noted: bool) -> LeaseLost | None:
        """Give up a hold whose block never begins; returns the loss if that is the reason. May be called again."""
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
            if self._has_begun and lost is None:  # no other master may begin before this Spark has ended
                self._standby.give_up(budget)
        finally:
            abandon(self.hold, self._keepalive)
        self.hold.settle()
        self.hold.close(lost=lost is not None)
        if not self._has_begun:  # this process does not contend any more, and no contender waits for its Spark
            self._standby.give_up(budget)
        self._standby.close()
        self._events.end(lost=lost is not None)
        return lost

    def _leave_the_block(self) -> None:
        self._interrupt.leave()
        leave(self._lease)

    def _on_unprotected(self, why: str) -> None:
        """End the block if `require_protection` is no longer met; the lease is renewed until the block has ended."""
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
                        return  # a forked child leaves its copy of the block: the child must not release the lease
                    if sys.is_finalizing():  # a generator kept the block open: no thread runs any more, none can start
                        is_kept = isinstance(self._keepalive, SparkReporter)
                        free = "released when this process has ended" if is_kept else "not released, it runs out"
                        log.warning("%s: Python exits while a generator holds the block open: %s", self.hold.name, free)
                        return
                    lost = self._leave(error)
                    break
                except KeyboardInterrupt as interrupt:  # sent just before the block was left, or a second Ctrl-C
                    error = error or interrupt
        finally:  # in any case: the program handles its signals again
            try:
                self._interrupt.end()
            except KeyboardInterrupt as interrupt:
                error = error or interrupt
        if lost is not None:
            raise lost from (None if isinstance(error, Ended) else error)
        if self._refused:
            raise self._refused from None
        self._interrupt.exit_for_signal(error, self.hold.name)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if self._unnoted:
            raise self._unnoted[0]

    def _leave(self, error: BaseException | None) -> LeaseLost | None:
        """End all work, then release; the loss if there was one."""
        has_failed = isinstance(error, Exception | SystemExit) and not is_success(error)  # not ended from outside
        # The JVM was killed, and the error of a failed call left the block before the watching thread saw that.
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
            # After a block that failed, its tasks may still run: we do not know.
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
        if lost is not None:  # the block may have seen the loss first
            self._demotion.begin(lost, grace=LAST_WORDS)
            self._events.lost(lost)  # the last event, whichever thread reports the loss
            drop_local_server()
        self._applications.end()
        if self._spark.wait_until_over(self._clock.now()):
            self._put_away(is_over=True)
        else:  # keep the fence for as long as Spark lives and may write
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._put_away, name="put away", daemon=True).start()
        self.hold.close(lost=lost is not None)
        if lost is None:
            self._events.ended(self.hold)
        self._events.end(lost=lost is not None)
        return lost

    def _is_shared(self, error: BaseException | None) -> bool:
        """True if Spark must keep running after this block, for another lease of this process."""
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
        """How the block ended: a word of `journal_entries.GIVEN_BACK`, details. No message: it may hold a secret."""
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
        # Ctrl-C ends the JVM together with this process: once the block is left, that is no loss, and we wait for it.
        return None if self._interrupt.has_left.is_set() else self._spark.end_of_its_jvm()
