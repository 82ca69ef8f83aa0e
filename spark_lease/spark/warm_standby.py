"""A warm standby: its Spark is ready while another is master, and cannot write to a Delta table before the grant.

A lease moves in a tenth of a second, but a SparkSession takes ten to twenty seconds to its first commit: mostly to load
and compile what a first write needs. So a waiting standby does such a write in a scratch folder.

The warm-up begins once another is known to hold the lease; for a free lease nothing is prepared. A grant does not wait
for it: the step under way goes on beside the guarded work, which needs it too; the others are skipped.
"""

import contextlib
import inspect
import logging
import math
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from typing import Any

from ..clock import Clock
from ..config.settings import Config
from ..errors import ConfigError, NotMaster
from ..system.processes import look, rss
from .contexts import is_watchable, unwatch_contexts, unwatch_sessions, watch_contexts, watch_sessions
from .delta_fence import hook
from .delta_observer import NO_DELTA, WARM_UP
from .jvm import drop_jvm, jvm_pid, spark_context
from .warm_up import checkpoint_of, compute, has_delta, is_fixed, make_active, merge, streams
from .work import is_busy, stopped

log = logging.getLogger(__name__)

WarmUp = Callable[..., object]
"""The user's own preparation: `f()`, which may make the session, or `f(spark)`."""
COLD, WARMING_UP, WARM = "cold", "warming up", "warm"
_HELD_AFTER = 1.0
"""Seconds without a grant after which the lease counts as another's."""
_SETTLES_WITHIN = 5.0
_LOOK_AGAIN, _LOOKS = 0.05, 100
_TABLES = 20
"""Maximum number of tables to read, of those noted beside the lease."""
_LOOK_AT_TABLES = 60.0
_MOVED_ON = 100
"""New versions after which a table is read again: three hundred delay the first commit by a second."""


