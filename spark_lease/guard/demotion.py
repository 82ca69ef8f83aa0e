"""Ends the guarded work of a lost lease: stops Spark, interrupts the block, kills what is left."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable

from ..clock import Clock
from ..config.settings import Config
from ..errors import LeaseLost
from ..holds import GuardedHold
from ..keeper.client import KeeperHold
from ..keeper.messages import STDOUT, say
from ..monitoring.events import Events
from ..spark.session import Spark
from .held import held
from .interrupt import BlockInterrupt

log = logging.getLogger(__name__)

DYING = 2.0
"""Seconds that the kernel may take to tear down what was killed."""


class Demotion:
    """Demotes one hold, at most once, whichever thread finds the loss first."""

    def __init__(
        self,
        hold: GuardedHold,
        spark: Spark,
        interrupt: BlockInterrupt,
        config: Config,
        *,
        clock: Clock,
        events: Events,
        last_words: Callable[[LeaseLost], str],
    ) -> None:
        self._hold, self._spark, self._interrupt, self._config = hold, spark, interrupt, config
        self._clock, self._events, self._last_words = clock, events, last_words
        self._seen_lost = threading.Lock()
        self._threads_before = set(threading.enumerate())

    def begin(self, lost: LeaseLost, *, grace: float = 0.0) -> None:
        """Start the demotion. Must not block: the watching thread calls it. If the block found the loss first, the
        guard calls it once all is over, and the program has `grace` seconds to report the loss itself."""
        if not self._seen_lost.acquire(blocking=False):
            return
        if isinstance(self._hold, KeeperHold):
            self._hold.report_loss(lost)
        if self._config.on_lost == "exit":
            # The kernel ends this process (SIGALRM) if _die never runs, because Python has begun to finalize.
            left = self._hold.stop_by() - self._clock.now()
            signal.setitimer(signal.ITIMER_REAL, max(left, grace) + self._config.kill_budget / 2)
        self._spark.stop(self._interrupt.has_left)
        self._events.lost(lost)
        if callable(self._config.on_lost):
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._config.on_lost, args=(lost,), name="on_lost", daemon=True).start()
        try:
            threading.Thread(target=self._demote, args=(lost, grace), name=f"demote {lost.name}", daemon=True).start()
        except RuntimeError:  # no thread can be started: this one has to do it
            self._demote(lost, grace)
        log.error("%s", lost)  # act first, talk later: a log handler may block

    def _demote(self, lost: LeaseLost, grace: float) -> None:
        stop_by = max(self._hold.stop_by(), self._clock.now() + grace)
        # When one thread is interrupted, Py4J cuts the calls of all threads: the JVM would leave `stop()` half done,
        # and take every later `stop()` for done already.
        self._spark.wait_until_asked(min(stop_by, self._clock.now() + self._config.stop_budget / 2))
        self._interrupt.insist(stop_by)
        if self._config.on_lost != "exit":
            if not self._spark.wait_until_over(stop_by):
                self._spark.kill()
            if self._spark.wait_until_over(stop_by + DYING):
                self._hold.settle(left=self._interrupt.has_left.is_set())
            elif self._spark.has_callbacks():
                what = "a foreachBatch body or a listener runs on and may still write: kill process"
                log.error("%s: %s %d", lost.name, what, os.getpid())
            self._interrupt.insist()
            self._tell_of_threads(lost.name)
            return
        # After the block is left, threads of this process may still write: the process must be gone by `stop_by`.
        never = threading.Event()
        while self._clock.now() < stop_by:
            self._clock.wait(never, stop_by - self._clock.now())
        self._die(lost)

    def _tell_of_threads(self, name: str) -> None:
        """A thread cannot be ended, and the interrupt has ended the block's wait for its pool."""
        started = set(threading.enumerate()) - self._threads_before
        left = sorted(each.name for each in started if not each.daemon)
        if left and all(lease.name == name for lease in held):  # else they may be another block's
            what = "threads that were started during the block run on and may still write"
            log.error("%s: %s (%s): kill process %d", name, what, ", ".join(left), os.getpid())

    def _die(self, lost: LeaseLost) -> None:
        # No step here may block or raise: no log, no lock, no full or broken pipe. Under spark-submit the words go
        # through the JVM, so they come before its end; a pipe that takes anything takes PIPE_BUF bytes at once.
        sys.setswitchinterval(1e-5)  # else computing threads delay each of the many looks at /proc by 5 ms
        try:
            say(f"{lost}; killing the remaining work")
            say(self._last_words(lost), STDOUT)
            if not self._hold.is_kept_by_another:
                self._spark.kill()
        finally:
            os._exit(lost.exit_code)
