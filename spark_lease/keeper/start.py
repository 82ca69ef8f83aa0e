"""Starting the process that keeps a lease.

It gets nothing by argv or environment: a URL, a password and `sys.path` go through the socket that is its only
inheritance. It is a session of its own, so that Ctrl-C and a signal to our group do not end it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config import Config
from ..processes import MARK, PYTHON, import_path
from .channel import Channel, Closed
from .driver import KEEPS

log = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds that a loaded machine may take to start a Python."""
_BOOT = (
    "import json, socket, sys; s = socket.socket(fileno=int(sys.argv[1])); "
    "sys.path[:] = json.loads(s.recv(1 << 17))['path']; "
    "from spark_lease.keeper.process import main; main(s.detach())"
)
_running: set[int] = set()


class CannotStart(Exception):
    """There is no such process to be had here; the text says why."""


class Started:
    """The process and our end of the channel to it. `level` is its `Protection`."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, level: str) -> None:
        self.process, self.channel, self.level = process, channel, level

    def wait(self, timeout: float) -> None:
        """Bury it, if it ends within `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
            _running.discard(self.process.pid)


def running() -> set[int]:
    """The pids of all such processes of this one: they are no guarded work, and not to be ended with it."""
    return set(_running)


def start(config: Config, *, holder: str, mark: str) -> Started:
    """Start it, and tell it which lease to take for this process. Raises CannotStart."""
    ours, theirs = Channel.pair()
    try:
        process = subprocess.Popen(
            [PYTHON, "-I", "-c", _BOOT, str(theirs.fileno()), f"{KEEPS} {config.name}"],
            env={key: value for key, value in os.environ.items() if key != MARK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[theirs.fileno()],
        )
    except (OSError, ValueError) as error:
        ours.close()
        raise CannotStart(str(error)) from error
    finally:
        theirs.close()
    _running.add(process.pid)
    try:
        ours.send({"path": import_path()})
        ours.send(_order(config, holder, mark))
        level = _level(ours)
    except BaseException as error:
        ours.close()
        process.kill()
        process.wait()
        _running.discard(process.pid)
        if not isinstance(error, Closed):
            raise
        raise CannotStart(f"{sys.executable}: {error} (exit code {process.returncode})") from error
    return Started(process, ours, level)


def _level(channel: Channel) -> str:
    """What it says that it can do. Raises Closed."""
    while received := channel.receive(START_TIMEOUT):
        match received[0]:
            case {"ready": level, "why": why}:
                if why:
                    log.warning("the kernel takes no part in keeping the lease here: %s", why)
                return str(level)
    raise Closed(f"no answer within {START_TIMEOUT:g} s")


def _order(config: Config, holder: str, mark: str) -> Mapping[str, Any]:
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    if callable(config.on_lost):
        values["on_lost"] = "stop"
    level = logging.getLogger("spark_lease").getEffectiveLevel()
    return {"config": values, "driver": os.getpid(), "holder": holder, "mark": mark, "log_level": level}
