"""What becomes of a call to a `MemoryStore`: for its `plan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_lease.errors import StoreError
from spark_lease.testing import VirtualClock
from spark_lease.testing.store import Fault


def lost_request(call: Callable[[], Any], clock: VirtualClock) -> Any:
    """The store never hears of it."""
    raise StoreError("memory", "the request was lost")


def lost_answer(call: Callable[[], Any], clock: VirtualClock) -> Any:
    """The store does it, and its answer is lost."""
    call()
    raise StoreError("memory", "the answer was lost")


def slow_request(duration: float) -> Fault:
    """The store does it `duration` seconds after it was sent."""

    def fault(call: Callable[[], Any], clock: VirtualClock) -> Any:
        clock.advance(duration)
        return call()

    return fault


def slow_answer(duration: float) -> Fault:
    """The store does it at once and the answer takes `duration` seconds, or the caller was frozen as long."""

    def fault(call: Callable[[], Any], clock: VirtualClock) -> Any:
        answer = call()
        clock.advance(duration)
        return answer

    return fault


def meanwhile(action: Callable[[], object]) -> Fault:
    """While the answer is on its way, `action` happens."""

    def fault(call: Callable[[], Any], clock: VirtualClock) -> Any:
        answer = call()
        action()
        return answer

    return fault
