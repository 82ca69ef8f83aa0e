"""A warm standby: its Spark is ready while another is master, and can write to no Delta table before the grant.

A lease moves in a tenth of a second; then a SparkSession takes ten to twenty seconds to its first commit, most of it
in loading and compiling what a first write needs. So a standby does such a write in a scratch folder while it waits.

It begins once the lease is known to be another's: where it is free, nothing is prepared. And a grant waits for no
warm-up: the step under way goes on beside the guarded work, which would need it as well, and the others are left out.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..clock import Clock
from ..config.settings import Config
from ..errors import ConfigError, NotMaster
from ..system.processes import rss
from .contexts import is_watchable, unwatch_contexts, unwatch_sessions, watch_contexts, watch_sessions
from .delta_fence import hook
from .delta_observer import NO_DELTA
from .session import drop_jvm, gateway_process, jvm_pid, spark_context, stopped

log = logging.getLogger(__name__)

WarmUp = Callable[..., object]
"""The user's own preparation: `f()`, which may make the session, or `f(spark)`."""
COLD, WARMING_UP, WARM = "cold", "warming up", "warm"
_HELD_AFTER = 1.0
"""Seconds without a grant after which the lease counts as another's."""
_ANSWERS_WITHIN = 2.0
_TABLES = 20
"""Of those noted beside the lease, as many are read."""
_MERGE = """
    MERGE INTO delta.`{table}` AS t USING (SELECT id, id * 2 AS value FROM range(50, 150)) AS s ON t.id = s.id
    WHEN MATCHED THEN UPDATE SET value = s.value WHEN NOT MATCHED THEN INSERT *
"""


