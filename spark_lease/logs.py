"""The log of a guarded program, where the program has none of its own."""

import logging
import os
import sys

from .clock import iso_text


class _Utc(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return iso_text(record.created)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write what this package logs to standard error, with times in UTC.

    The root logger stays as it is. A program that has handlers there gets our records through them instead.
    """
    ours = logging.getLogger("spark_lease")
    ours.setLevel(level)
    if ours.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_Utc("%(asctime)s spark-lease %(levelname)s %(message)s"))
    handler.addFilter(lambda record: not logging.root.handlers)
    ours.addHandler(handler)


def say(text: str, *, prefix: str = "spark-lease: ") -> None:
    """Write `text` to standard error. If that fails, the command itself goes on."""
    if not sys.stderr:  # started without one
        return
    try:
        sys.stderr.write(f"{prefix}{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # else Python would try to write the rest once more as it ends, and fail
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
