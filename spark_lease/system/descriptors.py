"""Waits for many descriptors of this process at once, and raises their limit."""

import contextlib
import errno
import resource
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    def fileno(self) -> int: ...


_File = TypeVar("_File", int, HasFileno)


def readable(files: Iterable[_File], timeout: float | None = None) -> list[_File]:
    """Wait until some of `files` can be read or have ended, `timeout` seconds at most (None: no limit); return those.

    Not by select(2), which knows no descriptor above 1023. Raises OSError for a closed descriptor.
    """
    waiting, watched = select.poll(), dict[int, _File]()
    for each in files:
        waiting.register(each, select.POLLIN)
        watched[each if isinstance(each, int) else each.fileno()] = each
    found = waiting.poll(None if timeout is None else max(timeout, 0.0) * 1000)
    if closed := [fd for fd, event in found if event & select.POLLNVAL]:  # not a process's end
        raise OSError(errno.EBADF, f"descriptor {closed[0]} is closed")
    return [watched[fd] for fd, _ in found]


def allow_many() -> None:
    """Let this process, and those that it starts, open as many files as the administrator allows."""
    with contextlib.suppress(OSError, ValueError):  # a sandbox that forbids it
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
