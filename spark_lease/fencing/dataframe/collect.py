"""Rows of a DataFrame in the driver: all at once where they are few, else batch by batch while Spark still computes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pyarrow

_AT_ONCE = 10_000
"""Rows of a batch, where Spark gives all of them in one table."""
_FAILED = -1
"""In place of the number of batches: Spark tells why it failed."""


def collected(rows: Any) -> list[Any]:
    """All rows, as batches of Arrow."""
    if hasattr(rows, "toArrow"):
        return list(rows.toArrow().to_batches(_AT_ONCE))
    return list(rows._collect_as_arrow())  # Spark 3.5


@contextmanager
def arriving(rows: Any) -> Iterator[Iterator[Any]]:
    """Batches of Arrow in the order in which Spark's tasks end; the block begins when the first is there.

    What Spark raises the batches raise, at the latest instead of their end. A block that ends by an exception ends
    Spark's job. As with `toArrow`, all that Spark has computed and that was not taken yet is in memory.
    """
    if not (way := _way()) or not hasattr(rows, "_jdf"):
        yield iter(collected(rows))
        return
    context, tag = rows.sparkSession.sparkContext, f"spark_lease-{uuid.uuid4().hex}"
    context.addJobTag(tag)  # the thread that serves takes it from here
    try:
        *address, server = rows._jdf.collectAsArrowToPython()
    finally:
        context.removeJobTag(tag)
    drain = _Drain(way, tuple(address), server)
    Thread(target=drain.work, name="rows from Spark", daemon=True).start()
    try:
        batches = drain.batches()
        first = next(batches, None)
        yield chain([] if first is None else [first], batches)
    except BaseException as error:  # a Ctrl-C or a demotion as well: no reader is left waiting
        drain.give_up(error)
        Thread(target=_cancel, args=(context, tag), daemon=True).start()  # the JVM may be frozen
        raise


@dataclass(frozen=True)
class _Way:
    """How Spark's own `toArrow` reads what it is sent."""

    connected: Any
    serializer: Any
    unwrapped: Any


def _way() -> _Way | None:
    try:
        from pyspark.errors.exceptions.captured import unwrap_spark_exception
        from pyspark.sql.pandas.serializers import ArrowCollectSerializer, ArrowStreamSerializer
        from pyspark.util import _load_from_socket
    except ImportError:  # before Spark 4
        return None
    waits_for_all = issubclass(ArrowCollectSerializer, ArrowStreamSerializer)  # Spark 4.3
    return _Way(
        _load_from_socket, _BatchesThenOrder if waits_for_all else ArrowCollectSerializer, unwrap_spark_exception
    )


class _BatchesThenOrder:
    """Reads what collectAsArrowToPython() sends as it comes, as ArrowCollectSerializer did until Spark 4.3."""

    def load_stream(self, stream: Any) -> Iterator[Any]:
        from pyspark.serializers import UTF8Deserializer, read_int
        from pyspark.sql.pandas.serializers import ArrowStreamSerializer

        yield from ArrowStreamSerializer().load_stream(stream)
        count = read_int(stream)
        if count == _FAILED:
            raise RuntimeError(UTF8Deserializer().loads(stream))
        yield [read_int(stream) for _ in range(count)]


@dataclass
class _Drain:
    """Takes what Spark sends, however slowly it is wanted: it is sent by Spark's scheduler, which all jobs wait for."""

    way: _Way
    address: tuple[Any, ...]
    server: Any
    found: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    is_wanted: bool = True

    def give_up(self, error: BaseException) -> None:
        """No more rows are taken. A reader that waits for one ends by `error`."""
        self.is_wanted = False
        self.found.put(error)

    def work(self) -> None:
        try:
            self._receive()
            self.found.put(None)
        except Exception as error:  # any error: the reader that waits for a batch raises it
            self.found.put(error)

    def batches(self) -> Iterator[Any]:
        while (each := self.found.get()) is not None:
            if isinstance(each, BaseException):
                raise each
            yield each

    def _receive(self) -> None:
        count, order, broken = 0, None, None
        try:
            with ExitStack() as stack:
                stream = self.way.connected(self.address, self.way.serializer())
                for each in stack.enter_context(stream) if hasattr(stream, "__enter__") else stream:
                    if isinstance(each, pyarrow.RecordBatch):
                        count += 1
                        if self.is_wanted:
                            self.found.put(each)
                    else:
                        order = each
        except Exception as error:  # whatever it is: Spark may know the reason
            broken = error.with_traceback(None)  # which keeps the socket open, and the JVM writing to it
        # A job that failed ends its stream like one that did not: only this raises why.
        with self.way.unwrapped():
            self.server.getResult()
        if broken or order is None or len(order) != count:
            raise broken or RuntimeError(f"Spark sent {count} batches, and an order of {order}")


def _cancel(context: Any, tag: str) -> None:
    with suppress(Exception):  # Spark may be stopped, or gone
        context.cancelJobsWithTag(tag)
