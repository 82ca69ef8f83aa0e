"""Keeps one lease of one driver, from the wait for it to its release, as `main.py` describes."""

import contextlib
import functools
import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import BootClock
from ..config.settings import Config
from ..election.journal_entries import CRASHED, INTERRUPTED
from ..election.keepalive import Keepalive
from ..election.lifecycle import abandon, begin_hold, end_hold
from ..election.record import Protection, new_holder
from ..errors import Loss, SparkLeaseError, StoreError
from ..holds import open_contender
from ..outcome import NOT_ANNOUNCED, Outcome, announce, announced_epoch, crashed, refused
from ..system.containment import Init
from ..system.descriptors import readable
from ..system.processes import signal_name
from .channel import Channel
from .contained import ContainedDriver
from .conversation import Conversation
from .deadline import new_mapping
from .death import LeftBehind, stopped
from .driver import Driver
from .enforced import Enforced
from .guarded_processes import describe
from .messages import AT_ONCE, LAST_WORDS, refusal, say
from .server_session import end_server_session
from .sweeper import Sweeper

log = logging.getLogger(__name__)

_TICK, _TICK_WHILE_STARTING = 0.5, 0.25
"""Seconds between two looks at things that wake no wait; the shorter one while processes or threads are started."""
_SWEEP = 1.0
"""Seconds for the looks that find nothing left of a driver, before the grace of its executors begins."""
_SELDOM = 5.0
"""Seconds between two looks of the watching thread: the main thread waits for the deadline itself."""
_PID_1 = (
    "this driver is pid 1 of its container, and pid 1 cannot be killed from inside: start it by spark-lease run or "
    "submit, by docker run --init, or under tini"
)


