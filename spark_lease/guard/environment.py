"""The environment that tells guarded work under which lease it runs."""

import os
from collections.abc import Iterable

from ..config.settings import ENV, Config
from ..config.urls import redacted
from ..fencing.sql.session import session_environment
from ..lease import Lease
from ..system.processes import look

HELD = ENV + "HELD"
"""The leases under which a process was started, the outermost first, a line for each; behind a tab which process keeps
it, where that may end before what was started."""
_INHERITED = os.environ.get(HELD, "")


def announcement(config: Config, *, holder: str = "", epoch: int = 0, run_key: str = "") -> dict[str, str]:
    """The environment that tells guarded work, and its sessions of PostgreSQL, under which lease it runs."""
    variables = {"NAME": config.name, "HOLDER": holder, "EPOCH": str(epoch), "RUN_KEY": run_key}
    held = [*filter(None, [_INHERITED]), *([_line(config)] if epoch else [])]
    return (
        {ENV + k: v for k, v in variables.items()} | {HELD: "\n".join(held)} | session_environment(config.name, epoch)
    )


def tell_children(leases: Iterable[Lease]) -> None:
    """Tell what this process starts from now on that it is started under these, and under those of this process."""
    kept = [(_line(each._config), _who(each._hold.kept_by)) for each in leases if each._config.enabled]
    lines = [f"{line}\t{who}" for line, who in kept if who]  # else a child could not see when it is not kept any more
    os.environ[HELD] = "\n".join(filter(None, [_INHERITED, *lines]))


def is_inherited(config: Config) -> bool:
    """True if this process was started under the lease that `config` names, and that is still kept."""
    for each in _INHERITED.split("\n"):
        line, _, who = each.partition("\t")
        pid = who.partition(":")[0]
        if line == _line(config) and (not who or (pid.isdigit() and who == _who(int(pid)))):
            return True
    return False


def _line(config: Config) -> str:
    return f"{config.name} of {config.table} in {redacted(config.url)}"


def _who(pid: int) -> str:
    """The process `pid`: its number, and when it was started; empty if there is none, or it cannot be seen."""
    found = look(pid)
    return f"{pid}:{found.started}" if found and found.alive else ""
