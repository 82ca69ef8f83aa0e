"""A process between a front door and the command that it guards: the command ends with the front door.

```
contained                                            where no namespace can be had
keeper ── stage ──│── supervisor ── command          keeper ── kill pipe ─────────────┐
                  │   (init of the namespace)         └── supervisor: holds its end    │
                  │    └── orphans                         └── command, own group  <───┘
                                                           └── orphans
```
It is forked before anything else runs in the front door, so it costs no start and shares its memory. It ends after its
last child. Contained, its end is the proof that nothing of the command is left, and a SIGKILL to it ends everything;
without a namespace, what left the command's group is searched for among the descendants of the front door.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NoReturn, Protocol

from ..clock import Clock
from ..config.settings import ENV
from ..errors import ConfigError
from ..system.containment import CannotContain, Init, Namespace, become_init, end_with, make_namespace, pid_of
from ..system.kernel import KillPipe, adopts_orphans, die_with_parent
from ..system.processes import Process, kill, look, proc_file, processes, tree
from .channel import Channel, Closed
from .death import Watched
from .guarded_processes import GuardedProcesses

log = logging.getLogger(__name__)

_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
_LOOK_AGAIN, _LOOK_SOON, _AT_ONCE = 0.05, 0.005, 0.02
_START_TIMEOUT = 30.0
_NEVER = threading.Event()
HOLDER = ENV + "HOLDER"
NO_SETUID = "does not work in it: use contain = auto, or root"
_NAMESPACES: Mapping[str, Sequence[Namespace]] = {
    "auto": (Namespace.ROOT,),
    "required": (Namespace.ROOT, Namespace.USER),
    "off": (),
}
"""Which to try for each value of the setting `contain`."""


class GuardedWork(Protocol):
    """The command and all that it started. Implements `hold.Work`."""

    def signal(self, number: int) -> None: ...

    def wait_until_over(self, until: float) -> bool: ...

    def kill(self) -> None: ...

    def out_of_reach(self) -> list[Process]:
        """Those of it that have become another user: nothing of ours can end them."""
        ...


def contained(command: Sequence[str], contain: str, *, own_group: bool = True) -> Supervisor | None:
    """A supervisor with a namespace, as the setting `contain` says; None if that says no, or none can be had.

    Raises ConfigError if one is required and cannot be had.
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
    """Why no such namespace can be had, found out by making one; empty if it can."""
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
    """The keeper's side of it. Make it while this process has one thread."""

    def __init__(self, command: Sequence[str], *, namespace: Namespace | None = None, own_group: bool = True) -> None:
        """`own_group`: the command gets a process group of its own, and no terminal to read. Raises CannotContain."""
        self._command, self._own_group = command, own_group
        self.init: Init | None = None
        self.adopts = True
        """False if orphans of the command cannot be inherited here, so that its end proves less."""
        self._environ: Mapping[str, str] = {}
        # A shell may have started helpers before it became this process by exec.
        self._neighbours = {(each.pid, each.started) for each in tree(os.getpid())}
        self._channel, theirs = Channel.pair()
        keeper = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._channel.close()
                supervising = _Supervising(theirs, self._command, own_group=self._own_group)
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
        """Start the command with `environ` besides ours; its pid. Raises OSError.

        Where it is not contained, the `kill_pipe` ties its group to us.
        """
        self._environ = environ
        with contextlib.suppress(Closed):
            self._channel.send({"environ": dict(environ)})
        pid = self._hear_pid()
        pipe_end = kill_pipe.pipe_end(-pid) if kill_pipe and not self.init else None
        with contextlib.suppress(Closed):
            self._channel.send({"go": True}, [pipe_end.fd] if pipe_end else [])
        # Nothing heard: it may run, so that the lease must not be released as if it did not.
        with contextlib.suppress(Closed):
            received = self._channel.receive(_START_TIMEOUT)
            if received and (number := int(received[0]["errno"])):
                raise OSError(number, os.strerror(number))
        return pid

    def work(self, pid: int, clock: Clock) -> GuardedWork:
        """All that the command `pid` started."""
        if self.init:
            return _Contained(self.init, self._channel, clock)
        environment = b"" if self.adopts else f"{HOLDER}={self._environ.get(HOLDER, '')}".encode()
        return _Searched(pid, self.pid, clock, neighbours=self._neighbours, found_by=environment)

    def await_end(self) -> int | None:
        """Wait until the command has ended; what waitpid(2) said, None if the supervisor was killed as well."""
        with contextlib.suppress(Closed):
            while True:
                received = self._channel.receive(_START_TIMEOUT)
                if received and "ended" in received[0]:
                    return int(received[0]["ended"])
        return None

    def dismiss(self) -> None:
        """Have it end, if no command was started."""
        self._channel.close()

    def _await_init(self) -> Init:
        notice: dict[str, Any] = {}
        init: Init | None = None
        try:
            while not (init and "inside" in notice):
                received = self._channel.receive(_START_TIMEOUT)
                if received is None:
                    raise CannotContain(f"no answer within {_START_TIMEOUT:g} s")
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
            received = self._channel.receive(_START_TIMEOUT)
        except Closed as error:
            raise OSError(str(error)) from error
        if received is None:
            raise OSError(f"the supervisor gives no answer within {_START_TIMEOUT:g} s")
        message, files = received
        pid = int(message["pid"])
        for pidfd in files:  # inside it has another number
            pid = pid_of(pidfd)
            os.close(pidfd)
        return pid


