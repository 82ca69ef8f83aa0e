"""What a fence knows of a lease, for tests: epochs are given, and nobody keeps anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_lease.errors import LeaseLost, Loss


@dataclass
class Holder:
    """Implements `HeldLease`."""

    name: str
    epoch: int
    lost: list[Loss] = field(default_factory=list)
    waited: int = 0

    def check(self) -> int:
        if self.lost:
            raise LeaseLost(self.name, self.epoch, self.lost[0])
        return self.epoch

    def wait_certain(self, timeout: float = 0.0) -> int:
        self.waited += 1
        return self.check()

    def lose(self, reason: Loss, detail: str = "") -> None:
        self.lost.append(reason)
