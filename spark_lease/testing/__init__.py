"""For tests of guarded code: a lease in memory. For tests of a store: a clock, a store that fails, the contracts."""

from typing import TYPE_CHECKING, Any

from .clock import VirtualClock
from .lease import MemoryLease, memory_lease
from .store import MemoryStore

if TYPE_CHECKING:
    from .contract import LeaseStoreContract, LockerContract

__all__ = [
    "LeaseStoreContract",
    "LockerContract",
    "MemoryLease",
    "MemoryStore",
    "VirtualClock",
    "memory_lease",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import the contracts on demand: they need pytest; the rest works with any test runner."""
        if name not in ("LeaseStoreContract", "LockerContract"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import contract

        return getattr(contract, name)
