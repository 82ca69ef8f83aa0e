"""What a fence does about a refusal. It stands below the lease and knows no more of it than `HeldLease`."""

from ..election.ports import HeldLease
from ..errors import Fenced, Loss


def fenced(lease: HeldLease, where: str, newest: int) -> Fenced:
    """The error to raise for a write that `where` refused. The lease is lost by it: another is master already."""
    error = Fenced(lease.name, where, lease.epoch, newest)
    lease.lose(Loss.FENCED, str(error))
    return error
