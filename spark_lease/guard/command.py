"""Runs a command that lives only while its lease does: `spark-lease run`.

This process is the keeper; the command is its grandchild, in a process group of its own. The command is killed with
every process that it started: on loss by `stop_by`, on a signal within `stop_budget`. The lease is released after the
last of them is gone. If this process ends, or is frozen past the lease, the kernel and the supervisor end the command.
"""

import contextlib
import errno
import logging
import math
import os
import queue
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import FrameType

from ..clock import BootClock, Clock
from ..config.settings import Config
from ..election.journal_entries import FAILED, FINISHED, INTERRUPTED
from ..election.keepalive import Keepalive
from ..election.lifecycle import abandon, begin_hold, end_hold
from ..election.record import Protection
from ..errors import ConfigError, LeaseLost, SparkLeaseError
from ..fencing.delta.tables import DeltaFence, level_of
from ..fencing.sql.databases import look_for_a_newer_claim
from ..fencing.status import FencingStatus
from ..holds import open_contender
from ..keeper.enforced import Enforced
from ..keeper.guarded_processes import describe
from ..keeper.guarded_work import GuardedWork
from ..keeper.supervisor import Supervisor, contained
from ..monitoring.events import open_events
from ..outcome import Outcome, ended, ending_of, outcome_of, refused
from ..system.processes import exit_text, look, need_linux, shell_code, signal_name
from ..system.signals import Interrupted, handled
from .environment import announcement

log = logging.getLogger(__name__)

NOT_FOUND, NOT_RUN = 127, 126
"""The shell's exit codes for a command that does not exist, and for one that cannot be run."""
_AFTER_IT = 0.5
"""Seconds after the command's end in which its descendants may end and still count as ended by themselves."""
_LEFT = "the command left processes running, which were ended"
_LISTEN = 0.5
"""Seconds until a signal is handled that came just before the wait for the command's end."""

_TOO_MANY = "no more processes and threads may be started by this user, or in this container"
_NO_MEMORY = "this user, or this container, has no memory for one more"
_NO_FILES = "no more files may be opened"
_LIMITS = {
    errno.EAGAIN: ("ulimit -u", _TOO_MANY),
    errno.EMFILE: ("ulimit -n", _NO_FILES),
    errno.ENFILE: ("fs.file-max", _NO_FILES),
    errno.ENOMEM: ("ulimit -v", _NO_MEMORY),
}
"""By errno: the limit that was reached, and what it means."""

_News = int | LeaseLost | ConfigError | None
"""What the main thread reacts to: a signal's number, a loss, too little protection, or None: the command has ended."""


def run(config: Config, command: Sequence[str]) -> Outcome:
    """Wait for the lease, run `command` under it, and return how it ended. Call it in the main thread.

    The command finds SPARK_LEASE_NAME, SPARK_LEASE_HOLDER and SPARK_LEASE_EPOCH in its environment.
    """
    if config.enabled:
        need_linux()
    if shutil.which(command[0]) is None:
        if os.path.exists(command[0]) and os.sep in command[0]:
            problem = "is a folder" if os.path.isdir(command[0]) else "is not executable (chmod +x)"
            return outcome_of(config, "failed", NOT_RUN, reason=f"{command[0]}: {problem}")
        return outcome_of(config, "failed", NOT_FOUND, reason=f"{command[0]}: command not found")
    with _explain_limits():
        made = _Run(config, command)
    return made.run()