class Keeper:
    """Keeps one lease of one driver. Implements `Work`: the driver's guarded work."""

    def __init__(
        self,
        channel: Channel,
        order: Mapping[str, Any],
        *,
        pid: int,
        init: Init | None = None,
        interrupted_by: Callable[[], int] = lambda: 0,
    ) -> None:
        """`pid` is the driver. `init`: the driver is contained, this process is its front door, and nothing is released
        before everything inside has ended. `interrupted_by`: the signal that ends the driver; 0 if none does."""
        logging.getLogger("spark_lease").setLevel(order["log_level"])
        self._channel, self._clock = channel, BootClock()
        self._config = config = Config(**order["config"])
        self._announces, self._interrupted_by = bool(order.get("announces")), interrupted_by
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        mapped = f"spark_lease-{os.urandom(8).hex()}"
        self._mapping = new_mapping(mapped)
        self._deadline = Enforced(config, contained=bool(init), shared=self._mapping, on_lose=self._wake)
        self._driver = self._driver_of(pid, init, order["mark"], mapped)
        level, why = self._deadline.protection, self._deadline.why
        if pid == 1:
            level, why = Protection.THREAD, _PID_1
        holder = order["holder"] or new_holder(config.holder)
        channel.send({"ready": level, "why": why, "holder": holder})
        if hidden := self._driver.hidden:
            log.warning("%s: %s: after a crash a standby has to wait until the lease runs out", config.name, hidden)
        self.lease = open_contender(
            config,
            self._clock,
            holder=holder,
            protection=level,
            published=self._deadline,
            on_renewal=self._tell_renewal,
            stands_still=self._stands_still,
        )
        self._keepalive = Keepalive(
            self.lease, config, clock=self._clock, on_lost=lambda lost: self._wake(), watch_period=_SELDOM
        )
        self._talk = Conversation(
            channel,
            config,
            self._clock,
            lease=self.lease,
            keepalive=self._keepalive,
            driver=self._driver,
            deadline=self._deadline,
        )
        self._end_hold = functools.partial(end_hold, self.lease, self._keepalive, self, clock=self._clock)
        self._begun: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._dead = self._said_why = self._said_blind = False
        self._next_tick = 0.0

    def _driver_of(self, pid: int, init: Init | None, mark: str, mapped: str) -> Driver | ContainedDriver:
        """Call it before anything here has threads: the sweeper is a fork."""
        config, clock, kill_pipe = self._config, self._clock, self._deadline.kill_pipe
        if init:
            return ContainedDriver(pid, config, init=init, clock=clock)
        is_killed = kill_pipe is not None and config.on_lost == "exit"
        sweeper = Sweeper(mark, mapped, config.name) if is_killed else None
        return Driver(pid, config, mark=mark, mapped=mapped, kill_pipe=kill_pipe, clock=clock, sweeper=sweeper)

    @property
    def outcome(self) -> Mapping[str, Any]:
        return self._talk.outcome

    def run(self) -> None:
        talk = self._talk
        while not (talk.wanted or self._dead or talk.has_stopped):
            self._attend(math.inf)
        if not talk.wanted or not self._acquire():
            return
        while not (talk.has_stopped or self._dead or talk.finished or talk.left_behind) and self.lease.loss() is None:
            self._attend(math.inf)
        if talk.left_behind:
            self._see_out_what_is_left_behind(talk.left_behind)
        elif talk.unwanted:
            abandon(self.lease, self._keepalive)
        elif talk.finished:  # the driver has done its work: the last process inside has to end before the release
            self._end_hold(stop_budget=self._config.stop_budget, dying=math.inf)
        elif self._dead and self.lease.loss() is None:
            self._hand_over()
        elif not talk.has_stopped:
            self._see_demotion()

    def _acquire(self) -> bool:
        """True once the driver has been told of its grant. Else no work has begun, and a late grant runs out."""
        acquiring = threading.Thread(target=self._begin, name="acquire", daemon=True)
        acquiring.start()
        self._driver.look_ahead()
        while self._begun.empty() and not (self._dead or self._talk.has_stopped):
            self._attend(math.inf)
        if self._begun.empty():  # the driver ended, or no longer wants the lease
            self._end_a_dead_standby()
            self._talk.unwanted = True
            self.lease.close()
            acquiring.join(2 * self._config.attempt_timeout)
            if not self._begun.empty() and self._begun.get() is None:
                abandon(self.lease, self._keepalive)  # granted all the same, and the driver was not told
            return False
        if error := self._begun.get():
            self._talk.stop_guarding()
            self._channel.tell(refusal(error))
            return False
        if self._talk.has_stopped or self._dead:  # the driver never learned of the grant
            self._end_a_dead_standby()
            abandon(self.lease, self._keepalive)
            return False
        self._talk.granted = True
        if not self._talk.has_begun:
            self._driver.begin()  # before the driver learns of the grant and begins its work
        python = self._driver.pipe_end_to(self._driver.python.pid) if self._config.on_lost == "exit" else None
        self._channel.tell({"granted": self.lease.epoch}, [self._mapping, *([python.fd] if python else [])])
        return True

    def close(self) -> None:
        """This process ends by itself: dismiss the sweeper, unless the driver has crashed and a process lives on."""
        if self._talk.has_stopped or not self._dead or self._driver.is_gone(self._clock.now()):
            self._driver.close()

    def wait_until_over(self, until: float) -> bool:
        # Once the lease is lost, it is enough that nothing of the driver is left here: before a release then,
        # `_is_over_everywhere` asks for more. It is also enough if the driver has said that Spark is over.
        is_over = self._driver.is_gone if self._talk.finished or self.lease.loss() else self._driver.is_over
        while not (over := self._talk.has_stopped or is_over(until)) and self._clock.now() < until:
            if self._dead and not self._talk.kernel_disarmed:
                self._driver.kill()  # no driver is left that could stop it politely
            self._attend(until)
        return over

    def kill(self) -> None:
        if (lost := self.lease.loss()) and not self._said_why:
            self._said_why = True  # the driver may have had no time to say it
            left = "the rest of the driver" if self._config.on_lost == "exit" else "its JVM"
            say(f"spark-lease ERROR {lost}; killing {left}")
        self._driver.kill()

    def _begin(self) -> None:
        """Take the lease. On its own thread, because the store may hang and the driver may end meanwhile."""
        error: Exception | None = None
        self.lease.prepare()
        try:
            begin_hold(self.lease, self._keepalive, still_wanted=self._still_wanted)
        except BaseException as problem:  # any error: the driver must be told, and raises it
            error = problem if isinstance(problem, Exception) else StoreError("keeper", repr(problem))
            abandon(self.lease, self._keepalive)
        self._begun.put(error)
        self._wake()
        if error is None:
            self._channel.tell({"at_hand": self.lease.at_hand()})

    def _end_a_dead_standby(self) -> None:
        """Kill the Spark of a warm standby whose driver has died."""
        if self._talk.unwanted or not self._talk.has_begun:  # the driver lives and has said so; or it was a cold one
            return
        end, python = self._clock.now() + _SWEEP, self._driver.python
        while not python.ended and self._clock.now() < end:  # a dying process closes its channel first
            self._clock.wait(threading.Event(), AT_ONCE)
        if python.ended:
            self._driver.kill()
            self._driver.is_gone(self._clock.now() + _SWEEP)

    def _still_wanted(self) -> None:
        if self._talk.unwanted:
            raise SparkLeaseError("the driver does not wait for it any more")

    def _hand_over(self) -> None:
        """The driver is dead, or its JVM is and Python did not answer: kill what is left of it, then release."""
        jvm = self._driver.jvm
        first = "JVM" if jvm and self._talk.has_asked_about(jvm.pid) else "driver"
        self._driver.kill()
        self._end_server_session()
        signalled = self._interrupted_by()
        self.lease.ends_as(*(INTERRUPTED, signal_name(signalled)) if signalled else (CRASHED, f"its {first} ended"))
        early = self._driver.early_release
        dying = self._config.lease_duration + early.grace if early.is_provable else 0.0
        self._end_hold(stop_budget=0.0, dying=dying, is_proven=self._is_over_everywhere)
        self._announce(crashed(self.lease))

    def _stands_still(self) -> str:
        if not self._talk.is_open and not self._dead:
            return f"the driver (pid {self._driver.python.pid}) has closed its channel to the keeper, by exec maybe"
        return stopped(self._driver.python, self._driver.jvm)

    def _see_demotion(self) -> None:
        """The lease is lost: the driver ends its work itself, or the keeper kills it, or the kernel does."""
        lost, now, stop_by = self.lease.lost_error(), self._clock.now(), self.lease.stop_by()
        # A driver that was fenced has told us, and ends itself at once.
        patience = 2 * LAST_WORDS if lost.reason is Loss.FENCED else 0.0
        self._deadline.end_by(max(stop_by, now + patience))
        self._channel.tell({"lost": [lost.reason, lost.detail], "stop_by": stop_by})
        self.wait_until_over(now + max(patience, AT_ONCE))
        self._end_hold(stop_budget=math.inf, dying=math.inf, is_proven=self._is_over_everywhere)
        self._end_server_session()
        self._announce(refused(self._config, lost, self.lease))

    def _end_server_session(self) -> None:
        if self._talk.session and self._driver.python.ended:  # a driver that lives on ends its session itself
            end_server_session(self._config.name, self._talk.session)

    def _announce(self, outcome: Outcome) -> None:
        """Write the outcome file of `submit`, unless the driver or a later run wrote it."""
        there = announced_epoch(self._config.outcome_file)
        if self._announces and (there == NOT_ANNOUNCED or 0 < there < self.lease.epoch):
            announce(outcome, self._config.outcome_file)

    def _is_over_everywhere(self) -> bool:
        """True if the work has ended on other machines too: the driver said so, or its end proves it. Call it once
        nothing is left here."""
        if self._talk.has_stopped:  # this lease no longer guards what lives on there
            return self._talk.settled
        end = self._clock.now() + self._driver.early_release.grace + _SWEEP
        while not (over := self._talk.settled or (self._driver.python.ended and self._driver.is_over(end))):
            if not self._driver.early_release.is_provable or self._clock.now() >= end:
                break
            self._attend(end)
        return over

    def _attend(self, until: float) -> None:
        """Wait until `until` for something to happen, and react to it."""
        python, jvm = self._driver.python, self._driver.jvm
        watched = {self._woken, *(each.fileno() for each in self._driver.ends() if not each.ended)}
        if self._talk.is_open:
            watched.add(self._channel.fileno())
        if jvm and not self._talk.has_asked_about(jvm.pid) and not (python.ended and jvm.ended):
            watched.add(jvm.fileno())
        remaining = self.lease.remaining() or math.inf
        end = min(until, self._next_tick, self._talk.verdict_by, self._clock.now() + remaining)
        if -1 in watched:  # no pidfds here
            watched.remove(-1)
            end = min(end, self._clock.now() + AT_ONCE)
        ready = readable(watched, max(end - self._clock.now(), 0.0))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._talk.is_open and self._channel.fileno() in ready:
            self._talk.listen()
        if python.ended:
            self._dead = True
        elif jvm and jvm is self._driver.jvm and not self._talk.has_asked_about(jvm.pid) and jvm.ended:
            self._talk.ask_about(jvm.pid)
        now = self._clock.now()
        if now >= self._next_tick:
            if self._talk.has_begun and not self._talk.left_behind:
                self._look_for_children()
            self._next_tick = now + (_TICK_WHILE_STARTING if self._driver.may_have_started else _TICK)
        if now >= self._talk.verdict_by:
            self._talk.verdict_by = math.inf
            self._jvm_is_lost()

    def _see_out_what_is_left_behind(self, left: LeftBehind) -> None:
        """Wait for the end of `left`, then release. Kill it when Python has ended, or the lease is about to run out."""
        in_time = self._clock.now() + max(self.lease.remaining() - _SWEEP, self.lease.remaining() / 2)
        while left.alive() and self._clock.now() < self.lease.stop_by():
            is_killed = self._dead or self._clock.now() >= in_time
            if is_killed:
                left.kill()
            self._attend(self._clock.now() + (AT_ONCE if is_killed else _TICK_WHILE_STARTING))
        if alive := left.alive():  # the kernel and the sweeper stay armed
            still = f"{alive[0].name} (pid {alive[0].pid}), which the block has left running, does not end"
            say(f"spark-lease ERROR {self._config.name}: not released, it runs out: {still}")
            return
        self._talk.stop_guarding()
        if self.lease.loss() is None:
            self.lease.give_back()

    def _look_for_children(self) -> None:
        try:
            self._talk.tie_children()
        except OSError as error:  # no free descriptor, for example: the next tick may find what this one missed
            if not self._said_blind:
                self._said_blind = True
                log.warning("%s: cannot look for what the driver starts, trying again: %s", self._config.name, error)
        if self.lease.protection is not Protection.NONE and (strangers := self._driver.out_of_reach()):
            self.lease.protection = Protection.NONE
            self._channel.tell({"unprotected": describe(strangers)})

    def _jvm_is_lost(self) -> None:
        if self._config.on_lost == "exit":
            self._dead = True  # as good as dead: it is killed now
        elif jvm := self._driver.jvm:
            self.lease.lose(Loss.SPARK_GONE, f"the JVM (pid {jvm.pid}) ended")

    def _tell_renewal(self, took: float, confirmed: bool) -> None:
        self._channel.tell({"renewal": [took, confirmed]})

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")
