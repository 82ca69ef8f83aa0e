"""The leases that this process holds, in the order of their blocks."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection

from ..config.settings import ENV
from ..errors import ConfigError
from ..lease import Lease

held: list[Lease] = []


def current_lease() -> Lease | None:
    """The lease that this process holds; for code that was not handed one.

    Of several it is the innermost: of those that this thread has entered, else of all.
    """
    found = [lease for lease in held if lease._thread == threading.get_ident()] or held
    return found[-1] if found else None


def refuse_own(name: str, own: Collection[str]) -> None:
    """Raise ConfigError for one of the leases that this process holds, or was started under."""
    if name in own:  # it would wait for its own parent, or for itself, until acquire_timeout
        raise ConfigError("name", f"{name!r} is already held by this process or by one that started it: guard it once")


def inherited_names() -> list[str]:
    """The lease under which this process was started, if it was under one."""
    return [os.environ.get(ENV + "NAME", "")] if ENV + "EPOCH" in os.environ else []


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in held]
