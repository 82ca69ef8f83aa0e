"""The leases that this process holds, in the order of their blocks."""

import functools
import logging
import os
import threading
import warnings

from ..config.settings import Config
from ..errors import ConfigError
from ..lease import Lease
from ..spark.delta_fence import retire_fence
from ..system.python import end_if_python_was_expected
from .environment import is_inherited, tell_children

log = logging.getLogger(__name__)

held: list[Lease] = []
_telling = threading.Lock()


class EnteredOnce:
    """Remembers whether the block of a guard was entered; it is part of that guard and ends with it."""

    def __init__(self, name: str) -> None:
        self._name, self._entered, self._pid = name, threading.Lock(), os.getpid()

    def enter(self) -> None:
        if not self._entered.acquire(blocking=False):
            raise ConfigError("hold_lease", "was entered before: call hold_lease again for each block")

    def __del__(self) -> None:
        # A program that forgot `with` would work on without a lease, unnoticed.
        if not self._entered.locked() and os.getpid() == self._pid:
            problem = f"hold_lease of {self._name!r} was never entered, and guarded nothing"
            warnings.warn(f"{problem}: write `with hold_lease(…) as lease:`", RuntimeWarning, stacklevel=2)


def enter(lease: Lease) -> None:
    """Record that the block of `lease` begins; processes started from now on are started under it."""
    held.append(lease)
    _tell_children()


def leave(lease: Lease) -> None:
    """Record that the block of `lease` was left. May be called again."""
    if lease in held:
        held.remove(lease)
    _tell_children()


def _tell_children() -> None:
    with _telling:
        tell_children(held)


def current_lease() -> Lease | None:
    """The lease that this process holds, for code that was not handed one.

    Of several leases it is the innermost that this thread has entered, else the innermost of all: a warning says so.
    """
    entered = [lease for lease in held if lease._thread == threading.get_ident()]
    if not entered and len(held) > 1:
        _warn_once(held[-1].name, ", ".join(lease.name for lease in held[:-1]))
    found = entered or held
    return found[-1] if found else None


@functools.cache
def _warn_once(innermost: str, others: str) -> None:
    message = "a thread that has entered no block asked for current_lease() and got %s, not %s: %s"
    log.warning(message, innermost, others, "pass it the lease of its block")


def refuse_own(config: Config) -> None:
    """Raise ConfigError if this process holds the lease already, or was started under it.

    Ends this process if it is a copy of this program that was started in place of Python.
    """
    end_if_python_was_expected()
    _let_go_of_a_parents()
    if config.name in held_names() or (config.enabled and is_inherited(config)):
        # Else this guard would wait for its own parent, or for itself, until acquire_timeout.
        problem = f"{config.name!r} is already held by this process or by one that started it: guard it once"
        raise ConfigError("name", problem)


def _let_go_of_a_parents() -> None:
    """Drop leases of a parent that are over: a worker that a block has forked may outlive the block."""
    for lease in [each for each in held if each._pid != os.getpid()]:
        if not lease.remaining():
            retire_fence(lease._config)
            leave(lease)


def held_names() -> list[str]:
    """The leases that this process holds."""
    return [lease.name for lease in held]
