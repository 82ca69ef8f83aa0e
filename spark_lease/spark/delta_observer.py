"""The hook by which every Delta transaction of a driver asks the fences of this process.

Delta calls the observer of a thread when a transaction starts, and before it commits (TransactionExecutionObserver, a
Java interface of Delta's main source; only `DeltaLog.startTransaction` makes transactions). Our observer is in every
thread of the JVM, those of native streams included, because we replace the ThreadLocal itself. An observer is a Python
object, so a JVM whose Python is frozen or dead commits nothing. Delta itself refuses a transaction that was under way
at a claim, and calls the observer just before it raises: then we look whether a claim is the reason.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import NotMaster, SparkLeaseError
from ..fencing.delta.tables import DeltaFence
from .jvm import spark_context

NO_DELTA = "Delta"
"""Returned by `install` if the JVM has no Delta Lake: there is nothing to fence."""
WARM_UP = "spark_lease.warm_up"
"""Local property of a JVM thread that warms up, and of everything that it starts: the name of the lease."""
_DELTA = "org.apache.spark.sql.delta."
_OBSERVER = "TransactionExecutionObserver"
_SETTER = "_setter_$threadObserver_$eq"
_SET_OBSERVER = "executionObserver_$eq"
"""Sets the observer of an OptimisticTransaction."""
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Databricks sets it in each of its drivers."""
_AT_ONCE = 4
"""Maximum number of tables with a transaction under way on one thread; usually it is one."""
_LAST = 32
_DEEP = 20
"""How far a chain of Java causes is followed: the chain may be a circle."""


class Refusals:
    """The last refusals, which come back as Java errors. After `install` pyspark raises the original errors."""

    def __init__(self) -> None:
        self._last: deque[SparkLeaseError] = deque(maxlen=_LAST)
        self._pyspark_converts: Any = None

    def add(self, error: SparkLeaseError) -> None:
        self._last.append(error)

    def install(self) -> None:
        from pyspark.errors.exceptions import captured  # heavy, but installed: a JVM of pyspark's is calling

        if self._pyspark_converts is None:
            self._pyspark_converts = captured.convert_exception
            captured.convert_exception = self._convert

    def _convert(self, java: Any) -> Any:
        return self._found(java) or self._pyspark_converts(java)

    def _found(self, java: Any) -> SparkLeaseError | None:
        for _ in range(_DEEP):
            if java is None:
                return None
            text = str(java.toString())
            for error in reversed(self._last.copy()):  # other threads may add refusals meanwhile
                if f"{type(error).__name__}: {error}" in text:
                    return error
            java = java.getCause()
        return None


class DeltaObserver:
    """Asks all `fences`, which may change meanwhile, about each transaction of the JVMs that have the hook."""

    def __init__(self) -> None:
        self.fences: tuple[DeltaFence, ...] = ()
        self.ended: tuple[DeltaFence, ...] = ()
        self.standbys: tuple[Callable[[str], None], ...] = ()
        """Each is called with the table of a transaction that begins, and raises until this process is master."""
        self.has_warmed_up = False
        self.scratch: tuple[str, ...] = ()
        """Folders (file:/path/) of warm-ups: a write to a table in one may always begin. Each ends with its Spark."""
        self.refusals = Refusals()
        self._gateways: list[Any] = []
        self._changing = threading.Lock()

    def add(self, fence: DeltaFence) -> None:
        with self._changing:
            self.fences = (*self.fences, fence)

    def stand_by(self, refuse: Callable[[str], None]) -> None:
        """Ask `refuse` too, about each transaction that begins."""
        with self._changing:
            self.standbys, self.has_warmed_up = (*self.standbys, refuse), True

    def forget(self, property: str) -> None:
        """Drop the ended fences of a lease that this process has acquired again."""
        with self._changing:
            self.ended = tuple(each for each in self.ended if each.property != property)

    def discard(self, asked: object) -> None:
        """Stop asking a fence or a standby. The hook stays: no thread has to wait for a JVM that may hang."""
        with self._changing:
            self.fences = tuple(each for each in self.fences if each is not asked)
            self.standbys = tuple(each for each in self.standbys if each != asked)

    def retire(self, fence: DeltaFence) -> None:
        """Ask `fence`, whose lease has ended, from now on only about tables that the next master may have claimed. Does
        not keep it if this process has acquired the same lease again."""
        was_asked = fence in self.fences
        self.discard(fence)
        with self._changing:
            if was_asked and all(each.property != fence.property for each in (*self.fences, *self.ended)):
                self.ended = (*self.ended, fence)

    def allow(self, folder: str) -> None:
        """Let every write to a table in `folder` begin."""
        with self._changing:
            self.scratch = (*self.scratch, folder)

    def install(self, context: Any) -> str:
        """Put the hook into the JVM of a SparkContext, unless it is there. Returns what is missing for it, else ""."""
        gateway = context._gateway
        if problem := _missing(context):  # even if the JVM has the hook: each context has its own settings
            return problem
        if any(known is gateway for known in self._gateways):
            return ""
        from pyspark.java_gateway import ensure_callback_server_started  # heavy, but installed: it made the context

        calls = logging.getLogger("py4j.clientserver")
        if calls.level == logging.NOTSET:
            calls.setLevel(logging.WARNING)  # it logs every call: several for each transaction
        calls.addFilter(_is_no_refusal)
        ensure_callback_server_started(gateway)
        self.refusals.install()
        companion = getattr(getattr(context._jvm.org.apache.spark.sql.delta, _OBSERVER + "$"), "MODULE$")
        setters = [each for each in dir(companion) if each.endswith(_SETTER)]
        if not setters:
            return f"a Delta Lake whose {_OBSERVER} can be set (delta-spark 3.3 or newer)"
        getattr(companion, setters[0])(context._jvm.java.lang.ThreadLocal.withInitial(_Observers(self)))
        self._gateways.append(gateway)
        return ""


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """False for the traceback of a refusal, which is raised in the program as well."""
    return not (record.exc_info and isinstance(record.exc_info[1], SparkLeaseError))


