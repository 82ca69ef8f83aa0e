"""A process between a front door and the command that it guards: the command ends with the front door.

```
contained                                            without a namespace
keeper ── stage ──│── supervisor ── command          keeper ── kill pipe ─────────────┐
                  │   (init of the namespace)         └── supervisor: holds its end    │
                  │    └── orphans                         └── command, own group  <───┘
                                                           └── orphans
```
It is forked before anything else runs in the front door, so it costs no start and shares its memory. It ends after its
last child. Contained, its end proves that nothing of the command is left, and a SIGKILL to it ends everything. Without
a namespace, processes that left the command's group are searched for among the descendants of the front door.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from ..clock import Clock
from ..config.settings import ENV
from ..errors import ConfigError
from ..system.containment import CannotContain, Init, Namespace, pid_of
from ..system.kernel import KillPipe, adopts_orphans
from ..system.processes import tree
from .channel import START_TIMEOUT, Channel, Closed
from .guarded_work import ContainedWork, GuardedWork, SearchedWork
from .supervisor_process import SupervisorProcess

log = logging.getLogger(__name__)

HOLDER = ENV + "HOLDER"
NO_SETUID = "does not work in it: use contain = auto, or root"
_NAMESPACES: Mapping[str, Sequence[Namespace]] = {
    "auto": (Namespace.ROOT,),
    "required": (Namespace.ROOT, Namespace.USER),
    "off": (),
}
"""The namespaces to try for each value of the setting `contain`."""


def contained(command: Sequence[str], contain: str, *, own_group: bool = True) -> Supervisor | None:
    """A supervisor with a namespace, as the setting `contain` says; None if that says no, or none can be made.

    Raises ConfigError if one is required and cannot be made.
    """
    problems = []
    for namespace in _NAMESPACES[contain]:
        try:
            supervisor = Supervisor(command, namespace=namespace, own_group=own_group)
        except CannotContain as error:
            problems.append(str(error))
            continue
        if namespace is Namespace.USER:
            _tell_of_setuid(command[0], supervisor)
        return supervisor
    if contain == "required":
        why = " and ".join(dict.fromkeys(problems))
        raise ConfigError("contain", f"is required, and this machine does not allow it: {why}")
    return None


def why_not_contained(namespace: Namespace) -> str:
    """Why no such namespace can be made, found by trying to make one; empty if it can."""
    try:
        Supervisor([], namespace=namespace).dismiss()
    except CannotContain as error:
        return str(error)
    return ""


def _tell_of_setuid(program: str, supervisor: Supervisor) -> None:
    """Refuse a setuid program, and warn of those that it may start."""
    found = shutil.which(program)
    if found and os.stat(found).st_mode & stat.S_ISUID:
        supervisor.dismiss()
        raise ConfigError("contain", f"is required, which takes a user namespace here, and {program} {NO_SETUID}")
    log.info("contained in a user namespace: sudo and every other setuid program %s", NO_SETUID)


class Supervisor:
    """The keeper's side of the supervisor. Make it while this process has one thread."""

    def __init__(self, command: Sequence[str], *, namespace: Namespace | None = None, own_group: bool = True) -> None:
        """`own_group`: the command gets a process group of its own, and no terminal to read. Raises CannotContain."""
        self.init: Init | None = None
        self.adopts = True
        """False if orphans of the command cannot be adopted here, so that the supervisor's end proves less."""
        self._environ: Mapping[str, str] = {}
        # A shell may have started helpers before it became this process by exec.
        self._neighbours = {each.identity for each in tree(os.getpid())}
        self._channel, theirs = Channel.pair()
        keeper = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._channel.close()
                supervising = SupervisorProcess(theirs, command, own_group=own_group)
                if namespace:
                    supervising.contain(keeper, namespace)
                supervising.run(0 if namespace else keeper)
            finally:
                os._exit(1)
        theirs.close()
        if namespace:
            self.init = self._await_init()
        else:
            self.adopts = adopts_orphans()

    def start(self, environ: Mapping[str, str], kill_pipe: KillPipe | None = None) -> int:
        """Start the command with `environ` added to our environment, and return its pid. Raises OSError.

        If it is not contained, the `kill_pipe` ties its process group to us.
        """
        self._environ = environ
        self._channel.tell({"environ": dict(environ)})
        pid = self._hear_pid()
        pipe_end = kill_pipe.pipe_end(-pid) if kill_pipe and not self.init else None
        self._channel.tell({"go": True}, [pipe_end.fd] if pipe_end else [])
        # Nothing heard: it may run, so that the lease must not be released as if it did not.
        with contextlib.suppress(Closed):
            received = self._channel.receive(START_TIMEOUT)
            if received and (number := int(received[0]["errno"])):
                raise OSError(number, os.strerror(number))
        return pid

    def work(self, pid: int, clock: Clock) -> GuardedWork:
        """All that the command `pid` started."""
        if self.init:
            return ContainedWork(self.init, self._channel, clock)
        environment = b"" if self.adopts else f"{HOLDER}={self._environ.get(HOLDER, '')}".encode()
        return SearchedWork(pid, self.pid, clock, neighbours=self._neighbours, found_by=environment)

    def await_end(self) -> int | None:
        """Wait until the command has ended; its status of waitpid(2), None if the supervisor was killed too."""
        with contextlib.suppress(Closed):
            while True:
                received = self._channel.receive(START_TIMEOUT)
                if received and "ended" in received[0]:
                    return int(received[0]["ended"])
        return None

    def dismiss(self) -> None:
        """Let the supervisor end, if no command was started."""
        self._channel.close()

    def _await_init(self) -> Init:
        notice: dict[str, Any] = {}
        init: Init | None = None
        try:
            while not (init and "inside" in notice):
                received = self._channel.receive(START_TIMEOUT)
                if received is None:
                    raise CannotContain(f"no answer within {START_TIMEOUT:g} s")
                notice |= received[0]
                if received[1]:
                    init = Init(*received[1])
                if "failed" in notice:
                    raise CannotContain(notice["failed"])
        except (Closed, CannotContain) as error:
            self._channel.close()
            os.waitpid(self.pid, 0)
            raise CannotContain(str(error)) from error
        return init

    def _hear_pid(self) -> int:
        try:
            received = self._channel.receive(START_TIMEOUT)
        except Closed as error:
            raise OSError(str(error)) from error
        if received is None:
            raise OSError(f"the supervisor gives no answer within {START_TIMEOUT:g} s")
        message, files = received
        if "errno" in message:
            raise OSError(message["errno"], os.strerror(message["errno"]))
        pid = int(message["pid"])
        for pidfd in files:  # inside, its pid is another
            pid = pid_of(pidfd)
            os.close(pidfd)
        return pid
