"""The deadline of a lease, published by the process that renews it to those that ask whether they may write.

One aligned 64-bit number in shared memory: nanoseconds of CLOCK_BOOTTIME, 0 once the lease is lost. A single number
cannot be torn, so there is no lock and no version; the epoch is fixed for the life of a mapping. A second number, which
is written first, is how far the wall clock was ahead when the renewal was sent.
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
        """`fd` comes from `new_mapping`, here or in another process; the caller may close it afterwards.

        Raises OSError or ValueError if `fd` is no such mapping.
        """
        if os.fstat(fd).st_size != _SIZE:
            raise ValueError("not a mapping of a lease's deadline")
        self._memory = mmap.mmap(fd, _SIZE, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self._cell = memoryview(self._memory).cast("q")

    def publish(self, instant: float, ahead: float = 0.0) -> None:
        """The lease is valid until `instant`, in seconds of CLOCK_BOOTTIME; `inf`: for ever."""
        self._cell[1] = int(ahead * _NS)
        self._cell[0] = _NEVER if instant == math.inf else max(int(instant * _NS), 1)

    def lose(self) -> None:
        self._cell[0] = _LOST

    def disarm(self) -> None:
        """Does nothing: this deadline alone ends no process."""

    @property
    def instant(self) -> float:
        """The published instant, in seconds of CLOCK_BOOTTIME; 0.0: lost."""
        return self._cell[0] / _NS

    @property
    def ahead(self) -> float:
        return self._cell[1] / _NS

    def close(self) -> None:
        self._cell.release()
        self._memory.close()


def shared_with_forks() -> SharedDeadline:
    """A deadline for this process and its forked children: they see a loss or a release at once."""
    fd = new_mapping("spark_lease")
    try:
        return SharedDeadline(fd, writable=True)
    finally:
        os.close(fd)


def new_mapping(name: str) -> int:
    """A descriptor of new shared memory that says "lost"; an unlinked temporary file if memfd is missing.

    `name` shows in /proc/pid/maps of each process that has mapped it, so also of all forked children.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError:
        import tempfile  # needed only without memfd; at the top, every start would pay for it

        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    os.ftruncate(fd, _SIZE)
    return fd
