"""Starts the keeper process.

URL, password and `sys.path` do not go by argv or environment, but through the one socket that the keeper inherits. It
runs in a session of its own, so that Ctrl-C and a signal to our process group do not end it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..config.settings import FRONT_DOOR, Config
from ..election.record import Protection
from ..system.processes import MARK
from ..system.python import import_path, start_python
from .channel import START_TIMEOUT, Channel, Closed
from .guarded_processes import KEEPS
from .messages import refused

log = logging.getLogger(__name__)

_BOOT = (
    "import json, socket, sys; s = socket.socket(fileno=int(sys.argv[1])); "
    "sys.path[:] = json.loads(s.recv(1 << 17))['path']; "
    "from spark_lease.keeper.main import main; main(s.detach())"
)
_running: set[int] = set()


class CannotStart(Exception):
    """No keeper process can be started here; the text says why."""


class Started:
    """Our end of the channel to a keeper, its `Protection`, why that is no stronger, and the holder that it is for.

    `process` is None for a front door, which runs outside the namespace of this process.
    """

    def __init__(self, process: subprocess.Popen[bytes] | None, channel: Channel) -> None:
        """Wait until the keeper is ready. Raises Closed, and the error with which the keeper refuses."""
        self.process, self.channel = process, channel
        while received := channel.receive(START_TIMEOUT):
            match received[0]:
                case {"ready": level, "why": why, "holder": holder}:
                    self.level, self.why, self.holder = Protection(level), str(why), str(holder)
                    return
                case {"refused": _}:
                    raise refused(received[0])
        raise Closed(f"no answer within {START_TIMEOUT:g} s")

    @property
    def name(self) -> str:
        """The name of the keeper process, for logs."""
        return f"pid {self.process.pid}" if self.process else "the spark-lease submit process"

    def wait(self, timeout: float) -> None:
        """Reap the keeper, if it ends within `timeout` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process:
                self.process.wait(timeout)
                _running.discard(self.process.pid)


class FrontDoor:
    """The keeper that started this driver from outside its namespace: `spark-lease submit`, contained."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @staticmethod
    def of_this_process() -> FrontDoor | None:
        """Connect to it, if there is one. Works once: what this process starts has another keeper, or none."""
        address = os.environ.pop(FRONT_DOOR, "")
        if not address:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(START_TIMEOUT)
            connection.connect(f"\0{address}")
            connection.settimeout(None)
        except OSError as error:
            connection.close()
            log.warning("the spark-lease process that started this driver does not answer (%s)", error)
            return None
        return FrontDoor(Channel(connection))

    def begin(self, config: Config) -> Started:
        """Order it to keep the lease for this process. Raises CannotStart."""
        try:
            self._channel.send(_order(config, "", ""))
            return Started(None, self._channel)
        except Closed as error:
            raise CannotStart(f"spark-lease submit, which started this driver: {error}") from error

    def tell(self, outcome: Mapping[str, Any]) -> None:
        """How this process ends, for the line that the front door prints last."""
        self._channel.tell({"outcome": outcome})


def running() -> set[int]:
    """The pids of all keepers of this process: they are not guarded work and must not be killed with it."""
    return set(_running)


def start(config: Config, *, holder: str, mark: str, announces: bool = False) -> Started:
    """Start a keeper and tell it which lease to take for this process. Raises CannotStart.

    `announces`: the keeper writes the outcome file if this process does not.
    """
    ours, theirs = Channel.pair()
    try:
        process = start_python(
            _BOOT,
            str(theirs.fileno()),
            f"{KEEPS} {config.name}",
            environ={key: value for key, value in os.environ.items() if key != MARK},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
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
        ours.send({**_order(config, holder, mark), "announces": announces})
        return Started(process, ours)
    except BaseException as error:
        ours.close()
        process.kill()
        process.wait()
        _running.discard(process.pid)
        if not isinstance(error, Closed):
            raise
        raise CannotStart(f"{sys.executable}: {error} (exit code {process.returncode})") from error


def _order(config: Config, holder: str, mark: str) -> Mapping[str, Any]:
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    if callable(config.on_lost):
        values["on_lost"] = "stop"
    level = logging.getLogger("spark_lease").getEffectiveLevel()
    return {"config": values, "driver": os.getpid(), "holder": holder, "mark": mark, "log_level": level}