class WarmStandby:
    """The Spark of one contender, from its wait to the grant."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        *,
        warm_up: WarmUp | None,
        is_wanted: bool,
        noted_tables: Callable[[], Iterable[str]],
        is_master: Callable[[], bool],
        on_state: Callable[[str], None],
        submitter: int,
    ) -> None:
        """`is_wanted`: False for a cold standby. `is_master`: True while this process is master under another lease.
        `on_state` gets COLD, WARMING_UP or WARM, on a thread of ours. `submitter`: the JVM of spark-submit, or 0."""
        self._name, self._config, self._clock = config.name, config, clock
        self._warm_up, self._noted_tables, self._on_state = warm_up, noted_tables, on_state
        self._is_wanted, self._is_master, self._submitter = is_wanted, is_master, submitter
        self._since = clock.now()
        self._over, self._ended = threading.Event(), threading.Event()
        self._has_given_up = False
        self._group = f"warm-up {id(self)}"
        self._thread: threading.Thread | None = None
        self._scratch = ""
        self._made: Any = None
        """The context that the warm-up made, if none was there before."""
        self._there_before: Any = None

    @property
    def has_begun(self) -> bool:
        """True once this standby is warm or warming up."""
        return self._thread is not None

    def look(self) -> None:
        """Call it repeatedly while another holds the lease. Does not block."""
        if self._is_wanted and self._thread is None and self._clock.now() >= self._since + _HELD_AFTER:
            self._thread = threading.Thread(target=self._run, name=f"warm up {self._name}", daemon=True)
            self._thread.start()
        if self._made is not None and not _is_alive(self._made) and not self._over.is_set():
            self._over.set()
            log.warning("%s: the Spark of this standby ended while it waited: it is cold from now on", self._name)
            self._on_state(COLD)

    def granted(self, patience: float) -> str:
        """Stop warming up, and kill a Spark that does not answer within `patience` seconds.

        Returns why the guarded work cannot begin; most often "".
        """
        self._over.set()
        context = self._made
        if context is None or not _is_alive(context) or self._answers(context, patience):
            return ""
        if self._submitter:  # our parent: this process cannot have another JVM
            return f"its warm JVM (pid {self._submitter}) does not answer"
        log.warning("%s: the warm JVM does not answer: it is killed, and Spark starts cold", self._name)
        drop_jvm()
        return ""

    def end(self) -> None:
        """Let other code than the warm-up write: by now it has its own fences, or this process waits for no lease."""
        self._over.set()
        self._ended.set()
        if self._thread and not self._has_given_up:
            watch_sessions(self._adopt)

    def cancel_jobs(self) -> None:
        """Cancel jobs of the warm-up after the guarded work is over, so that they are not taken for that work."""
        if self._thread and self._thread.is_alive() and (context := spark_context()):
            cancelling = threading.Thread(target=_cancel, args=(context, self._group), name="cancel", daemon=True)
            cancelling.start()
            cancelling.join(_SETTLES_WITHIN)

    def close(self) -> None:
        """Stop watching which sessions the program asks for."""
        unwatch_sessions(self._adopt)

    def give_up(self, seconds: float) -> None:
        """Give up the lease: stop the Spark that the warm-up made, and kill it after `seconds`."""
        self._has_given_up = True
        self._over.set()
        try:
            if not self._has_spark_of_its_own():
                self.cancel_jobs()
            else:
                stopping = threading.Thread(target=stopped, name="stop Spark", daemon=True)
                stopping.start()
                stopping.join(seconds)
                if stopping.is_alive() and self._has_spark_of_its_own():
                    drop_jvm()
        finally:
            self.end()

    def _has_spark_of_its_own(self) -> bool:
        """True if the Spark of this process serves this warm-up alone."""
        return self._made is not None and self._made is spark_context() and not self._is_master()

    def _answers(self, context: Any, patience: float) -> bool:
        answered = threading.Event()

        def ask() -> None:
            with contextlib.suppress(Exception):  # Py4J may raise anything
                context._jvm.java.lang.System.nanoTime()
                answered.set()

        pid = jvm_pid(self._submitter)
        if pid and (jvm := look(pid)) and jvm.state in "Tt":
            return False
        threading.Thread(target=ask, name="does Spark live", daemon=True).start()
        return self._clock.wait(answered, patience)

    def _run(self) -> None:
        self._there_before = spark_context()
        hook.stand_by(self._refuse_until_master)
        try:
            if not is_watchable():
                raise ConfigError("standby", "warm needs pyspark, and not its client of Spark Connect alone")
            watch_contexts(self._refuse_writes)
            self._keep_warm()
        except BaseException as error:  # user code may raise anything, even SystemExit
            self._say(f"not a warm standby: {_first_line(error)}", COLD)
        finally:
            # Keep the fence until the claims are made: work that the warm-up has left behind may write too.
            while not self._ended.is_set():
                self._clock.wait(self._ended, math.inf)
            unwatch_contexts(self._refuse_writes)
            hook.discard(self._refuse_until_master)
            shutil.rmtree(self._scratch, ignore_errors=True)
            if self._has_given_up and self._has_spark_of_its_own():  # the warm-up was just making it
                stopped()

    def _keep_warm(self) -> None:
        while not self._over.is_set():
            due = self._clock.now() + self._config.warm_max_age
            try:
                self._warm_up_once()
            except ConfigError:  # another attempt would fail too
                raise
            except BaseException as error:  # user code, as above
                self._say(f"the warm-up has failed: {_first_line(error)}", COLD)
            before = self._checkpoints()
            while not self._over.is_set() and self._clock.now() < due and not self._has_moved_on(before):
                self._clock.wait(self._over, min(due - self._clock.now(), _LOOK_AT_TABLES))

    def _checkpoints(self) -> dict[str, int]:
        """The newest checkpoint version of each table that a warm-up reads, if it has one that can be read."""
        found = dict[str, int]()
        if context := self._made:
            for table in sorted(self._noted_tables())[:_TABLES]:
                with contextlib.suppress(Exception):  # Py4J may raise anything; an unknown version counts as unchanged
                    found[table] = checkpoint_of(context, table)
        return found

    def _has_moved_on(self, before: dict[str, int]) -> bool:
        return any(version - before.get(table, version) >= _MOVED_ON for table, version in self._checkpoints().items())

    def _say(self, problem: str, state: str = "") -> None:
        if not self._over.is_set():
            log.warning("%s: %s", self._name, problem)
            if state:
                self._on_state(state)

    def _warm_up_once(self) -> None:
        begun = self._clock.now()
        log.info("%s: standby (%s)", self._name, WARMING_UP)
        self._on_state(WARMING_UP)
        session = self._session()
        steps: list[Callable[[], None]] = [
            lambda: compute(session),
            lambda: merge(session, f"{self._scratch_of(session)}/table"),
            lambda: self._read_tables(session),
        ]
        if self._warm_up and _takes_spark(self._warm_up):
            steps.insert(0, lambda: self._ask_user(session))
        for step in steps:
            if self._over.is_set():
                return
            try:
                step()
            except Exception as error:  # a step that fails is not prepared, no more
                self._say(f"the warm-up is not complete: {_first_line(error)}")
        if self._over.is_set():
            return
        if not _is_alive(session.sparkContext):
            raise ConfigError("warm_up", "has stopped the Spark that it was to warm up")
        took = self._clock.now() - begun
        memory = rss(pid) / 1e9 if (pid := jvm_pid(self._submitter)) else 0.0
        message = "%s: standby (%s): Spark is ready after %.1f s, its JVM has %.1f GB"
        log.info(message, self._name, WARM, took, memory)
        self._on_state(WARM)

    def _session(self) -> Any:
        from pyspark.sql import SparkSession  # installed, because contexts could be watched

        if self._warm_up and not _takes_spark(self._warm_up):
            self._ask_user()
        return SparkSession.builder.getOrCreate()

    def _scratch_of(self, session: Any) -> str:
        if not self._scratch:  # among Spark's own temporary files: after a SIGKILL they are removed together
            self._scratch = tempfile.mkdtemp(prefix="spark_lease-", dir=session.sparkContext._temp_dir)
            hook.allow(f"file:{self._scratch}/")  # as Hadoop writes it
        return self._scratch

    def _ask_user(self, *session: Any) -> None:
        assert self._warm_up
        before = streams()
        try:
            self._warm_up(*session)
        finally:
            for number, query in streams().items():
                if number not in before and not self._over.is_set():
                    self._say(f"warm_up started the stream {query.name or number}: it is stopped")
                    query.stop()

    def _read_tables(self, session: Any) -> None:
        if not has_delta(session):
            return
        for table in sorted(self._noted_tables())[:_TABLES]:
            if self._over.is_set():
                return
            session.read.format("delta").load(table).limit(1).collect()

    def _refuse_writes(self, context: Any | None) -> None:
        """Have a new context refuse writes, before any code can use it."""
        is_ours = threading.current_thread() is self._thread
        if context is not None and is_ours:
            context.setJobGroup(self._group, f"{self._name}: warm-up", interruptOnCancel=True)
            context.setLocalProperty(WARM_UP, self._name)
            self._made = None if context is self._there_before else context
        lacking = "a classic Spark, not a Spark Connect server" if context is None else hook.install(context)
        if lacking and lacking != NO_DELTA and (is_ours or not self._ended.is_set()):
            raise ConfigError("standby", f"warm needs {lacking}: before its grant it could write")

    def _refuse_until_master(self, table: str) -> None:
        """Refuse a transaction while no lease is this process's, unless this one is not waited for any more."""
        if not (self._ended.is_set() or self._is_master()):
            raise NotMaster(self._name, table)

    def _adopt(self, session: Any, asked: dict[str, str]) -> None:
        """Give the guarded work, which asks for a session, the one that is ready."""
        with contextlib.suppress(Exception):  # an unknown version of Spark: the work gets its session all the same
            make_active(session)
            has = session.sparkContext.getConf()
            late = [key for key, value in asked.items() if has.get(key) != str(value) and is_fixed(session, key)]
            if late and self._made is session.sparkContext:
                unwatch_sessions(self._adopt)  # once is enough
                message = (
                    "%s: the script sets %s, but the warm standby has already started Spark: set that for "
                    "spark-submit, or make the session in warm_up"
                )
                log.warning(message, self._name, ", ".join(sorted(late)))


def _cancel(context: Any, group: str) -> None:
    """End the group's present and future jobs, and wait for tasks: a Python worker has two seconds to end."""
    with contextlib.suppress(Exception):  # Py4J may raise anything
        context.cancelJobGroup(group)
        context._jsc.sc().cancelJobGroupAndFutureJobs(group)  # of Spark 4
    with contextlib.suppress(Exception):
        never = threading.Event()
        for _ in range(_LOOKS):
            if not is_busy():
                break
            never.wait(_LOOK_AGAIN)


def _is_alive(context: Any) -> bool:
    return context._jsc is not None


def _takes_spark(warm_up: WarmUp) -> bool:
    try:
        return bool(inspect.signature(warm_up).parameters)
    except ValueError:  # a builtin
        return False


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