class _Contained:
    """The command and everything else in its namespace."""

    def __init__(self, init: Init, channel: Channel, clock: Clock) -> None:
        self._init, self._channel, self._clock = init, channel, clock

    def signal(self, number: int) -> None:
        with contextlib.suppress(Closed):
            self._channel.send({"signal": number})

    def wait_until_over(self, until: float) -> bool:
        while not self._init.ended and (left := until - self._clock.now()) > 0:
            select.select([self._init], [], [], left)
        return self._init.ended

    def kill(self) -> None:
        self._init.kill()

    def out_of_reach(self) -> list[Process]:
        return []


class _Searched:
    """The command and its descendants, as far as they can be found."""

    def __init__(
        self, group: int, supervisor: int, clock: Clock, *, neighbours: set[tuple[int, int]], found_by: bytes = b""
    ) -> None:
        """`found_by` is what the command found in its environment, if that has to tell its orphans from others."""
        self._group, self._supervisor, self._clock = group, supervisor, clock
        self._neighbours, self._found_by = neighbours, found_by
        self._ended_with: int | None = None
        head = look(supervisor)
        self._processes = GuardedProcesses(lambda: {supervisor: head.started if head else 0})

    def signal(self, number: int) -> None:
        kill(self._descendants(), number)

    def wait_until_over(self, until: float) -> bool:
        while not (gone := self._all_are_gone()) and (left := until - self._clock.now()) > 0:
            with contextlib.suppress(ProcessLookupError), closing(Watched(self._supervisor)) as supervisor:
                if supervisor.fileno() >= 0:
                    select.select([supervisor], [], [], min(left, _LOOK_AGAIN))
                    continue
            self._clock.wait(_NEVER, min(left, _LOOK_SOON))
        return gone

    def kill(self) -> None:
        # The group first, and most often that is all: to look for those who left it, among very many processes, takes
        # longer than the kernel waits before it ends us as well.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, signal.SIGKILL)
        if not self.wait_until_over(self._clock.now() + _AT_ONCE):
            self.signal(signal.SIGKILL)

    def out_of_reach(self) -> list[Process]:
        self._processes.grow()
        return self._processes.out_of_reach()

    def _descendants(self) -> list[Process]:
        """Those of the supervisor, what we have inherited if it was killed, and the command's group."""
        everything = processes()
        found = [
            each
            for each in everything.values()
            if each.alive
            and (each.pid, each.started) not in self._neighbours
            and (each.parent in (self._supervisor, os.getpid()) or each.group == self._group or self._is_told(each))
        ]
        for parent in found:
            found += [each for each in everything.values() if each.parent == parent.pid and each not in found]
        return [each for each in found if each.alive and each.pid != self._supervisor]

    def _is_told(self, process: Process) -> bool:
        with contextlib.suppress(OSError):
            return bool(self._found_by) and self._found_by in proc_file(process.pid, "environ")
        return False

    def _all_are_gone(self) -> bool:
        """Certain: a process that loses its parent becomes a child of the supervisor, which ends by itself after its
        last one; or ours, if that was killed."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._supervisor:
                    self._ended_with = ended[1]
        if self._ended_with is None:
            return False
        return (self._ended_with == 0 and not self._found_by) or not self._descendants()


class _Supervising:
    """The supervisor's own side."""

    def __init__(self, channel: Channel, command: Sequence[str], *, own_group: bool) -> None:
        self._ignored = {number for number in _POLITE if signal.getsignal(number) is signal.SIG_IGN}  # by nohup
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the front door decides what becomes of it
        self._channel, self._command, self._own_group = channel, command, own_group
        self._is_contained, self._is_listening = False, True
        self._pipe_end: list[int] = []
        self._child = 0

    def contain(self, keeper: int, namespace: Namespace) -> None:
        """Go on as the init of a new namespace. This process stays outside, as its parent, and does not return."""
        try:
            stage, above = os.pidfd_open(os.getpid()), os.pidfd_open(keeper)
            make_namespace(namespace)
            end_with(above)
            if init := os.fork():
                self._channel.send({"init": init}, [os.pidfd_open(init)])
                self._channel.close()
                os.waitpid(init, 0)
                os._exit(0)
            become_init(stage)
        except (AttributeError, OSError, CannotContain) as error:  # AttributeError: a Python without pidfd_open
            self._channel.send({"failed": str(error)})
            os._exit(0)
        self._is_contained = True
        self._channel.send({"inside": True})

    def run(self, keeper: int) -> NoReturn:
        """Start the command once that is ordered, and end after the last child. `keeper` is its pid if this process
        has to watch it, 0 if the kernel does that."""
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._keeper = Watched(keeper) if keeper else None
        if self._keeper:
            adopts_orphans()
        with contextlib.suppress(Closed):
            order = None
            while order is None and not (self._keeper and self._keeper.ended):
                order = self._channel.receive(1.0)
            if order:
                self._start(order[0]["environ"])
        while self._has_children():
            self._attend()
        os._exit(0)

    def _attend(self) -> None:
        """Wait for something to happen, and react to it."""
        watched: list[Any] = [self._woken, *([self._channel] if self._is_listening else [])]
        has_ended = self._keeper is not None and self._keeper.ended
        if has_ended:
            kill([each for each in tree(os.getpid()) if each.pid != os.getpid()])
        elif self._keeper and self._keeper.fileno() >= 0:
            watched.append(self._keeper)
        ready = select.select(watched, [], [], _LOOK_AGAIN if has_ended else 1.0)[0]
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._channel in ready:
            self._listen()

    def _listen(self) -> None:
        try:
            received = self._channel.receive(0.0)
        except Closed:
            self._is_listening = False
            return
        if received and "signal" in received[0] and self._is_contained:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, int(received[0]["signal"]))  # everything inside but this process, and nothing outside

    def _start(self, environ: Mapping[str, str]) -> None:
        failed, failing = os.pipe()
        go, going = os.pipe()
        supervisor = os.getpid()
        self._child = pid = os.fork()
        if not pid:
            try:
                os.close(going)
                self._become(environ, supervisor, go)
            except OSError as error:
                os.write(failing, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(failing)
        os.close(go)
        if self._own_group:
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)  # here as well: the pipe end must find the group
        self._channel.send({"pid": pid}, [os.pidfd_open(pid)] if self._is_contained else [])
        # Nothing of the command has run yet. If the keeper has died meanwhile this raises, and the command never runs.
        received = self._channel.receive(_START_TIMEOUT)
        if received:
            self._pipe_end = received[1]
            os.write(going, b"x")
        os.close(going)
        number = int(os.read(failed, 16) or b"0")
        os.close(failed)
        self._channel.send({"errno": number})

    def _become(self, environ: Mapping[str, str], supervisor: int, go: int) -> NoReturn:
        if self._own_group:
            os.setpgid(0, 0)
        with contextlib.suppress(OSError):  # a sandbox that forbids it
            die_with_parent(supervisor)
        signal.set_wakeup_fd(-1)
        for number in {*_POLITE, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ} - self._ignored:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if self._own_group and (sys.stdin is None or sys.stdin.isatty()):
            # A group in the background that reads a terminal is stopped by it, and would hold the lease for ever.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.read(go, 1):
            os.execvpe(self._command[0], list(self._command), os.environ | environ)
        os._exit(127)

    def _has_children(self) -> bool:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    with contextlib.suppress(Closed):
                        self._channel.send({"ended": found[1]})
        except ChildProcessError:
            return False
        return True
