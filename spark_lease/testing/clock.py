"""A clock that moves only when a test moves it, so that an hour of policy takes no time and no luck."""

import threading
from collections.abc import Callable


class VirtualClock:
    """Implements `Clock`. Waiting moves it; an action planned for an instant runs when the clock gets there."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now, self.jumped = start, 0.0
        self._plans: list[tuple[float, Callable[[], None]]] = []

    def now(self) -> float:
        return self._now

    def ahead(self) -> float:
        """The value of `jumped`: as if the machine, and this clock with it, had been suspended for so long."""
        return self.jumped

    def wait(self, event: threading.Event, timeout: float) -> bool:
        if not event.is_set():
            self.advance(max(timeout, 0.0))
        return event.is_set()

    def at(self, instant: float, action: Callable[[], None]) -> None:
        """Run `action` when the clock reaches `instant`."""
        self._plans.append((instant, action))

    def advance(self, duration: float) -> None:
        """Let `duration` seconds pass, and run on the way the planned actions, in order."""
        end = self._now + duration
        while due := [plan for plan in self._plans if plan[0] <= end]:
            plan = min(due, key=lambda each: each[0])
            self._plans.remove(plan)
            self._now = max(self._now, plan[0])
            plan[1]()
        self._now = max(self._now, end)
