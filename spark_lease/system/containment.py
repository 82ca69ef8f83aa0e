"""Containment: a PID namespace for one guarded command, in which one SIGKILL ends all that it ever started.

```
keeper ── stage ──│── init ── command ── whatever it starts, hides, orphans or runs as another user
                  │   pid 1 of the namespace
```
The kernel kills everything inside before it shows the end of init (pid_namespaces(7)). So one pidfd proves the
end, one signal ends all, and nothing outside can be hit. The parent-death signal (prctl(2)) kills stage with the keeper
and init with stage, even if they are frozen.

It needs CAP_SYS_ADMIN, or a user namespace, in which setuid programs such as sudo do not work.
"""

import contextlib
import ctypes
import errno
import os
import pwd
import signal
from enum import Enum
from pathlib import Path

from .descriptors import readable

_NEWNS, _NEWUSER, _NEWPID = 0x0002_0000, 0x1000_0000, 0x2000_0000  # linux/sched.h
_NOSUID, _NODEV, _NOEXEC, _REC, _SLAVE = 2, 4, 8, 1 << 14, 1 << 19  # linux/mount.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_JVM_FILES = Path("/tmp")
"""Where each JVM has its hsperfdata_USER/PID, whatever TMPDIR says."""


class Namespace(Enum):
    """How a namespace for processes is made."""

    ROOT = _NEWPID
    """With CAP_SYS_ADMIN. The command finds everything as it was, except that it sees no process outside."""
    USER = _NEWPID | _NEWUSER
    """By any user, inside a user namespace that has this user alone: no setuid program works in it."""


class CannotContain(Exception):
    """No such namespace can be made here; the text says which call the kernel refused, and why."""


class Init:
    """The first process of a namespace, as the keeper sees it from outside."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    def fileno(self) -> int:
        """Readable once everything inside has ended."""
        return self._pidfd

    @property
    def ended(self) -> bool:
        return bool(readable([self._pidfd], 0))

    def kill(self) -> None:
        """Have the kernel kill everything inside. Does not block."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)


def make_namespace(kind: Namespace) -> None:
    """Make the next child of this process the init of a new namespace. Raises CannotContain.

    Call it in a process that does nothing else: each later child would start inside too, and none could once init has
    ended.
    """
    if kind is Namespace.ROOT:
        _call("unshare", kind.value)
        return
    user, group = os.geteuid(), os.getegid()
    _call("unshare", kind.value)
    # user_namespaces(7): a user without privileges can map itself alone, and no groups.
    for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        try:
            Path("/proc/self", file).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CannotContain(f"/proc/self/{file}: {error.strerror}") from error


def become_init(stage: int) -> None:
    """Make this process, the first of a new namespace, ready for others. `stage` is a pidfd. Raises CannotContain."""
    end_with(stage)
    _call("unshare", _NEWNS)
    # Slave: later mounts outside are seen inside too, and mounts made here are not seen outside.
    _call("mount", b"none", b"/", None, _REC | _SLAVE, None)
    _call("mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, None)
    with contextlib.suppress(OSError, KeyError, CannotContain):
        _hide_performance_data()


def pid_of(pidfd: int) -> int:
    """The pid of a process here, even if `pidfd` was opened inside a namespace (proc(5), /proc/pid/fdinfo).

    0 without /proc, and for a process that has ended.
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pid:"):
                return max(int(line.removeprefix("Pid:")), 0)
    return 0


def _hide_performance_data() -> None:
    """Give each namespace its own folder: two JVMs with one pid, in two namespaces, would write to one file."""
    folder = _JVM_FILES / f"hsperfdata_{pwd.getpwuid(os.geteuid()).pw_name}"
    folder.mkdir(mode=0o755, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_uid == os.geteuid():  # in a folder for all users, it may be another user's
            place = f"/proc/self/fd/{fd}".encode()
            _call("mount", b"none", place, b"tmpfs", _NOSUID | _NODEV | _NOEXEC, b"mode=755,size=64m")
    finally:
        os.close(fd)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent (a pidfd) ends; end now if that has ended already."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    if readable([parent], 0):
        os._exit(128 + signal.SIGKILL)


def _call(name: str, *arguments: int | bytes | None) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise CannotContain(f"{name}: not in this C library")
    if function(*arguments):
        number = ctypes.get_errno()
        # namespaces(7): ENOSPC is a limit, which an administrator has set.
        why = "a limit in /proc/sys/user" if number == errno.ENOSPC else os.strerror(number)
        raise CannotContain(f"{_described(name, arguments)}: {why}")


def _described(name: str, arguments: tuple[int | bytes | None, ...]) -> str:
    if name == "unshare":
        names = {_NEWUSER: "CLONE_NEWUSER", _NEWPID: "CLONE_NEWPID", _NEWNS: "CLONE_NEWNS"}
        return f"unshare({' | '.join(text for bit, text in names.items() if int(arguments[0] or 0) & bit)})"
    return f"mount {os.fsdecode(bytes(arguments[1] or b''))}" if name == "mount" else name
