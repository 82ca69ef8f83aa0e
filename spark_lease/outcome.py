"""How a guarded program ended: its exit code, and the one JSON line that says so to whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass

from .config import Config
from .errors import ConfigError, Fenced, LeaseHeldByOther, LeaseLost, SparkLeaseError, StoreError
from .lease import Lease

_WORDS = {
    LeaseHeldByOther: "standby",
    LeaseLost: "lost",
    Fenced: "lost",
    StoreError: "unreachable",
    ConfigError: "misconfigured",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """`outcome`: finished, failed, interrupted, standby, lost, unreachable, misconfigured. `epoch` 0: never held."""

    lease: str
    outcome: str
    exit_code: int
    epoch: int = 0
    holder: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def announce(outcome: Outcome) -> None:
    """Print the line. A standard output that is closed or full does not change what happened."""
    try:
        sys.stdout.write(f"{outcome}\n")
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):  # AttributeError: started without one
        with contextlib.suppress(OSError, AttributeError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def ended(lease: Lease, exit_code: int, *, interrupted: bool = False) -> Outcome:
    """The work ran and ended by itself, or because a signal told it to."""
    word = "interrupted" if interrupted else "finished" if exit_code == 0 else "failed"
    return Outcome(lease.name, word, exit_code, lease.epoch, lease.holder)


def refused(config: Config | None, error: SparkLeaseError, lease: Lease | None = None) -> Outcome:
    """The work was not started, or was ended, because of `error`."""
    word = next((word for kind, word in _WORDS.items() if isinstance(error, kind)), "failed")
    return Outcome(
        config.name if config else "",
        word,
        exit_code_of(error, config),
        lease.epoch if lease else 0,
        lease.holder if lease else "",
        str(error),
    )


def exit_code_of(error: SparkLeaseError, config: Config | None) -> int:
    """What a program should end with because of `error`: 75, 69, 78, and for a standby what was configured."""
    if isinstance(error, LeaseHeldByOther) and config:
        return 1 if config.if_held == "fail" else config.standby_exit_code
    return error.exit_code
