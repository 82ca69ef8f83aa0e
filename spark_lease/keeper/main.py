"""The keeper: a small process beside a driver, which takes, renews and gives back its lease.

It runs the same policy as threads inside the driver would, where no C call holds it up and nothing of the user's runs.
It tells the driver of a loss, and kills after `stop_budget` what did not end. And it arms the kernel: a timer ends this
process at the instant that only a renewal moves, and with it, by the kill pipe, all of the driver, even if all of them
are frozen by then. The other way round it watches the driver: once that is dead and nothing is left of it, it hands
over.

```
driver ── order ─────────────→ keeper     acquires
       ←── granted, deadline ──           renews, watches
       ── JVM, master ───────→            watches that as well
       ←── lost ──────────────            waits until stop_by, then kills
       ── stop, release ─────→            gives back
```
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import math
import os
import queue
import select
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import BootClock
from ..config.settings import Config
from ..election.journal_entries import CRASHED, FAILED, INTERRUPTED
from ..election.keepalive import Keepalive
from ..election.lifecycle import abandon, begin_hold, end_hold
from ..election.record import Protection, new_holder
from ..errors import Loss, SparkLeaseError, StoreError
from ..holds import open_contender
from ..outcome import NOT_ANNOUNCED, Outcome, announce, announced_epoch, crashed, refused
from ..system.containment import Init
from .channel import Channel, Closed
from .contained import ContainedDriver
from .deadline import new_mapping
from .driver import Driver
from .enforced import Enforced
from .guarded_processes import describe
from .left_behind import LeftBehind
from .messages import ToDriver, refusal, say_on_stderr
from .sweeper import Sweeper
from .ties import Ties

log = logging.getLogger(__name__)

TICK, TICK_WHILE_STARTING = 0.5, 0.25
"""Seconds between two looks at what cannot be waited for; the shorter one while processes or threads are started."""
LAST_WORDS = 0.25
"""Seconds that a driver gets to say why it ends, where nothing of it can be stopped politely any more."""
AT_ONCE = 0.05
"""Seconds that it gets where another may be master already."""
_FIRST_ORDER = 60.0
_SWEEP = 1.0
"""Seconds for the looks that find nothing left of a driver, before the grace of its executors begins."""
_PID_1 = (
    "this driver is pid 1 of its container, which the kernel lets nothing inside kill: start it by spark-lease run or "
    "submit, by docker run --init, or under tini"
)
_SELDOM = 5.0
"""Seconds between two looks of the watching thread: the main one waits for the deadline itself."""


def main(fd: int) -> None:
    """Serve the driver at the other end of the socket `fd`, until its lease is given back or it has ended."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A SIGTERM to all processes of a service must not end the driver by force, as our own end would.
        signal.signal(number, signal.SIG_IGN)
    if sys.stderr:  # the driver's
        faulthandler.enable()
    channel = Channel.inherited(fd)
    logging.basicConfig(level=logging.DEBUG, handlers=[ToDriver(channel)])
    with contextlib.suppress(Closed, ProcessLookupError):  # the driver ended before it had a lease
        received = channel.receive(_FIRST_ORDER)
        if received:
            try:
                keeper = Keeper(channel, received[0], pid=received[0]["driver"])
                keeper.run()
                keeper.close()
            except SparkLeaseError as error:
                channel.send(refusal(error))
            os._exit(0)  # nothing is left to be tidied, and our end may be waited for


