"""The environment that tells guarded work under which lease it runs."""

import os
from collections.abc import Iterable

from ..config.settings import ENV, Config
from ..config.urls import redacted
from ..fencing.sql.session import session_environment
from ..lease import Lease
from ..system.processes import look

HELD = ENV + "HELD"
"""Lists the leases under which a process was started, one per line, the outermost first. After a tab: the process that
keeps the lease, if it may end before the started process."""
_INHERITED = os.environ.get(HELD, "")


def announcement(config: Config, *, holder: str = "", epoch: int = 0, run_key: str = "") -> dict[str, str]:
    """The environment that tells guarded work, and its sessions of PostgreSQL, under which lease it runs."""
    variables = {"NAME": config.name, "HOLDER": holder, "EPOCH": str(epoch), "RUN_KEY": run_key}
    held = [*filter(None, [_INHERITED]), *([_line(config)] if epoch else [])]
    return (
        {ENV + k: v for k, v in variables.items()} | {HELD: "\n".join(held)} | session_environment(config.name, epoch)
    )


def tell_children(leases: Iterable[Lease]) -> None:
    """Announce `leases`, and those that this process inherited, to the processes that it starts from now on."""
    kept = [(_line(each._config), _who(each._hold.kept_by)) for each in leases if each._config.enabled]
    lines = [f"{line}\t{who}" for line, who in kept if who]  # else a child could not see the end of the keeping
    os.environ[HELD] = "\n".join(filter(None, [_INHERITED, *lines]))


def is_inherited(config: Config) -> bool:
    """True if this process was started under the lease that `config` names and that lease is still kept."""
    for each in _INHERITED.split("\n"):
        line, _, who = each.partition("\t")
        pid = who.partition(":")[0]
        if line == _line(config) and (not who or (pid.isdigit() and who == _who(int(pid)))):
            return True
    return False


def _line(config: Config) -> str:
    return f"{config.name} of {config.table} in {redacted(config.url)}"


def _who(pid: int) -> str:
    """Identifies process `pid` by its number and start time; empty if it has ended or cannot be seen."""
    found = look(pid)
    return f"{pid}:{found.started}" if found and found.alive else ""
