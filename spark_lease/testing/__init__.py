"""For tests of guarded code: a lease in memory. For tests of a store: a clock, a store that fails, the contracts."""

from .clock import VirtualClock
from .contract import LeaseStoreContract, LockerContract
from .lease import memory_lease
from .store import MemoryStore, lost_answer, lost_request, meanwhile, slow_answer, slow_request

__all__ = [
    "LeaseStoreContract",
    "LockerContract",
    "MemoryStore",
    "VirtualClock",
    "lost_answer",
    "lost_request",
    "meanwhile",
    "memory_lease",
    "slow_answer",
    "slow_request",
]
