"""A lease in memory, for tests of code that is given a lease."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config.sources import configure
from ..election.locker import RecordRules
from ..election.record import new_holder
from ..errors import ConfigError, Loss
from ..holds import LocalHold
from ..lease import Lease
from .clock import VirtualClock
from .store import MemoryStore


class MemoryLease(Lease):
    """A real Lease that is held in memory, and can be lost at any time."""

    def lose(self, reason: Loss, detail: str = "") -> None:
        """Lose it: `check()` raises LeaseLost from now on."""
        self._hold.lose(reason, detail)


@contextmanager
def memory_lease(name: str = "test", **settings: Any) -> Iterator[MemoryLease]:
    """A real Lease that is held in memory, without a store, a process or a thread.

    Its clock stands still, so it never runs out. `lease.lose(Loss.TAKEN)` makes it lost. `settings` are those of
    `hold_lease` except `url`, which raises ConfigError: run keys are noted in a store, beside an existing lease.
    """
    if "url" in settings:
        problem = 'is of no use to a lease in memory: for run keys, hold_lease(…, url="local", keeper="thread")'
        raise ConfigError("url", problem)
    clock, config, holder = VirtualClock(), configure(name=name, **settings), new_holder("test")
    locker = RecordRules(MemoryStore(clock), config, clock, holder=holder)
    hold = LocalHold(locker, config, holder=holder, clock=clock)
    hold.acquire()
    try:
        yield MemoryLease(hold, config, clock)
    finally:
        hold.close()
