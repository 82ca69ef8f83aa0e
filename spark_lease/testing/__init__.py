"""For tests of anybody's locker: a clock to move by hand, a store to break, and the contract of the stores."""

from .clock import VirtualClock
from .contract import LeaseStoreContract, LockerContract
from .store import MemoryStore, lost_answer, lost_request, meanwhile, slow_answer, slow_request

__all__ = [
    "LeaseStoreContract",
    "LockerContract",
    "MemoryStore",
    "VirtualClock",
    "lost_answer",
    "lost_request",
    "meanwhile",
    "slow_answer",
    "slow_request",
]
