"""The only place that reads a clock.

Deadlines use CLOCK_BOOTTIME, which no one can set and which counts while the machine is suspended. The wall clock is
for people to read, and decides nothing.
"""

import re
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

# macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC stands still during sleep.
_BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LONGEST_WAIT = 3600.0
_LAST = 253402300799.999


class Clock(Protocol):
    """The clock of the policy: `BootClock`, or `spark_lease.testing.VirtualClock` in tests."""

    def now(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def ahead(self) -> float:
        """Seconds by which this machine's wall clock is ahead of `now()`. It changes only if the wall clock is set, as
        after the pause of a virtual machine, during which `now()` may have stood still.
        """
        ...

    def wait(self, event: threading.Event, timeout: float) -> bool:
        """Wait until `event` is set or `timeout` seconds passed; True if it is set. May return early."""
        ...


class BootClock:
    """The machine's clock since boot."""

    def now(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def ahead(self) -> float:
        # Not time.time(): libraries that simulate another day replace it.
        return time.clock_gettime(time.CLOCK_REALTIME) - self.now()

    def wait(self, event: threading.Event, timeout: float) -> bool:
        return event.wait(min(max(timeout, 0.0), _LONGEST_WAIT))


def wall_time() -> float:
    """Seconds since 1970, to be shown and logged, never to be compared with a deadline."""
    return time.time()


def span(duration: float) -> timedelta:
    """`duration` seconds as a timedelta."""
    return timedelta(seconds=duration)


def utc_text(instant: float) -> str:
    """`instant`, in seconds since 1970, as SQL and Delta write a timestamp in UTC; at most the end of 9999."""
    return f"{datetime.fromtimestamp(min(max(instant, 0.0), _LAST), UTC):%Y-%m-%d %H:%M:%S.%f}"


def iso_text(instant: float) -> str:
    """`instant`, in seconds since 1970, in ISO 8601 and UTC: 2026-11-20T06:30:00.250Z."""
    return f"{utc_text(instant)[:23].replace(' ', 'T')}Z"


def seconds_of(text: str) -> float:
    """90, 90s, 15m, 36h, 7d, 2w in seconds, or what else Python takes for a number. Raises ValueError."""
    if not (found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text)):
        return float(text)
    return float(found[1]) * _UNITS[found[2]]


def instant_of(text: str, *, now: float) -> float:
    """Seconds since 1970 of a date or time in UTC (2026-11-20, 2026-11-20T06:30), or so long before `now` (36h, 7d).

    Raises ValueError for anything else.
    """
    if text[-1:] in tuple("smhdw"):
        return now - seconds_of(text)
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
