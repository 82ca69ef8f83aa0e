"""A pooler of the tests' own: a session of PostgreSQL goes with each transaction to whoever begins one (protocol 3.0,
"Message Flow"; a server that trusts)."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_STARTUP = 196608


class Pooler:
    """In front of `url`, a loopback one, with so many sessions; `url` of its own."""

    def __init__(self, url: str, sessions: int = 2, *, refuses_options: bool = False) -> None:
        self._server, self._free = urlsplit(url), queue.LifoQueue[socket.socket]()
        self._sockets: list[socket.socket] = []
        self._refuses_options = refuses_options
        self._greeting = b""
        for _ in range(sessions):
            self._free.put(self._session())
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://{self._server.username}@127.0.0.1:{self._door.getsockname()[1]}/postgres"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for each in self._sockets:
            each.close()

    def _session(self) -> socket.socket:
        session = socket.create_connection(("127.0.0.1", self._server.port or 5432))
        self._sockets.append(session)
        words = b"\0".join([b"user", (self._server.username or "").encode(), b"database", b"postgres", b"", b""])
        session.sendall(struct.pack("!ii", len(words) + 8, _STARTUP) + words)
        self._greeting = b"".join(_until_ready(session))
        return session

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            while (start := _start(client))[0] != _STARTUP:
                client.sendall(b"N")  # no encryption
            if self._refuses_options and b"options\0" in start[1]:
                words = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"  # as PgBouncer has it
                client.sendall(b"E" + struct.pack("!i", len(words) + 4) + words)
                client.close()
                return
            client.sendall(self._greeting)
            session: socket.socket | None = None
            try:
                while (message := _message(client))[:1] != b"X":
                    session = session or self._free.get(timeout=10)
                    session.sendall(message)
                    if message[:1] not in b"QS":  # psycopg's Parse, Bind and Execute are answered with their Sync
                        continue
                    answer = b"".join(_until_ready(session))
                    if answer[-1:] == b"I":  # free before its client knows, as with PgBouncer
                        self._free.put(session)
                        session = None
                    client.sendall(answer)
            finally:
                if session:  # its client is gone amid a transaction
                    session.sendall(b"Q" + struct.pack("!i", 13) + b"ROLLBACK\0")
                    b"".join(_until_ready(session))
                    self._free.put(session)


def _until_ready(session: socket.socket) -> Iterator[bytes]:
    while True:
        yield (message := _message(session))
        if message[:1] == b"Z":
            return


def _start(client: socket.socket) -> tuple[int, bytes]:
    length, code = struct.unpack("!ii", _read(client, 8))
    return code, _read(client, length - 8)


def _message(source: socket.socket) -> bytes:
    head = _read(source, 5)
    return head + _read(source, struct.unpack("!i", head[1:])[0] - 4)


def _read(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := source.recv(size - len(data))):
            raise EOFError
        data += more
    return data
