"""The environment that tells guarded work under which lease it runs."""

import os

from ..config.settings import ENV, Config
from ..config.urls import redacted
from ..fencing.sql.session import session_environment

HELD = ENV + "HELD"
"""The leases under which a process was started, the outermost first, a line for each."""


def announcement(config: Config, *, holder: str = "", epoch: int = 0, run_key: str = "") -> dict[str, str]:
    """The environment that tells guarded work, and its sessions of PostgreSQL, under which lease it runs."""
    variables = {"NAME": config.name, "HOLDER": holder, "EPOCH": str(epoch), "RUN_KEY": run_key}
    held = [*filter(None, [os.environ.get(HELD)]), *([_line(config)] if epoch and not is_inherited(config) else [])]
    return (
        {ENV + k: v for k, v in variables.items()} | {HELD: "\n".join(held)} | session_environment(config.name, epoch)
    )


def tell_children(config: Config) -> None:
    """What this process starts from now on is started under the lease that `config` names."""
    if config.enabled:
        os.environ[HELD] = "\n".join([*filter(None, [os.environ.get(HELD)]), _line(config)])


def tell_children_no_more(config: Config) -> None:
    lines = os.environ.get(HELD, "").split("\n")
    if config.enabled and _line(config) in lines:
        lines.remove(_line(config))
        os.environ[HELD] = "\n".join(lines)


def is_inherited(config: Config) -> bool:
    """True if this process was started under the lease that `config` names."""
    return _line(config) in os.environ.get(HELD, "").split("\n")


def _line(config: Config) -> str:
    return f"{config.name} of {config.table} in {redacted(config.url)}"