class StandbyFence:
    """Refuses every transaction while this process is no master. A `TransactionFence`."""

    property = ""

    def __init__(self, name: str, *, is_master: Callable[[], bool]) -> None:
        self._name, self._is_master = name, is_master

    def begin(self, table: str, newest: str | None) -> None:
        if not self._is_master():
            raise NotMaster(self._name, table)

    def commit(self) -> None:
        """What has begun was allowed to."""

    def aborted(self, table: str) -> None:
        """It wrote nothing."""


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
        """`is_wanted`: else it is a cold standby. `is_master`: under another lease. `on_state` is told COLD, WARMING_UP
        or WARM, on a thread of ours. `submitter` is the JVM of spark-submit, or 0."""
        self._name, self._config, self._clock = config.name, config, clock
        self._warm_up, self._noted_tables, self._on_state = warm_up, noted_tables, on_state
        self._is_wanted = is_wanted
        self._submitter = submitter
        self._fence = StandbyFence(config.name, is_master=is_master)
        self._since = clock.now()
        self._over, self._given_up = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._context: Any = None
        self._makes_spark = False

    def look(self) -> None:
        """To be called again and again while the lease is another's. Waits for nothing."""
        if self._is_wanted and self._thread is None and self._clock.now() >= self._since + _HELD_AFTER:
            self._thread = threading.Thread(target=self._run, name=f"warm up {self._name}", daemon=True)
            self._thread.start()
        if self._context is not None and self._context._jsc is None:
            self._context = None
            log.warning("%s: the Spark of this standby ended while it waited: it is cold from now on", self._name)
            self._over.set()
            self._on_state(COLD)

    def granted(self) -> str:
        """Begin nothing more, and see to it that a Spark that hangs is not used; why nothing may begin, else ""."""
        self._over.set()
        context = self._context
        if context is None or context._jsc is None or self._answers(context):
            return ""
        if self._submitter:  # our parent: no other can be had in this process
            return f"its warm JVM (pid {self._submitter}) does not answer"
        log.warning("%s: the warm JVM does not answer: it is killed, and Spark starts cold", self._name)
        drop_jvm()
        return ""

    def end(self) -> None:
        """The guarded work has fences of its own from now on."""
        unwatch_contexts(self._refuse_writes)
        hook.discard(self._fence)
        if self._context is not None and not self._given_up.is_set():
            watch_sessions(self._name_what_comes_too_late)

    def close(self) -> None:
        """The guarded work is over."""
        unwatch_sessions(self._name_what_comes_too_late)

    def give_up(self, seconds: float) -> None:
        """The lease is not to be had: stop the Spark that was made here, and kill it after `seconds`."""
        self._given_up.set()
        self._over.set()
        if self._thread and self._makes_spark:
            stopping = threading.Thread(target=stopped, name="stop Spark", daemon=True)
            stopping.start()
            end = self._clock.now() + seconds
            for each in (stopping, self._thread):
                each.join(max(end - self._clock.now(), 0.0))
            if (stopping.is_alive() or self._thread.is_alive()) and gateway_process():
                drop_jvm()
        self.end()

    def _answers(self, context: Any) -> bool:
        answered = threading.Event()

        def ask() -> None:
            with contextlib.suppress(Exception):  # Py4J raises anything
                context._jvm.java.lang.System.nanoTime()
                answered.set()

        threading.Thread(target=ask, name="does Spark live", daemon=True).start()
        return self._clock.wait(answered, _ANSWERS_WITHIN)

    def _run(self) -> None:
        scratch = tempfile.mkdtemp(prefix="spark_lease-scratch-")
        folder = f"{Path(scratch).as_uri().replace('///', '/')}/"
        hook.scratch = (*hook.scratch, folder)
        try:
            if not is_watchable():
                raise ConfigError("standby", "warm needs pyspark, and not its client of Spark Connect alone")
            watch_contexts(self._refuse_writes)
            while not self._over.is_set():
                self._warm_up_once(scratch)
                self._clock.wait(self._over, self._config.warm_max_age)
        except BaseException as error:  # whatever the user's code raises, SystemExit as well
            if not self._over.is_set():
                log.warning("%s: not a warm standby: %s", self._name, _first_line(error))
                self._on_state(COLD)
        finally:
            hook.scratch = tuple(each for each in hook.scratch if each != folder)
            shutil.rmtree(scratch, ignore_errors=True)
            if self._given_up.is_set() and self._makes_spark:
                stopped()

    def _warm_up_once(self, scratch: str) -> None:
        begun = self._clock.now()
        log.info("%s: standby (%s)", self._name, WARMING_UP)
        self._on_state(WARMING_UP)
        session = self._session()
        steps: list[Callable[[], None]] = [
            lambda: self._ask_user(session),
            lambda: _compute(session),
            lambda: _merge(session, f"{scratch}/table"),
            lambda: self._read_tables(session),
        ]
        for step in steps:
            if self._over.is_set():
                return
            try:
                step()
            except Exception as error:  # one that fails is not prepared, and that is all
                if not self._over.is_set():
                    log.warning("%s: the warm-up is not complete: %s", self._name, _first_line(error))
        if spark_context() is None:
            raise ConfigError("warm_up", "has stopped the Spark that it was to warm up")
        took = self._clock.now() - begun
        memory = rss(pid) / 1e9 if (pid := jvm_pid(self._submitter)) else 0.0
        message = "%s: standby (%s): Spark is ready after %.1f s, its JVM has %.1f GB"
        log.info(message, self._name, WARM, took, memory)
        self._on_state(WARM)

    def _session(self) -> Any:
        from pyspark.sql import SparkSession  # there, as contexts could be watched

        self._makes_spark |= spark_context() is None
        if self._warm_up and not _takes_spark(self._warm_up):
            self._warm_up()
        session = SparkSession.builder.getOrCreate()
        self._context = session.sparkContext
        return session

    def _ask_user(self, session: Any) -> None:
        if self._warm_up and _takes_spark(self._warm_up):
            self._warm_up(session)
        for query in session.streams.active if spark_context() else ():
            log.warning("%s: warm_up started the stream %s: it is stopped", self._name, query.name or query.id)
            query.stop()

    def _read_tables(self, session: Any) -> None:
        if not _has_delta(session):
            return
        for table in sorted(self._noted_tables())[:_TABLES]:
            if self._over.is_set():
                return
            session.read.format("delta").load(table).limit(1).collect()

    def _refuse_writes(self, context: Any | None) -> None:
        """From the birth of each context on, before any code can use it."""
        lacking = "a classic Spark, not a Spark Connect server" if context is None else hook.install(context)
        if lacking and lacking != NO_DELTA:
            raise ConfigError("standby", f"warm needs {lacking}: before its grant it could write")
        if self._fence not in hook.fences:
            hook.add(self._fence)

    def _name_what_comes_too_late(self, session: Any, asked: dict[str, str]) -> None:
        has = session.sparkContext.getConf()
        late = [key for key, value in asked.items() if has.get(key) != str(value) and _is_fixed(session, key)]
        if late:
            self.close()  # once is enough
            message = (
                "%s: the script asks for %s, and its Spark was started before, as a warm standby's: give that to "
                "spark-submit, or make the session in warm_up"
            )
            log.warning(message, self._name, ", ".join(sorted(late)))


def _is_fixed(session: Any, key: str) -> bool:
    """Whether Spark reads it as it starts, and not again."""
    entries = session._jvm.org.apache.spark.internal.config.ConfigEntry
    is_known = key.startswith("spark.hadoop.") or entries.findEntry(key) is not None
    return is_known and key != "spark.app.name" and not session.conf.isModifiable(key)


def _takes_spark(warm_up: WarmUp) -> bool:
    try:
        return bool(inspect.signature(warm_up).parameters)
    except ValueError:  # a builtin
        return False


def _has_delta(session: Any) -> bool:
    return "delta" in str(session.conf.get("spark.sql.extensions", "")).lower()


def _compute(session: Any) -> None:
    """A shuffle, and a Python worker."""
    from pyspark.sql import functions as F

    session.range(100).groupBy(F.col("id") % 4).count().collect()
    plus_one = F.udf(lambda number: number + 1, "long")  # a lambda: workers need not have this package
    session.range(4).select(plus_one("id")).collect()


def _merge(session: Any, table: str) -> None:
    if _has_delta(session):
        rows = session.range(100).selectExpr("id", "id AS value")
        rows.write.format("delta").mode("overwrite").save(table)
        session.sql(_MERGE.format(table=table)).collect()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
