"""Descriptors of this process: waiting for many, and how many there may be."""

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
    """Those of `files` that can be read, or have ended, after at most `timeout` seconds (None: without an end).

    Not select(2), which knows no descriptor above 1023. Raises OSError for one that is closed.
    """
    waiting, watched = select.poll(), dict[int, _File]()
    for each in files:
        waiting.register(each, select.POLLIN)
        watched[each if isinstance(each, int) else each.fileno()] = each
    found = waiting.poll(None if timeout is None else max(timeout, 0.0) * 1000)
    if closed := [fd for fd, event in found if event & select.POLLNVAL]:  # which is no end of a process
        raise OSError(errno.EBADF, f"descriptor {closed[0]} is closed")
    return [watched[fd] for fd, _ in found]


def allow_many() -> None:
    """Let this process have as many open as its administrator allows. What it starts may have as many."""
    with contextlib.suppress(OSError, ValueError):  # a sandbox that forbids it
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
