"""A process between `spark-lease run` and its command, so that the command ends with `run` however that ends.

```
spark-lease run ── wire ──────────────┐    its end is noticed by the minder (pidfd), and by the kernel (wire)
 └ minder: holds the strand            │
    └ command, a group of its own  <───┘    dies with the minder (PR_SET_PDEATHSIG)
       └ whatever it starts                 its orphans become the minder's children, then run's
```
It is forked before anything else runs in `run`, so it costs no start and shares its memory. It ends after its last
child, which proves to `run` that nothing of the command is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from ..processes import kill, tree
from .channel import Channel, Closed
from .death import Watched
from .kernel import Wire, adopt_orphans, die_with_parent

_POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
_LOOK_AGAIN = 0.05
_START_TIMEOUT = 30.0


class Minder:
    """Our side of it. Make it while this process has one thread."""

    def __init__(self, command: Sequence[str]) -> None:
        master = os.getpid()
        self._channel, theirs = Channel.pair()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._channel.close()
                _Minding(theirs, master, command).mind()
            finally:
                os._exit(1)
        theirs.close()
        if sys.platform == "linux":
            adopt_orphans()

    def start(self, environ: Mapping[str, str], wire: Wire | None) -> int:
        """Start the command with `environ` besides ours; the pid of it and of its group, which the `wire` ties to us.

        Raises OSError.
        """
        with contextlib.suppress(Closed):
            self._channel.send({"environ": dict(environ)})
        pid = self._hear("pid")
        strand = wire.strand(-pid) if wire else None
        with contextlib.suppress(Closed):
            self._channel.send({"go": True}, [strand.fd] if strand else [])
        # Nothing heard: it may run, so that the lease must not be released as if it did not.
        with contextlib.suppress(Closed):
            received = self._channel.receive(_START_TIMEOUT)
            if received and (number := int(received[0]["errno"])):
                raise OSError(number, os.strerror(number))
        return pid

    def await_end(self) -> int | None:
        """Wait until the command has ended; what waitpid(2) said, None if the minder was killed as well."""
        with contextlib.suppress(Closed):
            while True:
                received = self._channel.receive(_START_TIMEOUT)
                if received and "ended" in received[0]:
                    return int(received[0]["ended"])
        return None

    def dismiss(self) -> None:
        """Have it end, if no command was started."""
        self._channel.close()

    def _hear(self, key: str) -> int:
        try:
            received = self._channel.receive(_START_TIMEOUT)
        except Closed as error:
            raise OSError(str(error)) from error
        if received is None:
            raise OSError(f"the minder gives no answer within {_START_TIMEOUT:g} s")
        return int(received[0][key])


class _Minding:
    """The minder's own side."""

    def __init__(self, channel: Channel, master: int, command: Sequence[str]) -> None:
        self._ignored = {number for number in _POLITE if signal.getsignal(number) is signal.SIG_IGN}  # by nohup
        for number in _POLITE:
            signal.signal(number, signal.SIG_IGN)  # sent to the whole group: `run` decides what becomes of it
        self._channel, self._command = channel, command
        self._master = Watched(master)
        self._strand: list[int] = []
        self._child = 0
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if sys.platform == "linux":
            adopt_orphans()

    def mind(self) -> NoReturn:
        with contextlib.suppress(Closed):
            order = None
            while order is None and not self._master.ended:
                order = self._channel.receive(1.0)
            if order:
                self._start(order[0]["environ"])
        while self._has_children():
            watched = [self._woken, *([self._master.fileno()] if self._master.fileno() >= 0 else [])]
            if self._master.ended:
                kill([each for each in tree(os.getpid()) if each.pid != os.getpid()])
                watched = [self._woken]
            if self._woken in select.select(watched, [], [], _LOOK_AGAIN if self._master.ended else 1.0)[0]:
                os.read(self._woken, 4096)
        os._exit(0)

    def _start(self, environ: Mapping[str, str]) -> None:
        failed, failing = os.pipe()
        go, going = os.pipe()
        minder = os.getpid()
        self._child = pid = os.fork()
        if not pid:
            try:
                os.close(going)
                self._become(environ, minder, go)
            except OSError as error:
                os.write(failing, str(error.errno).encode())
            finally:
                os._exit(127)
        os.close(failing)
        os.close(go)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here as well: the strand must find the group
        self._channel.send({"pid": pid})
        # Nothing of the command has run yet. If `run` has died meanwhile this raises, and the command never runs.
        received = self._channel.receive(_START_TIMEOUT)
        if received:
            self._strand = received[1]
            os.write(going, b"x")
        os.close(going)
        number = int(os.read(failed, 16) or b"0")
        os.close(failed)
        self._channel.send({"errno": number})

    def _become(self, environ: Mapping[str, str], minder: int, go: int) -> NoReturn:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            die_with_parent(minder)
        signal.set_wakeup_fd(-1)
        for number in {*_POLITE, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ} - self._ignored:
            signal.signal(number, signal.SIG_DFL)
        if sys.stdin is None or sys.stdin.isatty():
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
