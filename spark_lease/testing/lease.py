"""A lease for the tests of code that is given one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config.sources import configure
from ..election.locker import locker_over
from ..election.record import new_holder
from ..lease import LocalLease
from .clock import VirtualClock
from .store import MemoryStore


@contextmanager
def memory_lease(name: str = "test", **settings: Any) -> Iterator[LocalLease]:
    """A real Lease that is held in memory, without a store, a process or a thread.

    Its clock stands still, so it never runs out. `lease.lose(Loss.TAKEN)` makes it a lost one. `settings` are those of
    `hold_lease`; what is noted beside a lease, such as run keys, needs a `url`.
    """
    clock, config, holder = VirtualClock(), configure(name=name, **settings), new_holder("test")
    locker = locker_over(MemoryStore(clock), config, clock, holder=holder)
    lease = LocalLease(locker, config, holder=holder, clock=clock)
    lease.acquire()
    try:
        yield lease
    finally:
        lease.close()