def _missing(context: Any) -> str:
    if _DATABRICKS in os.environ:
        return "an open-source Delta Lake (Databricks' own has no such hook)"
    if not _has_class(context, _DELTA + "DeltaLog"):
        return NO_DELTA
    if type(context._gateway).__name__ != "ClientServer":
        # Else a call from Python runs on another thread of the JVM than the transaction.
        return "a thread of the JVM for each thread of Python (PYSPARK_PIN_THREAD is off)"
    if not _has_class(context, _DELTA + _OBSERVER):
        return f"a Delta Lake with {_OBSERVER} (delta-spark 3.3 or newer)"
    if context.getConf().get("spark.databricks.delta.v2.enableMode", "").upper() == "STRICT":
        return "Delta's v1 write path (spark.databricks.delta.v2.enableMode is STRICT)"
    return ""


def _has_class(context: Any, name: str) -> bool:
    from py4j.protocol import Py4JJavaError  # as above

    loader = context._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        context._jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


class _Observer:
    """Observes one thread of the JVM, or one transaction on `_table`. Called on the Python thread that waits for that
    thread, or on one made for it."""

    _table = ""
    _began_under: tuple[DeltaFence, ...] = ()

    def __init__(self, hook: DeltaObserver) -> None:
        self._hook = hook
        self._begun: deque[str] = deque(maxlen=_AT_ONCE)

    def _of_one(self, table: str, fences: tuple[DeltaFence, ...]) -> _Observer:
        """An observer of one transaction: Delta's later calls do not say which transaction they are about."""
        of_one = copy.copy(self)
        of_one._table, of_one._began_under = table, fences
        return of_one

    def startingTransaction(self, start: Any) -> Any:
        transaction = start.apply()
        table = str(transaction.deltaLog().dataPath().toString())
        if table.startswith(self._hook.scratch):
            return transaction
        if table not in self._begun:
            self._begun.append(table)
        properties = transaction.metadata().configuration()
        with self._told():
            # The local property is that of the JVM thread that calls us.
            if self._hook.has_warmed_up and (name := spark_context()._jsc.sc().getLocalProperty(WARM_UP)):
                raise NotMaster(str(name), table)
            standbys = self._hook.standbys
            for refuse in standbys:
                refuse(table)
            fences = self._hook.fences  # read later: a grant adds its fence before its standby ends
            # A thread left behind by an earlier block may write while a lease for another table happens to be held.
            is_guarded = any(fence.has_known(table) for fence in fences)
            for ended in () if is_guarded else self._hook.ended:
                if ended.has_known(table):
                    newest = _value(properties.get(ended.property))
                    ended.begin_after_the_end(table, newest, is_idle=not (fences or standbys))
            for fence in fences:
                fence.begin(table, _value(properties.get(fence.property)))
        getattr(transaction, _SET_OBSERVER)(self._of_one(table, fences))
        return transaction

    def preparingCommit(self, prepare: Any) -> Any:
        self.beginDoCommit()
        return prepare.apply()

    def beginDoCommit(self) -> None:
        with self._told():
            # Also ask the fences of a block that was left meanwhile: its lease reports that it has ended.
            for fence in dict.fromkeys((*self._began_under, *self._hook.fences)):
                fence.commit(self._table)

    def transactionCommitted(self) -> None:
        self._begun.clear()

    def transactionAborted(self) -> None:
        """Delta is about to raise the reason. If a claim came in between, raise that instead."""
        begun = list(self._begun)
        self._begun.clear()
        with self._told():
            for table in begun:
                for fence in self._hook.fences:
                    fence.aborted(table)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SparkLeaseError as error:
            self._hook.refusals.add(error)
            raise

    def createChild(self) -> _Observer:
        return self

    def equals(self, other: object) -> bool:
        return other is self

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def toString(self) -> str:
        return "spark_lease"

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Ignore all other calls of Delta, of this version or another."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None

    class Java:
        implements = (_DELTA + _OBSERVER,)


def _value(option: Any) -> str | None:
    """The value of a Scala Option, or None."""
    return str(option.get()) if option.isDefined() else None


class _Observers:
    def __init__(self, hook: DeltaObserver) -> None:
        self._hook = hook

    def get(self) -> _Observer:
        return _Observer(self._hook)

    class Java:
        implements = ("java.util.function.Supplier",)
