"""The deadline of a lease, published by the process that keeps it to those who ask whether they may write.

One aligned 64-bit number in shared memory: nanoseconds of CLOCK_BOOTTIME, 0 once the lease is lost. A single number
cannot be torn, so there is no lock and no version; the epoch is fixed for the life of a mapping. Beside it, and written
before it: how far the wall clock was ahead when the renewal was sent.
"""

import math
import mmap
import os

_NS = 1_000_000_000
_SIZE = 16
_LOST = 0
_NEVER = 2**63 - 1


class SharedDeadline:
    """One published deadline; the keeper writes it, all others only read. Implements `Deadline`."""

    def __init__(self, fd: int, *, writable: bool = False) -> None:
        """`fd` is what `new_mapping` gave, here or in another process; it can be closed afterwards.

        Raises OSError or ValueError if it is no such mapping.
        """
        if os.fstat(fd).st_size != _SIZE:
            raise ValueError("not a mapping of a lease's deadline")
        self._memory = mmap.mmap(fd, _SIZE, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self._cell = memoryview(self._memory).cast("q")

    def publish(self, instant: float, ahead: float = 0.0) -> None:
        """The lease is good until `instant`, in seconds of CLOCK_BOOTTIME; `inf`: for ever."""
        self._cell[1] = int(ahead * _NS)
        self._cell[0] = _NEVER if instant == math.inf else max(int(instant * _NS), 1)

    def lose(self) -> None:
        self._cell[0] = _LOST

    def disarm(self) -> None:
        """This alone ends no process."""

    @property
    def instant(self) -> float:
        """What stands there, in seconds of CLOCK_BOOTTIME; 0.0: lost."""
        return self._cell[0] / _NS

    @property
    def ahead(self) -> float:
        return self._cell[1] / _NS

    def close(self) -> None:
        self._cell.release()
        self._memory.close()


def shared_with_forks() -> SharedDeadline:
    """One for this process and all that are forked from it: they see at once that it is lost, or released."""
    fd = new_mapping("spark_lease")
    try:
        return SharedDeadline(fd, writable=True)
    finally:
        os.close(fd)


def new_mapping(name: str) -> int:
    """A descriptor of new shared memory that says "lost"; an unlinked temporary file where there is no memfd.

    `name` shows in /proc/pid/maps of each process that has mapped it, so in those of all forked children.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError:
        import tempfile  # where there is no memfd, and every start would pay for it

        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    os.ftruncate(fd, _SIZE)
    return fd