class Keeper:
    """One lease of one driver. Implements `Work`: what the driver does."""

    def __init__(self, channel: Channel, order: Mapping[str, Any], *, pid: int, init: Init | None = None) -> None:
        """`pid` is the driver. `init`: it is contained, this process is its front door, and nothing is released before
        everything that was started in it has ended."""
        logging.getLogger("spark_lease").setLevel(order["log_level"])
        self._channel, self._clock, self._init = channel, BootClock(), init
        self._config = config = Config(**order["config"])
        self._announces = bool(order.get("announces"))
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        mapped = f"spark_lease-{os.urandom(8).hex()}"
        self._mapping = new_mapping(mapped)
        self._deadline = Enforced(config, contained=bool(init), shared=self._mapping, on_lose=self._wake)
        level, why = self._deadline.protection, self._deadline.why
        if pid == 1:
            level, why = Protection.THREAD, _PID_1
        holder = order["holder"] or new_holder(config.holder)
        self._driver: Driver | ContainedDriver
        # First, because it is a fork: nothing has threads yet.
        is_swept = init is None and self._deadline.kill_pipe is not None and config.on_lost == "exit"
        sweeper = Sweeper(order["mark"], mapped, config.name) if is_swept else None
        if init:
            self._driver = ContainedDriver(pid, init, release_on_death=config.release_on_death, clock=self._clock)
        else:
            self._driver = Driver(
                pid,
                mark=order["mark"],
                mapped=mapped,
                kill_pipe=self._deadline.kill_pipe,
                clock=self._clock,
                on_lost_exit=config.on_lost == "exit",
                release_on_death=config.release_on_death,
                sweeper=sweeper,
            )
        channel.send({"ready": level, "why": why, "holder": holder})
        if self._driver.hidden:
            log.warning(
                "%s: %s: after a crash a standby has to wait until the lease runs out", config.name, self._driver.hidden
            )
        self.lease = self._lease = open_contender(
            config,
            self._clock,
            holder=holder,
            protection=level,
            published=self._deadline,
            on_renewal=self._tell_renewal,
            stands_still=self._stands_still,
        )
        self._keepalive = Keepalive(
            self._lease, config, clock=self._clock, on_lost=lambda lost: self._wake(), watch_period=_SELDOM
        )
        self._begun: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._ties = Ties(self._driver, self._tell, lease=config.name)
        self._listening = True
        self._wanted = self._unwanted = self._stopped = self._left = self._dead = self._kernel_disarmed = False
        self._settled = self._said_why = False
        self._granted = self._finished = self._has_begun = False
        self._left_behind: LeftBehind | None = None
        self.outcome: Mapping[str, Any] = {}
        """What the driver has said of its end; empty before it has."""
        self._told_of, self._verdict_by = 0, math.inf
        self._next_tick = 0.0

    def run(self) -> None:
        while not (self._wanted or self._dead or self._left):
            self._attend(math.inf)
        if not self._wanted:
            return
        acquiring = threading.Thread(target=self._begin, name="acquire", daemon=True)
        acquiring.start()
        self._driver.look_ahead()
        while self._begun.empty() and not (self._dead or self._left):
            self._attend(math.inf)
        if self._begun.empty():  # the driver ended, or does not want it any more
            self._end_a_dead_standby()
            self._unwanted = True
            self._lease.close()
            acquiring.join(2 * self._config.attempt_timeout)
            if not self._begun.empty() and self._begun.get() is None:
                abandon(self._lease, self._keepalive)  # granted all the same, and the driver was not told
            return
        if error := self._begun.get():
            self._let_go()
            self._tell(refusal(error))
            return
        if self._left or self._dead:  # it never heard of the grant: nothing has begun
            self._end_a_dead_standby()
            abandon(self._lease, self._keepalive)
            return
        self._granted = True
        python = self._driver.pipe_end_to(self._driver.python.pid) if self._config.on_lost == "exit" else None
        self._tell({"granted": self._lease.epoch}, [self._mapping, *([python.fd] if python else [])])
        while not (self._left or self._dead or self._finished or self._left_behind) and self._lease.loss() is None:
            self._attend(math.inf)
        if self._left_behind:
            self._see_out_what_is_left_behind(self._left_behind)
        elif self._unwanted:
            abandon(self._lease, self._keepalive)
        elif self._finished:
            self._see_out()
        elif self._dead and self._lease.loss() is None:
            self._hand_over()
        elif not self._left:
            self._see_demotion()

    def close(self) -> None:
        """This process ends by itself: nothing is to be swept, unless the driver has crashed and something lives on."""
        if self._left or not self._dead or self._driver.is_gone(self._clock.now()):
            self._driver.close()

    def wait_until_over(self, until: float) -> bool:
        # Once it is lost, it is enough that nothing of it is left here: what is released then is asked for more, by
        # `_is_over_everywhere`. So it is where the driver has said that Spark is over.
        is_over = self._driver.is_gone if self._finished or self._lease.loss() else self._driver.is_over
        while not (over := self._left or is_over(until)) and self._clock.now() < until:
            if self._dead and not self._kernel_disarmed:
                self._driver.kill()  # no driver is left that could stop it politely
            self._attend(until)
        return over

    def kill(self) -> None:
        if (lost := self._lease.loss()) and not self._said_why:
            self._said_why = True  # which it may not have come to itself
            say_on_stderr(f"spark-lease ERROR {lost}; killing what is left of the driver")
        self._driver.kill()

    def _begin(self) -> None:
        """On a thread of its own, because the store may hang and the driver end meanwhile."""
        error: Exception | None = None
        self._lease.prepare()
        try:
            begin_hold(self._lease, self._keepalive, still_wanted=self._still_wanted)
        except BaseException as problem:  # whatever it is: the driver has to be told, and raises it
            error = problem if isinstance(problem, Exception) else StoreError("keeper", repr(problem))
            abandon(self._lease, self._keepalive)
        self._begun.put(error)
        self._wake()

    def _end_a_dead_standby(self) -> None:
        """Kill the Spark of a warm standby whose driver has died."""
        if self._unwanted or not self._has_begun:  # the driver lives, and has said so; or it was a cold one
            return
        end, python = self._clock.now() + _SWEEP, self._driver.python
        while not python.ended and self._clock.now() < end:  # its channel was closed first
            self._clock.wait(threading.Event(), AT_ONCE)
        if python.ended:
            self._driver.kill()
            self._driver.is_gone(self._clock.now() + _SWEEP)

    def _still_wanted(self) -> None:
        if self._unwanted:
            raise SparkLeaseError("the driver does not wait for it any more")

    def _hand_over(self) -> None:
        """The driver is dead, or its JVM is and it did not answer: end what is left of it, then release."""
        what = "JVM" if self._told_of and self._driver.jvm else "driver"  # which of them ended first
        self._driver.kill()
        self._lease.ends_as(CRASHED, f"its {what} ended")
        early = self._driver.early_release
        dying = self._config.lease_duration + early.grace if early.is_provable else 0.0
        end_hold(
            self._lease,
            self._keepalive,
            self,
            clock=self._clock,
            stop_budget=0.0,
            dying=dying,
            is_proven=self._is_over_everywhere,
        )
        self._announce(crashed(self._lease))

    def _stands_still(self) -> str:
        if not self._listening and not self._dead:
            return f"the driver (pid {self._driver.python.pid}) has closed its channel to the keeper, by exec maybe"
        return self._driver.stands_still()

    def _see_out(self) -> None:
        """The driver has done its work: wait until the last process inside has ended, then release."""
        budget = self._config.stop_budget
        end_hold(self._lease, self._keepalive, self, clock=self._clock, stop_budget=budget, dying=math.inf)

    def _see_demotion(self) -> None:
        """The lease is lost: the driver ends its work itself, or is killed, or the kernel does that."""
        lost, now, stop_by = self._lease.lost_error(), self._clock.now(), self._lease.stop_by()
        # A driver that was fenced has told us, and ends itself at once.
        patience = 2 * LAST_WORDS if lost.reason is Loss.FENCED else 0.0
        self._deadline.end_by(max(stop_by, now + patience))
        self._tell({"lost": [lost.reason, lost.detail], "stop_by": stop_by})
        self.wait_until_over(now + max(patience, AT_ONCE))
        end_hold(
            self._lease,
            self._keepalive,
            self,
            clock=self._clock,
            stop_budget=math.inf,
            dying=math.inf,
            is_proven=self._is_over_everywhere,
        )
        self._announce(refused(self._config, lost, self._lease))

    def _announce(self, outcome: Outcome) -> None:
        """Write the outcome file of `submit`, unless the driver did, or a run after this one."""
        there = announced_epoch(self._config.outcome_file)
        if self._announces and (there == NOT_ANNOUNCED or 0 < there < self._lease.epoch):
            announce(outcome, self._config.outcome_file)

    def _is_over_everywhere(self) -> bool:
        """To be asked when nothing of it is left to be ended here: what the driver said, or what its end proves."""
        if self._left:  # what lives on there is not ours any more
            return self._settled
        end = self._clock.now() + self._driver.early_release.grace + _SWEEP
        while not (over := self._settled or (self._driver.python.ended and self._driver.is_over(end))):
            if not self._driver.early_release.is_provable or self._clock.now() >= end:
                break
            self._attend(end)
        return over

    def _attend(self, until: float) -> None:
        """Wait until `until` for something to happen, and react to it."""
        python, jvm = self._driver.python, self._driver.jvm
        watched: dict[int, Any] = {self._woken: None}
        if self._listening:
            watched[self._channel.fileno()] = None
        watched |= {each.fileno(): None for each in self._driver.ends() if not each.ended}
        if jvm and jvm.pid != self._told_of and not (python.ended and jvm.ended):
            watched[jvm.fileno()] = None
        end = min(until, self._next_tick, self._verdict_by, self._clock.now() + (self._lease.remaining() or math.inf))
        if watched.pop(-1, self) is None:  # no pidfds here
            end = min(end, self._clock.now() + AT_ONCE)
        ready, _, _ = select.select(list(watched), [], [], max(end - self._clock.now(), 0.0))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._listening and self._channel.fileno() in ready:
            self._listen()
        if python.ended:
            self._dead = True
        elif jvm and jvm is self._driver.jvm and jvm.pid != self._told_of and jvm.ended:
            self._ask_about(jvm.pid)
        now = self._clock.now()
        if now >= self._next_tick:
            if self._has_begun and not self._left_behind:
                self._look_for_children()
            self._next_tick = now + (TICK_WHILE_STARTING if self._driver.may_have_started else TICK)
        if now >= self._verdict_by:
            self._verdict_by = math.inf
            self._jvm_is_lost()

    def _listen(self) -> None:
        try:
            received = self._channel.receive(0.0)
        except Closed:
            # Which does not prove its end: that is what the pidfd does. But nothing will ever hear of a grant. And what
            # lives on after one is no driver any more, by exec say: the lease is not renewed for it, and runs out.
            self._listening = False
            self._left |= not self._granted
            return
        if received is None:
            return
        message, files = received
        for fd in files:
            self._driver.hold(message.get("kill_pipe") or message["jvm"], fd)
        match message:
            case {"order": order}:
                self._obey(order, message)
            case {"jvm": pid, "marked": marked}:
                self._told_of, self._verdict_by = 0, math.inf
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile: Python will notice as well
                    self._driver.attach_jvm(pid, marked=marked)
                    self._ties.tie_jvm(pid)
                if not self._has_begun:
                    self._has_begun = True
                    self._driver.begin()
                    self._tell({"begun": True})
            case {"local": local, "level": level}:
                self._driver.attach_master(local=local)
                if self._lease.protection is not Protection.NONE:
                    self._lease.protection = Protection(level)
            case {"stands_by": state}:
                self._lease.stands_by(state)
            case {"expected": pid} if pid == self._told_of:
                self._verdict_by = math.inf
                self._driver.attach_jvm(0, marked=True)
            case {"lost": [reason, detail]}:
                self._lease.lose(Loss(reason), detail)
            case {"outcome": outcome}:
                self.outcome = outcome
            case {"ask": "note" | "noted" | "claim_databases" as what, "arguments": arguments, "number": number}:
                threading.Thread(target=self._look_up, args=(what, arguments, number), daemon=True).start()

    def _obey(self, order: str, message: dict[str, Any]) -> None:
        match order:
            case "acquire":
                self._wanted = True
            case "stop":
                self._stop_renewals()
            case "release":
                self._release(*message["ended"])
            case "settle":
                self._settle(left=message["left"])
            case "abandon" if not self._left_behind:  # nothing has begun, whether it heard of a grant or not
                self._unwanted = True
                self._let_go()
            case "leave" if not (self._left_behind or (self._init and self._granted)):  # else what it started may run
                self._let_go()

    def _stop_renewals(self) -> None:
        self._stopped = True
        if self._init:  # it is renewed until everything has ended
            self._tell({"stopped": True})
        else:  # not here: a request that hangs is waited for, and meanwhile something may have to be killed
            threading.Thread(target=lambda: self._tell({"stopped": self._keepalive.stop()}), daemon=True).start()

    def _release(self, ended: str, detail: str) -> None:
        self._lease.ends_as(ended, detail)
        if self._init:  # once everything inside has ended
            self._finished = self._kernel_disarmed = True
            self._tell({"released": False})
            return
        if self._has_begun and self._must_outlast_the_block(has_failed=ended in (CRASHED, FAILED, INTERRUPTED)):
            self._tell({"released": False, "outlasts": True})
            return
        # Published as lost before anything else: frozen here, the lease may run out without the kernel.
        self._lease.lose(Loss.RELEASED)
        self._let_go()
        answer: dict[str, Any] = {"released": False}
        try:
            answer["released"] = self._lease.release()
        except StoreError as error:
            answer["problem"] = [error.where, error.problem]
        self._tell(answer)

    def _must_outlast_the_block(self, *, has_failed: bool) -> bool:
        """Whether the lease is kept although the block was left, because a process that it started still runs.

        Not if it succeeded: then it may have started one that is to live on. Nor where a loss would not kill it.
        """
        left = self._driver.left_behind(thoroughly=has_failed)
        if left:  # it may just be ending: the block has killed it
            self._clock.wait(threading.Event(), AT_ONCE)
        if left or has_failed:  # twice none: a process shows no mark while it is becoming another program
            left = self._driver.left_behind(thoroughly=has_failed)
        if not left:
            return False
        outlasts = has_failed and self._config.on_lost == "exit"
        if outlasts:
            named = {(each.pid, each.started) for each in left}
            self._left_behind = LeftBehind(named)
            self._driver.untie_all_but(named)
        then = "the lease is kept until they end, or the driver does, but is not renewed any more"
        then = then if outlasts else "no lease guards them now; wait for their end inside the block"
        names = ", ".join(f"{each.name} (pid {each.pid})" for each in left[:3])
        log.warning("%s: the block has left processes running: %s: %s", self._config.name, names, then)
        return outlasts

    def _see_out_what_is_left_behind(self, left: LeftBehind) -> None:
        """Wait for its end, then release. It is killed when Python has ended, or when the lease is about to run out."""
        in_time = self._clock.now() + max(self._lease.remaining() - _SWEEP, self._lease.remaining() / 2)
        while left.alive() and self._clock.now() < self._lease.stop_by():
            is_killed = self._dead or self._clock.now() >= in_time
            if is_killed:
                left.kill()
            self._attend(self._clock.now() + (AT_ONCE if is_killed else TICK_WHILE_STARTING))
        if alive := left.alive():  # the kernel and the sweeper go on
            still = f"{alive[0].name} (pid {alive[0].pid}), which the block has left running, does not end"
            say_on_stderr(f"spark-lease ERROR {self._config.name}: not released, it runs out: {still}")
            return
        self._let_go()
        if self._lease.loss() is None:
            self._lease.give_back()

    def _settle(self, *, left: bool) -> None:
        self._settled = left
        if self._config.on_lost == "exit":
            # Spark is over, Python ends: its JVM may end by itself, spark-submit with Python's exit code.
            self._kernel_disarmed = True
            self._driver.disarm_kernel()
            self._tell({"settled": True})
        else:
            self._let_go()

    def _look_up(self, what: str, arguments: Sequence[Any], number: int) -> None:
        answer: dict[str, Any]
        try:
            answer = {"found": getattr(self._lease, what)(*arguments)}
        except Exception as error:  # whatever it is, the driver waits for an answer
            answer = refusal(error)
        self._tell({f"answer {number}": answer})

    def _let_go(self) -> None:
        self._left = True
        self._deadline.disarm()
        self._driver.disarm()

    def _look_for_children(self) -> None:
        self._ties.look()
        if self._lease.protection is not Protection.NONE and (strangers := self._driver.out_of_reach()):
            self._lease.protection = Protection.NONE
            self._tell({"unprotected": describe(strangers)})

    def _ask_about(self, pid: int) -> None:
        """The JVM has ended. That is a crash, unless Python says that it wanted it so, or waits for the lease still."""
        if not self._granted:
            self._driver.attach_jvm(0, marked=True)
            return
        self._told_of = pid
        if not self._stopped and self._lease.loss() is None:
            heard = self._tell({"gone": pid})
            self._verdict_by = self._clock.now() + (2 * LAST_WORDS if heard else 0.0)

    def _jvm_is_lost(self) -> None:
        if self._config.on_lost == "exit":
            self._dead = True  # as good as: it is killed now
        else:
            self._lease.lose(Loss.SPARK_GONE, f"the JVM (pid {self._told_of}) ended")

    def _tell(self, message: Mapping[str, Any], files: list[int] | None = None) -> bool:
        with contextlib.suppress(Closed):  # frozen, or dead: it reads the deadline, or nothing any more
            self._channel.send(message, files or [])
            return True
        return False

    def _tell_renewal(self, took: float, done: bool) -> None:
        self._tell({"renewal": [took, done]})

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"x")
