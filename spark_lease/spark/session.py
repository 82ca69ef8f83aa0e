"""Ends the Spark work of this driver, by `stop()` and then by SIGKILL, and knows when it is over.

`stop()` of the context ends the writing (no task writes 0.1 s later); if only jobs are cancelled, Python workers write
on for seconds. `stop()` is repeated, because user code may start a new session meanwhile. It runs on a thread of its
own, because it hangs for ever if the JVM is frozen.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable

from ..clock import Clock
from ..config.settings import Config
from ..errors import Loss
from ..keeper.spawn import running
from ..system.processes import Process, is_alive, is_exiting, is_proc_there, kill, look, marked, marks_of, tree
from .callbacks import callbacks, end_callback
from .connect import is_connected, stop_all
from .jvm import (
    ended_jvm,
    gateway_process,
    jvm_is_gone,
    jvm_pid,
    mark_of_this_process,
    spark_context,
    under_spark_submit,
)
from .work import may_be_busy, runs_here, stopped

log = logging.getLogger(__name__)

_STOP_AGAIN, _END_AGAIN = 0.2, 1.0
_LOOK_AGAIN = 0.05
_TOLD_WITHIN, _CALLED_BACK_WITHIN = 1.0, 5.0


class Spark:
    """The Spark work of this driver, from the moment the guard is entered. Knows whether it is over."""

    def __init__(self, config: Config, *, clock: Clock, submitter: int, mark: str) -> None:
        """`submitter`: the JVM that started this process, or 0. `mark`: the JVM's mark, if it was started with one."""
        self._clock, self._submitter = clock, submitter
        self._ends_python, after_death = config.on_lost == "exit", config.release_on_death
        self._grace = after_death if isinstance(after_death, float) else None
        """Seconds after which remote executors that were told to end count as ended; None: nothing proves their end."""
        self.mark = mark or mark_of_this_process()
        self._idle = gateway_process() if spark_context() is None else None
        """A JVM that was there before, until it first works under this guard."""
        # If a JVM is there already and has no mark of ours, only stop() can prove that its workers are gone.
        jvm = None if mark else jvm_pid(submitter)
        self._mark_is_proof = is_proc_there() and (jvm is None or self.mark in marks_of(jvm))
        self._jvm: tuple[int, bool] | None = None
        self._over, self._closed, self._stop_has_returned = threading.Event(), threading.Event(), threading.Event()
        self.end_is_unprovable = threading.Event()
        """Set once Spark was stopped but nothing can prove its end: it ran on a server or on remote executors."""
        driver = {os.getpid(), *(each.pid for each in tree(jvm_pid(submitter) or 0))}
        self._neighbours = {each.identity for each in tree(os.getpid()) if each.pid not in driver}
        """Processes that this process had started before: no part of the work."""
        self._callbacks_before = callbacks()
        """The guard itself may be entered in a callback."""
        self._ended_callbacks = dict[int, float]()
        self._used_connect = self._begun = self.was_busy = False
        self._left_remote_work = self._had_remote_tasks = False

    def jvm(self) -> tuple[int, bool] | None:
        """The driver's JVM, and whether it and its child processes carry the mark; None if there is no JVM."""
        pid = jvm_pid(self._submitter)
        if pid and (self._jvm is None or self._jvm[0] != pid):
            self._jvm = pid, bool(look(pid)) and self.mark in marks_of(pid)
        return self._jvm if pid else None

    def is_local(self) -> bool | None:
        """True if all tasks run on this machine; None while there is no context. Asks no JVM."""
        context = spark_context()
        if getattr(context, "master", None) is None:  # none, or another thread is in the middle of making it
            return False if context is None and is_connected() else None
        self._idle = None
        self._had_remote_tasks |= not runs_here(context)
        return runs_here(context)

    def has_an_idle_jvm(self) -> bool:
        """True if the JVM, dead or alive, was there before this guard and has had no session under it."""
        self.is_local()
        return self._idle is not None and gateway_process() is self._idle

    def end_of_its_jvm(self) -> tuple[Loss, str] | None:
        """A liveness check: a driver without its JVM, or whose spark-submit was killed, would hold its lease for ever.

        Once spark-submit was killed, by Airflow's on_kill for instance, Python lives on and no process waits for it.
        """
        if self.has_an_idle_jvm():
            return None  # an earlier block may have killed it, and it dies only now
        why = jvm_is_gone(self._submitter)
        return (Loss.ORPHANED if under_spark_submit() else Loss.SPARK_GONE, why) if why else None

    def is_its_jvm_ending(self) -> bool:
        """True if the JVM has ended, or was killed and is ending: its end becomes visible some milliseconds later."""
        jvm = None if self.has_an_idle_jvm() else jvm_pid(self._submitter)
        return self.end_of_its_jvm() is not None or (jvm is not None and is_exiting(jvm))

    def look(self) -> None:
        """Remember the JVM and the context. Call it now and then: after their end they can no longer be found."""
        self.jvm()
        self.is_local()
        if self._callbacks_before:
            self._callbacks()

    def _is_forgotten(self) -> bool:
        """True if there was a JVM, and `forget_a_jvm_that_ended` was called for the next block."""
        return self._jvm is not None and jvm_pid(self._submitter) is None

    def is_served(self) -> bool:
        """True if a Spark Connect server does the Spark work of this process."""
        return spark_context() is None and is_connected()

    def quiesce(self, left: threading.Event) -> None:
        """Begin to stop Spark if it is busy; leave it alone if it is idle. Returns at once."""
        self._begin(lambda: self._quiesce(left))

    def leave_running(self) -> None:
        """Leave Spark alone: it goes on for another lease of this process."""
        self._over.set()

    def stop(self, left: threading.Event) -> None:
        """Begin to stop Spark, and every context that appears until the block was `left`. Returns at once."""
        self._begin(lambda: self._stop(left))

    def wait_until_over(self, until: float) -> bool:
        """True once all Spark work has ended; False if that is not certain by the instant `until`."""
        while not (over := self._clock.wait(self._over, _LOOK_AGAIN) or self._nobody_is_left()):
            if self._clock.now() >= until:
                break
        return over

    def cannot_be_proven(self, until: float) -> bool:
        """True as soon as Spark is known to be stopped and nothing can prove the end of its executors."""
        # Do not only wait for `stop()`: if the JVM ended together with us, at Ctrl-C, it never returns.
        while not self.wait_until_over(self._clock.now()) and self._clock.now() < until:
            if (self._left_remote_work or self._used_connect) and self._stop_has_returned.is_set():
                return True
            if self._had_remote_tasks and self._grace is None and jvm_is_gone(self._submitter):
                return True
        return False

    def wait_until_asked(self, until: float) -> None:
        """Wait until the first `stop()` has returned, until the instant `until` at most."""
        self._clock.wait(self._stop_has_returned, until - self._clock.now())

    def has_callbacks(self) -> bool:
        """True if a foreachBatch body, or a listener, works in this process."""
        return bool(self._callbacks())

    def close(self) -> None:
        """Stop no more contexts: this guard does not guard contexts that start from now on."""
        self._closed.set()

    def kill(self) -> None:
        """SIGKILL the JVM and its workers, or every process that it or we started, but not us. Does not block."""
        kill(self._others() if self._ends_python else self._of_the_jvm())

    def _begin(self, target: Callable[[], None]) -> None:
        if not self._begun:
            self._begun = True
            with contextlib.suppress(RuntimeError):  # no thread can be started: then Spark is killed, not stopped
                threading.Thread(target=target, name="stop Spark", daemon=True).start()

    def _quiesce(self, left: threading.Event) -> None:
        if self.has_an_idle_jvm() and ended_jvm():
            self._over.set()
        elif jvm_is_gone(self._submitter) or self._is_still_busy():
            self.was_busy = True
            log.warning("the block was left while Spark still worked: ending that work. Wait for it inside the block")
            self._stop(left)
        else:
            self._over.set()

    def _is_still_busy(self) -> bool:
        """True if Spark works. Looks repeatedly: Spark reports a job's end a moment after its action returned."""
        end, end_of_callbacks = (self._clock.now() + each for each in (_TOLD_WITHIN, _CALLED_BACK_WITHIN))
        # A server is asked once: the question itself ends the work there.
        while (found := may_be_busy()) and spark_context() is not None and self._clock.now() < end:
            self._clock.wait(self._closed, _LOOK_AGAIN)
        while not found and (found := bool(self._callbacks())) and self._clock.now() < end_of_callbacks:
            found = self._clock.wait(self._closed, _LOOK_AGAIN)
        return found

    def _callbacks(self) -> set[int]:
        found = callbacks()
        self._callbacks_before &= found  # the number of an ended thread may be used again
        return found - self._callbacks_before

    def _end_callbacks(self) -> None:
        """End each callback, and again only after a second: it may be cleaning up."""
        for thread in self._callbacks():
            if self._clock.now() >= self._ended_callbacks.get(thread, 0.0):
                self._ended_callbacks[thread] = self._clock.now() + _END_AGAIN
                end_callback(thread)

    def _stop(self, left: threading.Event) -> None:
        while True:
            last = left.is_set()  # read first: so one pass always follows after the block was left
            is_stopped = self._stop_once()
            self._stop_has_returned.set()
            # Only now: an exception in a thread that waits for Py4J would cut all connections, that of `stop()` too.
            self._end_callbacks()
            if last and self._over.is_set():
                return
            if last and is_stopped and (self._used_connect or self._left_remote_work):
                self.end_is_unprovable.set()  # a session that appears now no longer belongs to the block
                return
            if self._clock.wait(self._closed, _STOP_AGAIN):
                return

    def _stop_once(self) -> bool:
        """Stop Spark once; True if no session is left."""
        context = spark_context()
        if context is None and is_connected():
            self._mark_is_proof, self._used_connect = False, True
            stop_all()
            return not is_connected()
        if context is None and (jvm_is_gone(self._submitter) or self._is_forgotten()):
            return True  # its workers may be left, but the JVM cannot be asked
        if context is not None:
            self._over.clear()
            if not runs_here(context):
                # No mark here proves the end of remote executors: they are told to end, and do so some time later.
                self._mark_is_proof = False
                self._left_remote_work |= self._grace is None and may_be_busy()
        is_stopped = stopped()
        if is_stopped and not self._used_connect:
            if context is not None and not self._closed.is_set():  # else it was killed
                log.info("the guard has stopped the SparkContext of this program")
            if context is not None and not runs_here(context) and self._grace:
                self._clock.wait(self._closed, self._grace)
            if not self._left_remote_work and not self._callbacks():
                self._over.set()
        return is_stopped

    def _nobody_is_left(self) -> bool:
        """True if two looks find no process: one may just be forked, and a dying one shows no mark."""
        if (
            self._callbacks()
            or not self._mark_is_proof
            or self.is_local() is False
            or self._had_remote_tasks
            or marked(self.mark)
            or marked(self.mark)
        ):
            return False
        return gateway_process() is None or ended_jvm() is not None

    def _of_the_jvm(self) -> list[Process]:
        jvm = jvm_pid(self._submitter)
        ours = {each.pid for each in tree(os.getpid())} if under_spark_submit() else set()
        return [each for each in (tree(jvm) if jvm else []) if each.pid not in ours]

    def _others(self) -> list[Process]:
        jvm = jvm_pid(self._submitter)
        found = {each.pid: each for each in [*(tree(jvm) if jvm else []), *tree(os.getpid()), *marked(self.mark)]}
        neighbours = [each[0] for each in self._neighbours if is_alive(each)]
        spared = {os.getpid(), *(each.pid for each in tree(*running(), *neighbours))}
        return [each for pid, each in found.items() if pid not in spared]
