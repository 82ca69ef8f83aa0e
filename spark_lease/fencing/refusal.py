"""What every fence asks of a lease, and what it does about a refusal. A fence stands below the lease and knows no more.

```
 claim    the guarded store remembers my epoch, if it is newer than what it knows; before anything is read
 commit   checks, in the same atomic step, that it still knows none newer; else nothing is written, and Fenced is raised
```
"""

from __future__ import annotations

from ..election.ports import HeldLease
from ..errors import Fenced, Loss


def fenced(lease: HeldLease, where: str, newest: int, advice: str = "") -> Fenced:
    """The error to raise for a write that `where` refused. The lease is lost by it: another is master already."""
    error = Fenced(lease.name, where, lease.epoch, newest, advice)
    lease.lose(Loss.FENCED, str(error))
    return error
