"""No lock at all, for development: `enabled = false`. Every contender is master, under epoch 0."""

from __future__ import annotations

from ..election.ports import Grant


class Unguarded:
    """Implements `Locker` and excludes no contender."""

    def try_acquire(self) -> Grant:
        return Grant(0)

    def renew(self) -> Grant:
        return Grant(0)

    def release(self) -> bool:
        return True

    def wait(self, timeout: float, poll: float) -> None:
        """Never needed: the first try succeeds."""

    def close(self) -> None:
        """Nothing is open."""
