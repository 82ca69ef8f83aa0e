"""A sandbox that forbids one system call, as seccomp profiles of containers do: then becomes a command.

python -m tests.support.sandbox CALL ERRNO COMMAND…
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys

_NUMBERS = {  # asm/unistd.h
    "x86_64": {"pidfd_open": 434, "memfd_create": 319, "timer_create": 222, "fcntl": 72, "prctl": 157, "unshare": 272},
    "aarch64": {"pidfd_open": 434, "memfd_create": 279, "timer_create": 107, "fcntl": 25, "prctl": 167, "unshare": 97},
}
CALLS = ("pidfd_open", "memfd_create", "timer_create", "F_SETSIG", "prctl", "unshare")
_F_SETSIG = 10
_LD, _JEQ, _RET = 0x20, 0x15, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction)))


def forbid(call: str, number: int) -> None:
    """Have `call` fail with errno `number` in this process, and in all that it starts."""
    numbers = _NUMBERS[platform.machine()]
    words = [(_LD, 0, 0, 0)]  # seccomp_data: nr, arch, instruction pointer, six arguments of eight bytes
    if call == "F_SETSIG":
        words += [(_JEQ, 0, 3, numbers["fcntl"]), (_LD, 0, 0, 24), (_JEQ, 0, 1, _F_SETSIG)]
    else:
        words += [(_JEQ, 0, 1, numbers[call])]
    words += [(_RET, 0, 0, _ERRNO | number), (_RET, 0, 0, _ALLOW)]
    instructions = (_Instruction * len(words))(*(_Instruction(*each) for each in words))
    program = _Program(len(words), instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    forbid(sys.argv[1], getattr(errno, sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
