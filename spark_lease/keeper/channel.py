"""The messages between driver and keeper: one JSON object each, with open files attached (unix(7)).

It is a socket pair, so no other process can read or write. A password goes this way, never by argv or environment.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from ..system.descriptors import HasFileno, readable

log = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds for the other process to start its Python and send its first message, even on a loaded machine."""
_LARGEST = 1 << 17
_MOST_FILES = 16


class Closed(Exception):
    """The other end is gone, or sends nothing that can be understood."""


class Channel:
    """One end of the connection. Messages stay whole and in order."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._said_full = connection, False

    @staticmethod
    def pair() -> tuple[Channel, Channel]:
        """Make two ends. Neither gets the number of a closed standard stream: a child's own stream would replace it."""
        low = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        high = [socket.socket(fileno=fcntl.fcntl(each.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)) for each in low]
        for each in low:
            each.close()
        return Channel(high[0]), Channel(high[1])

    @staticmethod
    def inherited(fd: int) -> Channel:
        """The end that this process inherited as `fd`. Raises Closed if `fd` is no such socket."""
        try:
            connection = socket.socket(fileno=os.dup(fd))  # a low number, whatever it was before
            os.close(fd)
        except OSError as error:
            raise Closed(f"descriptor {fd} is no socket") from error
        if (connection.family, connection.type) != (socket.AF_UNIX, socket.SOCK_SEQPACKET):
            connection.detach()
            raise Closed(f"descriptor {fd} is a socket of another kind")
        connection.set_inheritable(False)
        return Channel(connection)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> None:
        """Send without blocking. Raises Closed, also if the reader does not read and the buffer is full."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        try:
            self._socket.sendmsg([json.dumps(message).encode()], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError as error:
            raise Closed(str(error)) from error

    def tell(self, message: Mapping[str, Any], files: Sequence[int] = ()) -> bool:
        """Send; False if the other end is closed. A frozen or dead process reads nothing any more."""
        with contextlib.suppress(Closed):
            self.send(message, files)
            return True
        return False

    def receive(self, timeout: float, woken: BinaryIO | None = None) -> tuple[dict[str, Any], list[int]] | None:
        """The next message and its files, without those for which no descriptor is free. None if no message arrives
        within `timeout` seconds, or before `woken` becomes readable. Raises Closed, also once `woken` is closed."""
        try:
            waiting: list[HasFileno] = [self._socket, *([woken] if woken else [])]
            ready = readable(waiting, timeout)
            if woken and woken in ready:
                woken.read(8)
            if self._socket not in ready:
                return None
            try:
                data, files, flags = self._read()
            except ConnectionResetError:
                # Linux first reports, once, that the other end closed with a message unread. Its last messages follow.
                data, files, flags = self._read()
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is None:  # a program's signal handler has raised it
                raise
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the other end is gone")
        if flags & socket.MSG_TRUNC:
            raise Closed("a message that is too long")
        if flags & socket.MSG_CTRUNC and not self._said_full:
            self._said_full = True
            log.warning("no descriptor is free (ulimit -n): what is started now may outlive a crash")
        try:
            message = json.loads(data)
        except ValueError as error:
            raise Closed("a message that is no JSON") from error
        if not isinstance(message, dict):
            raise Closed("a message that is no object")
        return message, files

    def _read(self) -> tuple[bytes, list[int], int]:
        # Not socket.recv_fds(), which ignores its flags: a process that is started meanwhile would inherit the files.
        room = socket.CMSG_LEN(_MOST_FILES * array.array("i").itemsize)
        data, beside, flags, _ = self._socket.recvmsg(_LARGEST, room, socket.MSG_CMSG_CLOEXEC)
        files = array.array("i")
        for level, kind, rights in beside:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                files.frombytes(rights[: len(rights) - len(rights) % files.itemsize])
        return data, list(files), flags

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()
