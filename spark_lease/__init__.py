"""Only one of several redundant Spark applications may write: a lease for PySpark jobs. See README.md."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AlreadyDone,
    ConfigError,
    Fenced,
    LeaseHeldByOther,
    LeaseLost,
    Loss,
    NotMaster,
    RecordUnreadable,
    SparkLeaseError,
    StoreError,
)

if TYPE_CHECKING:
    from .guard.api import hold_lease, leased
    from .guard.held import current_lease
    from .lease import Lease
    from .monitoring.events import LeaseEvent

__version__ = "0.1.0"
__all__ = [
    "AlreadyDone",
    "ConfigError",
    "Fenced",
    "Lease",
    "LeaseEvent",
    "LeaseHeldByOther",
    "LeaseLost",
    "Loss",
    "NotMaster",
    "RecordUnreadable",
    "SparkLeaseError",
    "StoreError",
    "current_lease",
    "hold_lease",
    "leased",
]
_WHERE = {
    "hold_lease": "guard.api",
    "leased": "guard.api",
    "LeaseEvent": "monitoring.events",
    "current_lease": "guard.held",
    "Lease": "lease",
}

if not TYPE_CHECKING:  # for which every name would be one

    def __getattr__(name: str) -> Any:
        """What is imported when it is first asked for (PEP 562): `spark-lease --help` needs none of it."""
        if name not in _WHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f".{_WHERE[name]}", __name__), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return [*globals(), *_WHERE]
