"""The log of a guarded program, where the program has none of its own."""

import logging

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
