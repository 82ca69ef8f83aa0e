"""The leases that this process holds, in the order of their blocks."""

from __future__ import annotations

from collections.abc import Collection

from ..errors import ConfigError
from ..lease import Lease

held: list[Lease] = []


def current_lease() -> Lease | None:
    """The lease that this process holds, the innermost if there are several; for code that was not handed one."""
    return held[-1] if held else None


def refuse_own(name: str, own: Collection[str | None]) -> None:
    """Raise ConfigError for one of the leases that this process holds, or was started under."""
    if name in own:  # it would wait for its own parent, or for itself, until acquire_timeout
        raise ConfigError("name", f"{name!r} is already held by this process or by one that started it: guard it once")


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in held]
