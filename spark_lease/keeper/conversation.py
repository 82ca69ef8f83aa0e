"""Handles the messages between a driver and its keeper; `main.py` has a diagram."""

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
    """Reacts to the messages of the driver, and remembers what they said."""

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
        """Processes and groups that could not be tied to Python yet."""
        self._is_contained = isinstance(driver, ContainedDriver)
        self.is_open = True
        """False once the channel to the driver is closed. That is no proof of its end: only its pidfd is."""
        self.wanted = False
        """The driver waits for the lease."""
        self.unwanted = False
        """The driver no longer waits for the lease."""
        self.granted = False
        """The driver has been told of its grant."""
        self.has_begun = False
        """The driver has said which JVM it has, on standby or as its block begins."""
        self.stopped = False
        """The driver is leaving its block."""
        self.finished = False
        """The driver has left its block, and processes inside its namespace may still run."""
        self.settled = False
        """After a loss, the Spark of the driver is over."""
        self.kernel_disarmed = False
        """The end of the driver no longer ends any other process."""
        self.has_stopped = False
        """This lease no longer guards what lives on. Or the driver can no longer learn of a grant."""
        self.left_behind: LeftBehind | None = None
        self.outcome: Mapping[str, Any] = {}
        """How the driver ended, as it reported; empty before that."""
        self.session = ""
        """The address of the driver's session on a Spark Connect server; it may hold a token."""
        self._asked_about = 0
        self.verdict_by = math.inf
        """When a JVM that ended counts as crashed, unless the driver reports before that the end was intended."""

    def listen(self) -> None:
        """Read a message, if there is one, and react to it."""
        try:
            received = self._channel.receive(0.0)
        except Closed:
            # Before a grant: the driver can never learn of one. After a grant: a process that lives on is no longer
            # the driver (exec, for example), so the lease is not renewed for it and runs out.
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
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile: Python will notice too
                    self._driver.attach_jvm(pid, marked=marked)
                    self._owed.clear()  # these belonged to the JVM before
                    self._tie(pid)
                if not self.has_begun:
                    self.has_begun = True
                    if pid:  # the JVM's children are neighbours too, or its workers
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
            case "know_session":
                self.session = message["address"]
            case "stop":
                self._stop_renewals()
            case "release":
                self._release(*message["ended"])
            case "settle":
                self._settle(left=message["left"])
            case "abandon" if not self.left_behind:  # no work has begun, with or without a grant
                self.unwanted = True
                self.stop_guarding()
            case "leave" if not (self.left_behind or (self._is_contained and self.granted)):  # its work may run
                self.stop_guarding()

    def _stop_renewals(self) -> None:
        self.stopped = True
        if self._is_contained:  # the lease is renewed until everything has ended
            self._channel.tell({"stopped": True})
            return

        def stop() -> None:
            self._channel.tell({"stopped": self._keepalive.stop()})

        # On a thread of its own: `stop` waits for a hanging request, and meanwhile the keeper may have to kill.
        threading.Thread(target=stop, daemon=True).start()

    def _release(self, ended: str, detail: str) -> None:
        self._lease.ends_as(ended, detail)
        if self._is_contained:  # released once everything inside has ended
            self.finished = self.kernel_disarmed = True
            self._channel.tell({"released": False})
            return
        if self.has_begun and self._must_outlast_the_block(has_failed=ended in (CRASHED, FAILED, INTERRUPTED)):
            self._channel.tell({"released": False, "outlasts": True})
            return
        # Publish the loss first: if we freeze later, the lease may run out with the kernel disarmed.
        self._lease.lose(Loss.RELEASED)
        self.stop_guarding()
        answer: dict[str, Any] = {"released": False}
        try:
            answer["released"] = self._lease.release()
        except StoreError as error:
            answer["problem"] = [error.where, error.problem]
        self._channel.tell(answer)

    def _must_outlast_the_block(self, *, has_failed: bool) -> bool:
        """True if the lease must be kept after the block, because a process that the block started still runs.

        Not if the block succeeded: then the process may be meant to live on. Nor if a loss would not kill it.
        """
        left = self._driver.left_behind(thoroughly=has_failed)
        if left:  # the block may have killed it, and it is ending
            self._clock.wait(threading.Event(), AT_ONCE)
        if left or has_failed:  # look twice: a process shows no mark during its exec
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
            # Spark is over and Python ends: its JVM may end by itself, and spark-submit with Python's exit code.
            self.kernel_disarmed = True
            self._driver.disarm_kernel()
            self._channel.tell({"settled": True})
        else:
            self.stop_guarding()

    def _look_up(self, what: str, arguments: Sequence[Any], number: int) -> None:
        answer: dict[str, Any]
        try:
            answer = {"found": getattr(self._lease, what)(*arguments)}
        except Exception as error:  # any error: the driver waits for an answer
            answer = refusal(error)
        self._channel.tell({f"answer {number}": answer})

    def stop_guarding(self) -> None:
        """Kill nothing of the driver from now on: this lease no longer guards what lives on."""
        self.has_stopped = True
        self._deadline.disarm()
        self._driver.disarm()

    def tie_children(self) -> None:
        """Tie to Python the processes started since the last look, and drop those that have ended."""
        appeared, ended = self._driver.look_around()
        for target in {*self._owed, *appeared} - set(ended):
            self._tie(target)
        for target in ended:
            self._owed.discard(target)
            self._channel.tell({"drop": target})

    def _tie(self, target: int) -> None:
        """Have Python hold a pipe end to a process, or to minus a group, which then ends with Python. 0: do nothing.

        If it cannot be tied now, the next look tries again."""
        was_owed = target in self._owed
        self._owed.discard(target)
        try:
            pipe_end = self._driver.pipe_end_to(target) if target else None
            handed = pipe_end is None or self._channel.tell({"hold": target}, [pipe_end.fd])
        except PermissionError:  # it runs as another user now, and we cannot kill it
            return
        except OSError as error:
            if not was_owed and not self._owed:  # one line for very many
                log.warning("%s: cannot arm the kill pipe of process %d yet: %s", self._config.name, target, error)
            handed = False
        if not handed:
            self._owed.add(target)

    def ask_about(self, jvm: int) -> None:
        """Ask Python about the end of the JVM: a crash, unless Python intended it or still waits for the lease."""
        if not self.granted:
            self._driver.attach_jvm(0, marked=True)
            return
        self._asked_about = jvm
        if not self.stopped and self._lease.loss() is None:
            heard = self._channel.tell({"gone": jvm})
            self.verdict_by = self._clock.now() + (2 * LAST_WORDS if heard else 0.0)

    def has_asked_about(self, jvm: int) -> bool:
        """True if the end of this JVM was seen."""
        return jvm == self._asked_about
