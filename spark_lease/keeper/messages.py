"""Sends exceptions and log lines from the keeper to its driver.

Both ends are here: `refusal` and `refused`, and `ToDriver`, whose lines `client.py` logs.
"""

import contextlib
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Mapping
from typing import Any

from .. import errors
from ..errors import LeaseLost, Loss, SparkLeaseError, StoreError
from .channel import Channel, Closed

LAST_WORDS = 0.25
"""Seconds that a driver gets to report why it ends, if nothing of it can be stopped politely any more."""
AT_ONCE = 0.05
"""Seconds that the driver gets if another contender may be master already."""
STDOUT, STDERR = 1, 2


def refusal(error: Exception) -> dict[str, Any]:
    """The message that makes the other end raise `error`."""
    known = isinstance(error, SparkLeaseError)
    arguments = error.args if known else (f"{type(error).__name__}: {error}",)
    plain = [each if isinstance(each, (int, float)) else str(each) for each in arguments]
    return {"refused": type(error).__name__, "arguments": plain}


def refused(message: Mapping[str, Any]) -> SparkLeaseError:
    """The error of a `refusal`; a StoreError if its class is not one of ours."""
    kind, arguments = getattr(errors, message["refused"], None), message["arguments"]
    if kind is LeaseLost:
        name, epoch, reason, detail = arguments
        return LeaseLost(name, epoch, Loss(reason), detail)
    if isinstance(kind, type) and issubclass(kind, SparkLeaseError):
        return kind(*arguments)
    return StoreError("keeper", " ".join(map(str, arguments)))


class ToDriver(logging.Handler):
    """Sends log records to the driver's log, or to standard error once the driver is gone. Never blocks."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._channel.send({"log": [record.name, record.levelno, record.getMessage()]})
        except Closed:
            say(f"spark-lease {record.levelname} {record.getMessage()}")


class LogThread:
    """Logs lines on a thread of its own: a log handler may block, and the listening thread must go on."""

    def __init__(self, name: str) -> None:
        self._lines: queue.SimpleQueue[tuple[str, int, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._log, name=name, daemon=True)
        self._thread.start()

    def say(self, logger: str, level: int, text: str) -> None:
        self._lines.put((logger, level, text))

    def end(self) -> None:
        """Log the lines that are queued now, and no more. Waits a moment for that: Python may exit right after."""
        self._lines.put(None)
        self._thread.join(LAST_WORDS)

    def _log(self) -> None:
        for logger, level, text in iter(self._lines.get, None):
            logging.getLogger(logger).log(level, "%s", text)


def say(line: str, stream: int = STDERR) -> None:
    """Write a line to a stream that we share with the driver. Never blocks: a writable pipe takes PIPE_BUF bytes.

    Skips a stream that was closed when this Python started: its number may be that of any file by now."""
    was_open = {STDOUT: sys.__stdout__, STDERR: sys.__stderr__}[stream] is not None
    with contextlib.suppress(OSError, ValueError):
        if line and was_open and select.select([], [stream], [], 0)[1]:
            os.write(stream, line.encode()[: select.PIPE_BUF - 1] + b"\n")
