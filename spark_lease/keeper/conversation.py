"""What a driver asks of its keeper, and what it is told: `main.py` has the picture."""

import contextlib
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import Clock
from ..config.settings import Config
from ..election.journal_entries import CRASHED, FAILED, INTERRUPTED
from ..election.keepalive import Keepalive
from ..election.record import Protection
from ..errors import Loss, StoreError
from ..holds import LocalHold
from .channel import Channel, Closed
from .contained import ContainedDriver
from .death import LeftBehind
from .driver import Driver, Tasks
from .enforced import Enforced
from .messages import AT_ONCE, LAST_WORDS, refusal

log = logging.getLogger(__name__)


class Conversation:
    """Reacts to what the driver says, and keeps in mind what was said."""

    def __init__(
        self,
        channel: Channel,
        config: Config,
        clock: Clock,
        *,
        lease: LocalHold,
        keepalive: Keepalive,
        driver: Driver | ContainedDriver,
        deadline: Enforced,
    ) -> None:
        self._channel, self._config, self._clock = channel, config, clock
        self._lease, self._keepalive, self._driver, self._deadline = lease, keepalive, driver, deadline
        self._owed: set[int] = set()
        """What could not be tied to Python yet."""
        self._is_contained = isinstance(driver, ContainedDriver)
        self.is_open = True
        """Whether the driver still listens. Its end is no end of the driver: that is what the pidfd proves."""
        self.wanted = False
        """The driver waits for the lease."""
        self.unwanted = False
        """It does not any more."""
        self.granted = False
        """It has been told of its grant."""
        self.has_begun = False
        """It has said which JVM it has, on standby or as its block begins."""
        self.stopped = False
        """It leaves its block."""
        self.finished = False
        """It has left its block, and what it started inside its namespace may still run."""
        self.settled = False
        """Its Spark is over, after a loss."""
        self.kernel_disarmed = False
        """Its end ends nothing else any more."""
        self.has_stopped = False
        """What lives on is guarded by this lease no more. Or the driver cannot hear of a grant any more."""
        self.left_behind: LeftBehind | None = None
        self.outcome: Mapping[str, Any] = {}
        """What the driver has said of its end; empty before it has."""
        self._asked_about = 0
        self.verdict_by = math.inf
        """When the JVM that ended counts as crashed, unless the driver says before that it was to end."""

    def listen(self) -> None:
        """Read a message, if there is one, and react to it."""
        try:
            received = self._channel.receive(0.0)
        except Closed:
            # Nothing will ever hear of a grant. And what lives on after one is no driver any more, by exec say: the
            # lease is not renewed for it, and runs out.
            self.is_open = False
            self.has_stopped |= not self.granted
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
                self._asked_about, self.verdict_by = 0, math.inf
                with contextlib.suppress(ProcessLookupError):  # ended meanwhile: Python will notice as well
                    self._driver.attach_jvm(pid, marked=marked)
                    self._owed.clear()  # what hung on the one before
                    self._tie(pid)
                if not self.has_begun:
                    self.has_begun = True
                    if pid:  # whose children are neighbours as well, or its workers
                        self._driver.begin()
                    self._channel.tell({"begun": True})
            case {"local": local, "level": level}:
                self._driver.early_release.tasks_run(Tasks.HERE if local else Tasks.ELSEWHERE)
                if self._lease.protection is not Protection.NONE:
                    self._lease.protection = Protection(level)
            case {"stands_by": state}:
                self._lease.stands_by(state)
            case {"expected": pid} if pid == self._asked_about:
                self.verdict_by = math.inf
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
                self.wanted = True
            case "stop":
                self._stop_renewals()
            case "release":
                self._release(*message["ended"])
            case "settle":
                self._settle(left=message["left"])
            case "abandon" if not self.left_behind:  # nothing has begun, whether it heard of a grant or not
                self.unwanted = True
                self.stop_guarding()
            case "leave" if not (self.left_behind or (self._is_contained and self.granted)):  # what it began may run
                self.stop_guarding()

    def _stop_renewals(self) -> None:
        self.stopped = True
        if self._is_contained:  # it is renewed until everything has ended
            self._channel.tell({"stopped": True})
            return

        def stop() -> None:
            self._channel.tell({"stopped": self._keepalive.stop()})

        # Not here: a request that hangs is waited for, and meanwhile something may have to be killed.
        threading.Thread(target=stop, daemon=True).start()

    def _release(self, ended: str, detail: str) -> None:
        self._lease.ends_as(ended, detail)
        if self._is_contained:  # once everything inside has ended
            self.finished = self.kernel_disarmed = True
            self._channel.tell({"released": False})
            return
        if self.has_begun and self._must_outlast_the_block(has_failed=ended in (CRASHED, FAILED, INTERRUPTED)):
            self._channel.tell({"released": False, "outlasts": True})
            return
        # Published as lost before anything else: frozen here, the lease may run out without the kernel.
        self._lease.lose(Loss.RELEASED)
        self.stop_guarding()
        answer: dict[str, Any] = {"released": False}
        try:
            answer["released"] = self._lease.release()
        except StoreError as error:
            answer["problem"] = [error.where, error.problem]
        self._channel.tell(answer)

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
            named = {each.identity for each in left}
            self.left_behind = LeftBehind(named)
            self._driver.untie_all_but(named)
        then = "the lease is kept until they end, or the driver does, but is not renewed any more"
        then = then if outlasts else "no lease guards them now; wait for their end inside the block"
        names = ", ".join(f"{each.name} (pid {each.pid})" for each in left[:3])
        log.warning("%s: the block has left processes running: %s: %s", self._config.name, names, then)
        return outlasts

    def _settle(self, *, left: bool) -> None:
        self.settled = left
        if self._config.on_lost == "exit":
            # Spark is over, Python ends: its JVM may end by itself, spark-submit with Python's exit code.
            self.kernel_disarmed = True
            self._driver.disarm_kernel()
            self._channel.tell({"settled": True})
        else:
            self.stop_guarding()

    def _look_up(self, what: str, arguments: Sequence[Any], number: int) -> None:
        answer: dict[str, Any]
        try:
            answer = {"found": getattr(self._lease, what)(*arguments)}
        except Exception as error:  # whatever it is, the driver waits for an answer
            answer = refusal(error)
        self._channel.tell({f"answer {number}": answer})

    def stop_guarding(self) -> None:
        """End nothing of the driver any more: this lease no longer guards what lives on."""
        self.has_stopped = True
        self._deadline.disarm()
        self._driver.disarm()

    def tie_children(self) -> None:
        """Tie to Python what was started since the last look, and let go of what has ended."""
        appeared, ended = self._driver.look_around()
        for target in {*self._owed, *appeared} - set(ended):
            self._tie(target)
        for target in ended:
            self._owed.discard(target)
            self._channel.tell({"drop": target})

    def _tie(self, target: int) -> None:
        """Have Python hold a pipe end to a process, or to minus a group: they end with it. 0: to none.

        What cannot be tied now is tied at the next look."""
        was_owed = target in self._owed
        self._owed.discard(target)
        try:
            pipe_end = self._driver.pipe_end_to(target) if target else None
            handed = pipe_end is None or self._channel.tell({"hold": target}, [pipe_end.fd])
        except PermissionError:  # it has become another user, and nothing of ours can end it
            return
        except OSError as error:
            if not was_owed and not self._owed:  # once for very many
                log.warning("%s: cannot arm the kill pipe of process %d yet: %s", self._config.name, target, error)
            handed = False
        if not handed:
            self._owed.add(target)

    def ask_about(self, jvm: int) -> None:
        """The JVM has ended. That is a crash, unless Python says that it wanted it so, or waits for the lease still."""
        if not self.granted:
            self._driver.attach_jvm(0, marked=True)
            return
        self._asked_about = jvm
        if not self.stopped and self._lease.loss() is None:
            heard = self._channel.tell({"gone": jvm})
            self.verdict_by = self._clock.now() + (2 * LAST_WORDS if heard else 0.0)

    def has_asked_about(self, jvm: int) -> bool:
        """Whether the end of the JVM was seen."""
        return jvm == self._asked_about
