"""Turns the refusal of a fence into an error and a loss. It knows the lease only as a `HeldLease`."""

from ..election.ports import HeldLease
from ..errors import Fenced, Loss


def fenced(lease: HeldLease, where: str, newest: int) -> Fenced:
    """Return the error for a write that `where` refused, and lose the lease: another is master already."""
    error = Fenced(lease.name, where, lease.epoch, newest)
    lease.lose(Loss.FENCED, str(error))
    return error
