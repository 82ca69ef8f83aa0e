"""The leases that this process holds, in the order of their blocks."""

from __future__ import annotations

from ..lease import Lease

held: list[Lease] = []


def current_lease() -> Lease | None:
    """The lease that this process holds, the innermost if there are several; for code that was not handed one."""
    return held[-1] if held else None


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in held]
