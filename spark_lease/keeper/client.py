"""The driver's side of a lease that a keeper keeps: its view of the lease, and the messages both ways."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..clock import Clock
from ..config.settings import Config
from ..election.contender import OnRenewal
from ..election.hold import OwnDeadline
from ..election.keepalive import LATE, WATCH_PERIOD
from ..election.record import Protection
from ..errors import ConfigError, LeaseLost, Loss, StoreError
from ..fencing.delta.tables import KIND as DELTA_TABLES
from ..holds import GuardedHold
from ..system.kernel import KillPipe
from ..system.processes import look
from .channel import Closed
from .deadline import SharedDeadline
from .messages import AT_ONCE, LAST_WORDS, LogThread, refused
from .spawn import Started

log = logging.getLogger(__name__)

_LOOK_AGAIN = 0.5
"""Seconds after which a standby checks again whether it can still become master, and how its Spark is."""
_SELDOM, _OF_WHAT_IS_LEFT = 0.4, 1 / 30
"""The listening thread looks again after so many seconds, or after this part of the time to the deadline if that is
less. After a suspend it looks late by as much: poll(2) does not count the time of the suspend."""
_LINGER = 2.0
"""Seconds that the keeper may take to end, once it has nothing left to do."""
_open: weakref.WeakSet[KeeperHold] = weakref.WeakSet()


class Reporter(Protocol):
    """The object that the listening thread calls."""

    on_unprotected: Callable[[str], None]

    def look(self) -> bool: ...

    def judge_the_end_of(self, jvm: int) -> None: ...


class KeeperHold(GuardedHold):
    """A hold that the keeper `started` takes, renews and releases; `check()` reads its deadline in shared memory.

    A thread listens to the keeper all the time. A forked child of this process may `check()`, and nothing else.
    """

    def __init__(self, started: Started, config: Config, *, clock: Clock, on_renewal: OnRenewal) -> None:
        self._on_renewal = on_renewal
        super().__init__(config, holder=started.holder, clock=clock, deadline=OwnDeadline(), protection=started.level)
        self._started, self._pid = started, os.getpid()
        self._kill_pipe = KillPipe() if self.protection is Protection.KERNEL else None
        self._files: dict[int, Sequence[int]] = {}
        self._tied = {self._pid}
        self._received: dict[str, Any] = {}
        self._asked = itertools.count()
        self._changed = threading.Condition()
        self._stop_by = 0.0
        self._own_turn = max(AT_ONCE, config.kill_budget)
        self._closing = self._ended = self._settled = self._taken = False
        self.log = LogThread(f"log of {self.name}'s keeper")
        self._waker = open(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+b", buffering=0)  # noqa: SIM115
        self.reporter: Reporter | None = None
        _open.add(self)
        self._listener = threading.Thread(target=self._listen, name=f"keeper of {self.name}", daemon=True)
        self._listener.start()

    @property
    def is_kept_by_another(self) -> bool:
        # A stopped keeper kills nothing. The kernel kills what is tied to it: not what the work itself has started.
        keeper = look(self._started.process.pid) if self._started.process else None
        return not self._ended and keeper is not None and keeper.state not in "Tt"

    @property
    def kept_by(self) -> int:
        return self._started.process.pid if self._started.process else self._pid

    def acquire(self, *, still_wanted: Callable[[], None] = lambda: None) -> int:
        # Only now: a driver that was interrupted before this has no lease, and its keeper takes none.
        self.tell({"order": "acquire"})
        while self.answer("granted", _LOOK_AGAIN, "refused") is None:
            still_wanted()
            has_ended = self._ended  # read first: the keeper's last messages come before its end
            if self.answer("refused", 0.0):
                raise refused(self._received)
            if has_ended:
                raise StoreError(self.name, "the keeper process ended before it acquired the lease")
        self._taken = True
        return self._epoch

    def prepare(self) -> None:
        """Do nothing: the keeper prepares itself."""

    def stands_by(self, state: str) -> None:
        self.tell({"stands_by": state})

    def stop_by(self) -> float:
        if self._lost and self._lost[0][0] in (Loss.ORPHANED, Loss.SPARK_GONE):
            return self._lost[0][2] + LAST_WORDS  # nothing is left to stop politely, and a standby waits
        if self._lost and not self._stop_by and self._deadline.instant == 0.0:
            return self._lost[0][2] + self._config.stop_budget - self._own_turn  # the keeper has not sent it yet
        return (self._stop_by or super().stop_by()) - self._own_turn  # then the keeper kills us without a word

    def lost_error(self) -> LeaseLost:
        listening = threading.current_thread() is self._listener or self._is_forked
        if self._acquired and not self._lost and self._deadline.instant == 0.0 and not listening:
            self.answer("lost", WATCH_PERIOD)  # the reason is on its way
        if self._acquired and not self._lost and self._is_forked:
            self.lose(Loss.EXPIRED, f"process {self._pid}, which held it, released it or no longer renews it")
        return super().lost_error()

    def stop(self) -> bool:
        """Stop the renewals of the keeper; False if a request to the store is still under way."""
        if self.loss() is not None:
            return False  # nothing will be released: its last request is not waited for
        if self.answer("stopped", 0.0) is None:
            self.tell({"order": "stop"})
        request = self._config.attempt_timeout * LATE + 2 * WATCH_PERIOD
        return bool(self.answer("stopped", max(request, min(self.remaining(), _LINGER))))

    def report_loss(self, lost: LeaseLost) -> None:
        """Tell the keeper of a loss that was noticed here, so that it stops renewing and reports why the work ended.

        A process that ends itself tells nothing: its end is enough. But inside a namespace its exit code is lost with
        spark-submit's JVM, so the front door must be told that it was fenced."""
        is_fenced_inside = lost.reason is Loss.FENCED and self.protection is Protection.CONTAINED
        if (self._config.on_lost != "exit" or is_fenced_inside) and "lost" not in self._received:
            self.tell({"lost": [lost.reason, lost.detail]})

    def release(self) -> bool:
        self._refuse_in_a_fork()
        may = self.loss() is None and self.answer("released", 0.0) is None and self.stop()
        self.lose(Loss.RELEASED)
        if not may:
            return False
        self.tell({"order": "release", "ended": self._ending})
        released = self._owed_answer("released")
        if problem := self.answer("problem", 0.0):
            raise StoreError(*problem)
        return bool(released)

    def claim_databases(self) -> bool:
        return not self._at_hand("is_unfenced") and bool(self._ask("claim_databases", more=self._config.renew_deadline))

    def noted(self, kind: str) -> dict[str, str]:
        if self._is_forked:
            return super().noted(kind)
        found: dict[str, str] | None = self._at_hand("tables") if self._taken and kind == DELTA_TABLES else None
        return self._ask("noted", kind) if found is None else found

    def note(self, kind: str, key: str, text: str, newest: bool = False) -> str | None:
        if self._is_forked:
            return super().note(kind, key, text, newest)
        return self._ask("note", kind, key, text, newest)  # type: ignore[no-any-return]

    def _at_hand(self, what: str) -> Any:
        """What the keeper looked up at the grant, returned once. None: the keeper must be asked."""
        at_hand = self.answer("at_hand", self._config.attempt_timeout * 3) or {}
        return at_hand.pop(what, None)

    def _ask(self, what: str, *arguments: str | bool, more: float = 0.0) -> Any:
        number = next(self._asked)
        self.tell({"ask": what, "arguments": arguments, "number": number})
        answer = self._owed_answer(f"answer {number}", more)
        if "refused" in answer:
            raise refused(answer)
        return answer["found"]

    def _owed_answer(self, key: str, more: float = 0.0) -> Any:
        answer = self.answer(key, more + self._config.attempt_timeout * 3)
        if answer is None:
            raise StoreError(self.name, "the keeper process does not answer")
        return answer

    def settle(self, *, left: bool = True) -> None:
        if self._settled or not self._taken:
            return
        self._settled = True
        if lost := self.loss():
            self.report_loss(lost)
        self.tell({"order": "settle", "left": left})
        if self._config.on_lost == "exit":
            # Until the kernel is disarmed, our end kills the JVM: spark-submit would end with -9 for our exit code.
            self.answer("settled", self.stop_by() - self._clock.now())

    def close(self, *, lost: bool = False) -> None:
        if self._is_forked or self._closing:
            return
        # This process, or the Spark that it leaves behind, must still end or be killed.
        stays_tied = lost if self._config.on_lost == "exit" else not self._settled
        if self._taken and "released" not in self._received and stays_tied:
            return
        # An interrupted wait may have been granted by now. Only the keeper knows, and it releases the lease.
        self.tell({"order": "leave" if self._taken else "abandon"})
        self._closing = True
        if not self._started.process:  # a front door outlives this process, so its end does not end the listener
            self._wake()
        patience = _LINGER if not self.answer("outlasts", 0.0) else 0.0
        self._listener.join(patience)
        self._started.wait(patience)
        self._wake()  # the socket is closed once no thread waits for it
        self.log.end()
        shared, self._deadline = self._deadline, OwnDeadline()
        if isinstance(shared, SharedDeadline):
            shared.close()
        self.close_descriptors()

    def close_descriptors(self) -> None:
        """Close the descriptors of this hold in this process and send nothing. In a forked child that kills nothing."""
        _open.discard(self)
        self._waker.close()
        if self._started.process:  # a front door must still be told how this process ends
            self._started.channel.close()
        for target in list(self._files):
            self._close_files(target)
        if self._kill_pipe:
            self._kill_pipe.close()
            self._kill_pipe = None

    def _close_files(self, target: int) -> None:
        for fd in self._files.pop(target, ()):
            os.close(fd)

    def tell(self, message: dict[str, Any], target: int = 0) -> None:
        """Send a message, and with it tie the process or group `target` to this process: our end is its end."""
        self._refuse_in_a_fork()
        if "jvm" in message:
            self._tied = {self._pid, target}
        ends = self._ends_of(target) if target else []
        self._started.channel.tell(message, ends)
        for fd in ends:
            os.close(fd)

    def _ends_of(self, target: int) -> list[int]:
        """The descriptor, if any, by which the keeper sees, or causes, the end of `target`."""
        with contextlib.suppress(OSError):  # it has ended
            if self._kill_pipe:
                return [self._kill_pipe.pipe_end(target).fd]
            if not self._started.process:
                return [os.pidfd_open(target)]
        return []

    def answer(self, key: str, timeout: float, *others: str) -> Any:
        """Wait for the value that the keeper sends as `key`. None if it sends none, or one of `others` instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._received.keys() & {key, *others} or self._ended, timeout)
            return self._received.get(key)

    def _listen(self) -> None:
        try:
            is_starting = False
            while not self._closing:
                if received := self._started.channel.receive(self._pause(is_starting), self._waker):
                    self._take(*received)
                is_starting = self.reporter is not None and self.reporter.look()
        except Closed:
            pass
        except Exception:  # any error: without a listener, the lease is lost
            log.exception("%s: cannot read from the keeper process", self.name)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if not self._closing and "stopped" not in self._received and not self._lost:
            self.lose(Loss.KEEPER_GONE, f"its keeper ({self._started.name}) ended")
            if self.reporter:
                self.reporter.look()

    def _pause(self, is_starting: bool) -> float:
        """Seconds until the next look at things without a message: the deadline, and Spark, which may be starting."""
        if is_starting:
            return WATCH_PERIOD
        return max(WATCH_PERIOD, min(_SELDOM, self.remaining() * _OF_WHAT_IS_LEFT))

    def lose(self, reason: Loss, detail: str = "", *, by_force: bool = False) -> None:
        super().lose(reason, detail, by_force=by_force)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed: there is no listener any more
            self._waker.write((1).to_bytes(8, sys.byteorder))

    def report_to(self, reporter: Reporter) -> None:
        """Have the listening thread call `reporter` from now on, for the first time at once."""
        self.reporter = reporter
        self._wake()

    def _take(self, message: dict[str, Any], files: Sequence[int]) -> None:
        match message:
            case {"log": [name, level, text]}:
                self.log.say(name, level, text)
            case {"granted": epoch}:
                self._deadline = SharedDeadline(files[0])
                self._epoch, self._acquired = epoch, True
            case {"lost": [reason, detail], "stop_by": instant}:
                self._stop_by = instant
                self.lose(Loss(reason), detail)
            case {"renewal": [took, done]}:
                self._on_renewal(took, done)
                return
            case {"hold": target} if target not in self._tied:
                self.tell({"kill_pipe": target}, target)
            case {"drop": target}:
                self._close_files(target)
                return
            case {"unprotected": why}:
                self.protection = Protection.NONE
                self.log.say(__name__, logging.ERROR, f"{self.name}: protection none from now on: {why}")
                if self.reporter:
                    self.reporter.on_unprotected(str(why))
                return
            case {"gone": pid} if self.reporter:
                self.reporter.judge_the_end_of(pid)
        if files:
            target = message.get("hold", 0)
            self._close_files(target)
            self._files[target] = files
        with self._changed:
            self._received |= message
            self._changed.notify_all()

    @property
    def _is_forked(self) -> bool:
        """True in a forked child, which has no channel to the keeper."""
        return os.getpid() != self._pid

    def _refuse_in_a_fork(self) -> None:
        if self._is_forked:
            problem = f"{self.name} belongs to process {self._pid}: a forked child cannot renew or release it"
            raise ConfigError("lease", problem)


def _close_in_child() -> None:
    for lease in list(_open):
        lease.close_descriptors()
        lease._started.channel.close()


os.register_at_fork(after_in_child=_close_in_child)
