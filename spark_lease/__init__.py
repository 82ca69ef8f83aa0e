"""Only one of several redundant Spark applications may write: a lease for PySpark jobs. See README.md."""

from .doors import hold_lease, leased
from .errors import (
    AlreadyDone,
    ConfigError,
    Fenced,
    LeaseHeldByOther,
    LeaseLost,
    Loss,
    RecordUnreadable,
    SparkLeaseError,
    StoreError,
)
from .events import LeaseEvent
from .guard import current_lease
from .lease import Lease

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
    "RecordUnreadable",
    "SparkLeaseError",
    "StoreError",
    "current_lease",
    "hold_lease",
    "leased",
]
