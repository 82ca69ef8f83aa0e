"""The environment that tells guarded work under which lease it runs."""

from __future__ import annotations

from ..config.settings import ENV
from ..fencing.sql.session import session_environment


def announcement(*, name: str, holder: str, epoch: int, run_key: str = "") -> dict[str, str]:
    """The environment that tells guarded work, and its sessions of PostgreSQL, under which lease it runs."""
    variables = {"NAME": name, "HOLDER": holder, "EPOCH": str(epoch), "RUN_KEY": run_key}
    return {ENV + key: value for key, value in variables.items()} | session_environment(name, epoch)
