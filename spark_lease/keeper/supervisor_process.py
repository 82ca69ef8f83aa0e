"""The supervisor's own side: it starts the command on order, and ends after its last child."""

import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ..system.containment import CannotContain, Namespace, become_init, end_with, make_namespace
from ..system.descriptors import readable
from ..system.kernel import adopts_orphans, die_with_parent
from ..system.processes import kill, tree
from .channel import START_TIMEOUT, Channel, Closed
from .death import Watched

_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
_LOOK_AGAIN = 0.05


class SupervisorProcess:
    """The process between the front door and its command. Make it right after the fork, and `run` it."""

    def __init__(self, channel: Channel, command: Sequence[str], *, own_group: bool) -> None:
        self._ignored = {number for number in _POLITE if signal.getsignal(number) is signal.SIG_IGN}  # by nohup
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)  # sent to the whole group: the front door decides what to do
        self._channel, self._command, self._own_group = channel, command, own_group
        self._is_contained, self._is_listening = False, True
        self._pipe_end: list[int] = []
        self._child = 0

    def contain(self, keeper: int, namespace: Namespace) -> None:
        """Go on as the init of a new namespace. This process stays outside, as init's parent, and does not return."""
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
        """Start the command on order, and end after the last child. `keeper` is the keeper's pid if this process must
        watch it, 0 if the kernel does."""
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
        ready = readable(watched, _LOOK_AGAIN if has_ended else 1.0)
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
        try:
            self._child = pid = os.fork()
        except OSError as error:
            self._channel.send({"errno": error.errno})
            raise
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
        received = self._channel.receive(START_TIMEOUT)
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
            # A background group that reads its terminal is stopped, and would hold the lease for ever.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if os.read(go, 1):
            os.execvpe(self._command[0], list(self._command), os.environ | environ)
        os._exit(127)

    def _has_children(self) -> bool:
        try:
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._child:
                    self._channel.tell({"ended": found[1]})
        except ChildProcessError:
            return False
        return True
