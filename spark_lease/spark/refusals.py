"""Unwraps an exception that Python raised in a call from the JVM and that came back as a Java error."""

from __future__ import annotations

from collections import deque
from typing import Any

from ..errors import SparkLeaseError

_LAST = 32
_DEEP = 20
"""How far down a chain of Java causes is followed; they may go in a circle."""


class Refusals:
    """The last of them. After `install` pyspark raises them as what they were."""

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