@contextlib.contextmanager
def _explain_limits() -> Iterator[None]:
    """If no process or thread can be started, raise ConfigError with the limit that may be the reason."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if "start new thread" in str(error):  # pthread_create(3) has one error for both
            problem = f"no thread can be started: {_TOO_MANY}, or {_NO_MEMORY}"
            raise ConfigError("ulimit -u, ulimit -v", problem) from error
        if isinstance(error, OSError) and error.errno in _LIMITS:
            limit, problem = _LIMITS[error.errno]
            raise ConfigError(limit, f"{problem}: raise the limit") from error
        raise


class _Run:
    def __init__(self, config: Config, command: Sequence[str]) -> None:
        self._config, self._command = config, command
        self._clock: Clock = BootClock()
        self._events = open_events(config)
        self._supervisor = contained(command, config.contain) or Supervisor(command)
        self._deadline = Enforced(config, contained=self._supervisor.init is not None)
        level = self._deadline.protection if self._supervisor.adopts else Protection.KEEPER
        if not level.covers(config.require_protection):
            self._supervisor.dismiss()
            why = self._deadline.why or "the command has no namespace of its own, see spark-lease doctor"
            raise ConfigError("require_protection", f"{config.require_protection} is required, not {level}: {why}")
        self._lease = open_contender(
            config,
            self._clock,
            protection=level,
            published=self._deadline,
            on_renewal=self._events.renewal,
            stands_still=self._stands_still,
        )
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._keepalive = Keepalive(self._lease, config, clock=self._clock, on_lost=self._on_lost, on_look=self._look)
        self._waiting, self._pid, self._interrupted_by = True, 0, 0
        self._started = threading.Event()
        self._work: GuardedWork | None = None
        self._status: int | None = None
        self._has_claimed = False

    def run(self) -> Outcome:
        def on_suspend(*_: object) -> None:
            # SIGTSTP would stop this process but not the command in its own group, which would outlive the lease.
            log.warning("Ctrl-Z is ignored: a guarded command cannot be suspended")

        with handled(self._on_signal), handled(on_suspend, (signal.SIGTSTP,)):
            try:
                self._events.begin(self._lease)
                return self._run()
            except Interrupted as interrupted:
                return ended(self._lease, 128 + interrupted.args[0], interrupted=True)
            except SparkLeaseError as error:
                return refused(self._config, error, self._lease)
            finally:
                self._events.end(lost=self._lease.loss() is not None)
                self._supervisor.dismiss()
                self._lease.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._interrupted_by = number
        if self._waiting:
            raise Interrupted(number)
        self._news.put(number)

    def _on_lost(self, lost: LeaseLost) -> None:
        self._events.lost(lost)
        self._deadline.end_by(self._lease.stop_by())
        self._news.put(lost)
        log.warning("%s: ending the command", lost)  # act first, talk later: a log handler may block

    def _look(self) -> None:
        self._events.look(self._lease)
        if self._work and self._lease.protection is not Protection.NONE and (strangers := self._work.out_of_reach()):
            self._lease.protection = Protection.NONE
            log.error("%s: protection none from now on: %s", self._lease.name, describe(strangers))
            if (wanted := self._config.require_protection) != "none":
                self._news.put(ConfigError("require_protection", f"{wanted} is required: {describe(strangers)}"))

    def _run(self) -> Outcome:
        with _explain_limits():
            self._begin()
        lease = self._lease
        variables = announcement(self._config, holder=lease.holder, epoch=lease.epoch, run_key=lease.run_key)
        try:
            self._pid = self._supervisor.start(variables, self._deadline.kill_pipe)
        except OSError as error:
            self._give_up(FAILED, exit_text(NOT_RUN << 8))
            problem = f"{self._command[0]}: cannot be run: {error.strerror or error}"
            return replace(ended(lease, NOT_RUN), reason=problem)
        self._work = work = self._supervisor.work(self._pid, self._clock)
        self._started.set()
        news = self._next()
        by_itself = news is None and work.wait_until_over(self._clock.now() + _AFTER_IT)
        if not by_itself:
            if news is None:
                log.warning("%s: %s", lease.name, _LEFT)
            work.signal(news if isinstance(news, int) else signal.SIGTERM)
        return self._end(work, news, by_itself)

    def _begin(self) -> None:
        """Wait for the lease, then claim. Any exception is raised after the lease was given up."""
        try:
            self._lease.prepare()
            begin_hold(self._lease, self._keepalive)
            self._lease.log_grant()
            if self._config.run_key:
                self._lease.runs.begin(self._config.run_key)
            self._claim()
            # Started before the command: without this thread the command's end would go unnoticed.
            threading.Thread(target=self._await, name="await command", daemon=True).start()
            self._lease.check()  # the steps before may have taken long
            self._events.held(self._lease)
            self._waiting = False
            if self._interrupted_by:  # Python drops an exception that a handler raises while a finalizer runs
                raise Interrupted(self._interrupted_by)
        except BaseException as error:
            self._waiting = False
            self._give_up(*self._ending_of(error))
            raise

    def _end(self, work: GuardedWork, news: _News, by_itself: bool) -> Outcome:
        """Wait for the end of every process that the command started, then release the lease."""
        code = 128 + news if isinstance(news, int) else self._code()
        if self._has_claimed and by_itself and code and self._lease.loss() is None:
            look_for_a_newer_claim(self._config, self._lease)
        unnoted: list[SparkLeaseError] = []
        lost = end_hold(
            self._lease,
            self._keepalive,
            work,
            clock=self._clock,
            stop_budget=self._config.stop_budget,
            dying=math.inf,  # our parent takes our end for the end of the command
            on_over=lambda: unnoted.extend(self._note_the_run(news, code, by_itself)),
        )
        self._deadline.disarm()
        if lost is not None:
            self._events.lost(lost)
            return refused(self._config, lost, self._lease)
        self._events.ended(self._lease)
        if isinstance(news, ConfigError):
            return refused(self._config, news, self._lease)
        if unnoted:
            return refused(self._config, unnoted[0], self._lease)
        outcome = ended(self._lease, code, interrupted=isinstance(news, int))
        if news is None and os.WIFSIGNALED(self._status or 0):
            return replace(outcome, reason=f"the command was ended by {exit_text(self._status)}")
        return outcome if news is not None or by_itself or code else replace(outcome, reason=_LEFT)

    def _next(self) -> _News:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._news.get(timeout=_LISTEN)

    def _claim(self) -> None:
        fencing_status = FencingStatus(self._lease, self._config)
        self._has_claimed = self._lease.claim_databases()
        sql = "claimed" if self._has_claimed else "none"
        delta = DeltaFence(self._lease, self._config, self._clock)
        if problem := delta.claim_all():
            log.warning("%s: Delta tables are NOT FENCED: %s", self._lease.name, problem)
        fencing_status.show(sql=sql, delta=level_of(delta, problem))

    def _code(self) -> int:
        """The command's exit code, as a shell reports it."""
        return shell_code(-signal.SIGKILL if self._status is None else os.waitstatus_to_exitcode(self._status))

    def _note_the_run(self, news: _News, code: int, by_itself: bool) -> list[SparkLeaseError]:
        outcome = INTERRUPTED if isinstance(news, int) or not by_itself else FAILED if code else FINISHED
        detail = signal_name(news) if isinstance(news, int) else exit_text(self._status)
        left = "" if by_itself or code else _LEFT
        return self._lease.note_run(outcome, detail, left=left)

    def _stands_still(self) -> str:
        found = look(self._pid) if self._pid else None
        return f"the command (pid {found.pid}) was stopped" if found and found.state in "Tt" else ""

    @staticmethod
    def _ending_of(error: BaseException) -> tuple[str, str]:
        return (INTERRUPTED, signal_name(error.args[0])) if isinstance(error, Interrupted) else ending_of(error)

    def _give_up(self, outcome: str, detail: str) -> None:
        self._lease.ends_as(outcome, detail)
        if self._lease.loss() is None:
            self._lease.runs.note_end(self._config.run_key, outcome)
        abandon(self._lease, self._keepalive)
        self._deadline.disarm()

    def _await(self) -> None:
        self._started.wait()
        self._status = self._supervisor.await_end()
        self._news.put(None)
