"""Rows of a DataFrame in the driver: all at once where they are few, else batch by batch while Spark still computes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow

_AT_ONCE = 10_000
"""Rows of a batch, where Spark gives all of them in one table."""


def collected(rows: Any) -> list[Any]:
    """All rows, as batches of Arrow."""
    if hasattr(rows, "toArrow"):
        return list(rows.toArrow().to_batches(_AT_ONCE))
    return list(rows._collect_as_arrow())  # Spark 3.5


@contextmanager
def arriving(rows: Any) -> Iterator[Iterator[Any]]:
    """Batches of Arrow in the order in which Spark's tasks end; the block begins when the first is there.

    What Spark raises the batches raise. A block that ends by an exception ends Spark's job.
    """
    if not (sent := _sent()) or not hasattr(rows, "_jdf"):
        yield iter(collected(rows))
        return
    connected, serializer, unwrapped = sent
    context, tag = rows.sparkSession.sparkContext, f"spark_lease-{uuid.uuid4().hex}"
    context.addJobTag(tag)  # the thread that serves takes it from here
    try:
        port, secret, server = rows._jdf.collectAsArrowToPython()
    finally:
        context.removeJobTag(tag)

    def batches(stream: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from (each for each in stream if isinstance(each, pyarrow.RecordBatch))  # last comes their order
        except Exception:
            with unwrapped():
                server.getResult()  # raises the reason
            raise

    with connected((port, secret), serializer()) as stream:
        try:
            found = batches(stream)
            first = next(found, None)
            yield chain([] if first is None else [first], found)
        except BaseException:
            context.cancelJobsWithTag(tag)  # before the socket is closed: somebody may be reading it
            raise


def _sent() -> Any:
    """How Spark's own `toArrow` reads what it is sent, which gives the batches one by one. None before Spark 4."""
    try:
        from pyspark.errors.exceptions.captured import unwrap_spark_exception
        from pyspark.sql.pandas.serializers import ArrowCollectSerializer
        from pyspark.util import _load_from_socket
    except ImportError:
        return None
    return _load_from_socket, ArrowCollectSerializer, unwrap_spark_exception
