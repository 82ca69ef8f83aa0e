"""The leases that this process holds, in the order of their blocks."""

import threading

from ..config.settings import Config
from ..errors import ConfigError
from ..lease import Lease
from .environment import is_inherited, tell_children

held: list[Lease] = []
_telling = threading.Lock()


def enter(lease: Lease) -> None:
    """The block of `lease` begins, and what this process starts from now on is started under it."""
    held.append(lease)
    _tell_children()


def leave(lease: Lease) -> None:
    """It was left. May be called again."""
    if lease in held:
        held.remove(lease)
    _tell_children()


def _tell_children() -> None:
    with _telling:
        tell_children(held)


def current_lease() -> Lease | None:
    """The lease that this process holds; for code that was not handed one.

    Of several it is the innermost: of those that this thread has entered, else of all.
    """
    found = [lease for lease in held if lease._thread == threading.get_ident()] or held
    return found[-1] if found else None


def refuse_own(config: Config) -> None:
    """Raise ConfigError for one of the leases that this process holds, or was started under."""
    if config.name in held_names() or (config.enabled and is_inherited(config)):
        # It would wait for its own parent, or for itself, until acquire_timeout.
        problem = f"{config.name!r} is already held by this process or by one that started it: guard it once"
        raise ConfigError("name", problem)


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in held]
