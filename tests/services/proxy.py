"""A TCP door to a server that can hang, swallow the answers, slam, or cut at a word."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import parse_qs, urlsplit


class Proxy:
    """Forwards a loopback port to the server of `url`; `url` of this object leads through it.

    `mode`: "open" · "stalled" (nothing passes, nothing is closed) · "deaf" (requests pass, answers are swallowed).
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        host = parse_qs(parts.query).get("host", [parts.hostname or "127.0.0.1"])[0]
        port = parts.port or 5432
        self._upstream = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self.mode, self._stall_at, self._deaf_at = "open", b"", b""
        self._cut_at, self._is_done, self.cuts, self.let_in = b"", True, 0, 0
        user = parts.netloc.rpartition("@")[0]
        self.url = f"{parts.scheme}://{user}@127.0.0.1:{self._door.getsockname()[1]}{parts.path}"
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self) -> None:
        self.mode = "stalled"
        self._open.clear()

    def stall_at(self, words: bytes) -> None:
        """Stall as soon as a request has `words` in it."""
        self._stall_at = words

    def cut_before(self, words: bytes) -> None:
        """Break every connection in place of the next request with `words` in it; new ones are let in."""
        self._cut_at, self._is_done = words, False

    def cut_after(self, words: bytes) -> None:
        """Break every connection in place of the answer to the next request with `words` in it."""
        self._cut_at, self._is_done = words, True

    def swallow_answers(self) -> None:
        self.mode = "deaf"

    def swallow_answers_from(self, words: bytes) -> None:
        """Swallow all answers as soon as a request has `words` in it."""
        self._deaf_at = words

    def reopen(self) -> None:
        self.mode = "open"
        self._open.set()

    def slam(self) -> None:
        """Break every connection; new ones are let in."""
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self._open.set()
        self._door.close()
        self.slam()

    def _cut(self) -> None:
        self._cut_at, self.mode = b"", "open"
        self.cuts += 1
        self.slam()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                self.let_in += 1
                family = socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET
                server = socket.socket(family)
                server.connect(self._upstream)
                self._sockets += [client, server]
                for source, sink, answers in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._forward, args=(source, sink, answers), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._stall_at and self._stall_at in data:
                    self._stall_at = b""
                    self.stall()
                if self._deaf_at and self._deaf_at in data:
                    self._deaf_at = b""
                    self.swallow_answers()
                if self._cut_at and self._cut_at in data and not answers:
                    if not self._is_done:
                        self._cut()
                        break
                    self.mode = "cutting"
                elif answers and self.mode == "cutting":
                    self._cut()
                    break
                self._open.wait()
                if not (answers and self.mode == "deaf"):
                    sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.close()
