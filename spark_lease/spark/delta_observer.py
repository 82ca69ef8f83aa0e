"""The hook through which every Delta transaction of a driver asks the fences of this process.

Delta tells an observer of the thread when a transaction starts, and before it commits (TransactionExecutionObserver, a
Java interface of Delta's main source; `DeltaLog.startTransaction` is the only place where one is made). Ours stands in
every thread of the JVM, those of native streams included, because the ThreadLocal itself is replaced. An observer is a
Python object, so a JVM whose Python is frozen or dead commits nothing. What was under way at a claim Delta refuses by
itself, and tells us just before it says so: then we look whether that is why.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ..errors import NotMaster, SparkLeaseError
from .jvm import spark_context

NO_DELTA = "Delta"
"""What is missing where there is nothing to fence."""
WARM_UP = "spark_lease.warm_up"
"""Local property of a thread of the JVM that warms up, and of what it starts: the name of the lease."""
_DELTA = "org.apache.spark.sql.delta."
_OBSERVER = "TransactionExecutionObserver"
_SETTER = "_setter_$threadObserver_$eq"
_SET_OBSERVER = "executionObserver_$eq"
"""Sets the observer of an OptimisticTransaction."""
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
"""Set by it in each of its drivers."""
_AT_ONCE = 4
"""Tables with a transaction under way on one thread; most often it is one."""
_LAST = 32
_DEEP = 20
"""How far down a chain of Java causes is followed; they may go in a circle."""


class TransactionFence(Protocol):
    """What is asked about each transaction. Whatever it raises refuses it."""

    property: str
    """The table property that is looked up for `begin`."""

    def begin(self, table: str, newest: str | None) -> None:
        """A transaction on `table` begins, in whose snapshot the property is `newest`."""
        ...

    def commit(self, table: str) -> None:
        """It is about to be committed."""
        ...

    def aborted(self, table: str) -> None:
        """It came to nothing."""
        ...

    def has_known(self, table: str) -> bool:
        """Whether its lease guards `table`, as far as is known."""
        ...


class LastingFence(TransactionFence, Protocol):
    """One that is asked after its lease has ended, too, as long as its process goes on."""

    def begin_after_the_end(self, table: str, newest: str | None, *, is_idle: bool) -> None:
        """A transaction on `table`, which it has known, begins, and no lease of this process is known to guard that.
        `is_idle`: the process has no lease at all."""
        ...


class Refusals:
    """The last that came back as Java errors. After `install` pyspark raises them as what they were."""

    def __init__(self) -> None:
        self._last: deque[SparkLeaseError] = deque(maxlen=_LAST)
        self._pyspark_converts: Any = None

    def add(self, error: SparkLeaseError) -> None:
        self._last.append(error)

    def install(self) -> None:
        from pyspark.errors.exceptions import captured  # heavy, and there: a JVM of pyspark's is calling

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
            for error in reversed(self._last.copy()):  # others may be refused meanwhile
                if f"{type(error).__name__}: {error}" in text:
                    return error
            java = java.getCause()
        return None


class DeltaObserver:
    """Asks all `fences`, which may change meanwhile, about each transaction of the JVMs into which it was put."""

    def __init__(self) -> None:
        self.fences: tuple[TransactionFence, ...] = ()
        self.ended: tuple[LastingFence, ...] = ()
        self.has_warmed_up = False
        self.scratch: tuple[str, ...] = ()
        """Folders (file:/path/) of warm-ups: a write to a table there may always begin. They end with their Spark."""
        self.refusals = Refusals()
        self._gateways: list[Any] = []
        self._changing = threading.Lock()

    def add(self, fence: TransactionFence, *, is_of_warm_up: bool = False) -> None:
        with self._changing:
            self.fences = (*self.fences, fence)
            self.has_warmed_up |= is_of_warm_up

    def forget(self, property: str) -> None:
        """This process has that lease anew: what it had before is over."""
        with self._changing:
            self.ended = tuple(each for each in self.ended if each.property != property)

    def discard(self, fence: TransactionFence) -> None:
        """Ask it no more. The hook stays, and asks nothing: no thread has to wait for a JVM that may hang."""
        with self._changing:
            self.fences = tuple(each for each in self.fences if each is not fence)

    def retire(self, fence: LastingFence) -> None:
        """Its lease has ended: ask it only about what the next master may have claimed by now. Not if this process has
        the same lease anew."""
        was_asked = fence in self.fences
        self.discard(fence)
        with self._changing:
            if was_asked and all(each.property != fence.property for each in (*self.fences, *self.ended)):
                self.ended = (*self.ended, fence)

    def allow(self, folder: str) -> None:
        """Let every write to a table there begin."""
        with self._changing:
            self.scratch = (*self.scratch, folder)

    def install(self, context: Any) -> str:
        """Put it into the JVM of a SparkContext, if it is not there. Returns what is missing for that, else nothing."""
        gateway = context._gateway
        if problem := _missing(context):  # a setting of each context, so that a JVM that has the hook is asked as well
            return problem
        if any(known is gateway for known in self._gateways):
            return ""
        from pyspark.java_gateway import ensure_callback_server_started  # heavy, and there: the context is its own

        calls = logging.getLogger("py4j.clientserver")
        if calls.level == logging.NOTSET:
            calls.setLevel(logging.WARNING)  # it logs every call, and there are some for each transaction
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
    """False for the traceback of what is raised in the program as well."""
    return not (record.exc_info and isinstance(record.exc_info[1], SparkLeaseError))


def _missing(context: Any) -> str:
    if _DATABRICKS in os.environ:
        return "an open-source Delta Lake (Databricks' own has no such hook)"
    if not _has_class(context, _DELTA + "DeltaLog"):
        return NO_DELTA
    if type(context._gateway).__name__ != "ClientServer":
        # Else a call back from Python runs on another thread of the JVM than the transaction.
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
    """Is told what one thread of the JVM does, or one transaction on `_table`. Called on the Python thread that waits
    for it, or on one made for it."""

    _table = ""
    _began_under: tuple[TransactionFence, ...] = ()

    def __init__(self, hook: DeltaObserver) -> None:
        self._hook = hook
        self._begun: deque[str] = deque(maxlen=_AT_ONCE)

    def _of_one(self, table: str, fences: tuple[TransactionFence, ...]) -> _Observer:
        """Delta tells the observer of a transaction what becomes of it, and not of which it is."""
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
            # Of the thread of the JVM that calls us.
            if self._hook.has_warmed_up and (name := spark_context()._jsc.sc().getLocalProperty(WARM_UP)):
                raise NotMaster(str(name), table)
            fences = self._hook.fences
            # A thread that an earlier block has left writes under a lease that happens to be held, of another table.
            is_guarded = any(fence.has_known(table) for fence in fences)
            for ended in () if is_guarded else self._hook.ended:
                if ended.has_known(table):
                    newest = _value(properties.get(ended.property))
                    ended.begin_after_the_end(table, newest, is_idle=not fences)
            for fence in fences:
                fence.begin(table, _value(properties.get(fence.property)))
        getattr(transaction, _SET_OBSERVER)(self._of_one(table, fences))
        return transaction

    def preparingCommit(self, prepare: Any) -> Any:
        self.beginDoCommit()
        return prepare.apply()

    def beginDoCommit(self) -> None:
        with self._told():
            # Of a block that was left meanwhile as well: its lease says that it has ended.
            for fence in dict.fromkeys((*self._began_under, *self._hook.fences)):
                fence.commit(self._table)

    def transactionCommitted(self) -> None:
        self._begun.clear()

    def transactionAborted(self) -> None:
        """Delta is about to raise why. A claim that came in between is told as what it is, in place of that."""
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
        """All else that Delta tells, of this version or another, is of no interest."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: None

    class Java:
        implements = (_DELTA + _OBSERVER,)


def _value(option: Any) -> str | None:
    """What a Scala Option has."""
    return str(option.get()) if option.isDefined() else None


class _Observers:
    def __init__(self, hook: DeltaObserver) -> None:
        self._hook = hook

    def get(self) -> _Observer:
        return _Observer(self._hook)

    class Java:
        implements = ("java.util.function.Supplier",)
