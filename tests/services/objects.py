"""An S3 of the tests' own: moto in a process of its own, which honours If-None-Match one request after the other.

In the bucket `careless` it ignores If-None-Match, as some servers do. In `forgetful` every second object that it puts
is answered with an error. `locked` refuses everybody, and repeats the key that was shown. `old-one` knows no
conditional puts. From a SIGUSR1 to the next SIGUSR2 all that are put under
a condition are put, and answered with an error.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET, CARELESS, FORGETFUL, LOCKED, OLD = "leases", "careless", "forgetful", "locked", "old-one"
KEY, SECRET = "AKIAOFTHETESTS", "s3cret-of-the-tests"


def options_of(address: str, port: int) -> dict[str, str]:
    """The storage options of a client that is let in."""
    return {
        "aws_endpoint_url": f"http://{address}:{port}",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": "us-east-1",
        "allow_http": "true",
    }


@dataclass
class ObjectServer:
    process: subprocess.Popen[str]
    port: int
    address: str = "127.0.0.1"

    def options(self, **changes: str) -> dict[str, str]:
        return options_of(self.address, self.port) | changes

    def hang(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdout
        self.process.stdout.close()

    def restart(self) -> None:
        """The same address, and nothing in it but its buckets."""
        self.process, self.port = _started(self.port, self.address)


@contextlib.contextmanager
def running_objects(address: str = "127.0.0.1") -> Iterator[ObjectServer]:
    server = ObjectServer(*_started(0, address), address)
    try:
        yield server
    finally:
        server.kill()


def _started(port: int, address: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.services.objects", str(port), address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout
    line = process.stdout.readline()
    assert line, "moto does not start"
    return process, int(line)


App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def _one_by_one(app: App, lies: threading.Event) -> App:
    """Moto looks whether an object is there, and then writes it: two threads of it could both find nothing."""
    one, puts = threading.Lock(), itertools.count()

    def call(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        bucket = environ["PATH_INFO"].split("/")[1]
        if bucket == CARELESS:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if bucket == LOCKED:
            start("403 FORBIDDEN", [("Content-Type", "application/xml")])
            said = environ.get("HTTP_AUTHORIZATION", "")
            return [f"<Error><Code>InvalidAccessKeyId</Code><Message>{said}</Message></Error>".encode()]
        if bucket == OLD and "HTTP_IF_NONE_MATCH" in environ:
            start("501 NOT IMPLEMENTED", [])
            return []
        length = int(environ.get("CONTENT_LENGTH") or 0)
        if length:  # before the lock: a client may hang
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        lying = lies.is_set()
        forgets = (bucket == FORGETFUL or lying) and "HTTP_IF_NONE_MATCH" in environ
        with one:
            answer: list[Any] = []
            body = list(app(environ, lambda *said: answer.append(said)))
            if forgets and answer[0][0].startswith("200") and (lying or next(puts) % 2):
                answer, body = [("500 INTERNAL SERVER ERROR", [])], []
        start(*answer[0])
        return body

    return call


def _serve(port: int, address: str) -> None:
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    for bucket in (BUCKET, CARELESS, FORGETFUL, OLD):
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket(bucket, "us-east-1")
    lies = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: lies.set())
    signal.signal(signal.SIGUSR2, lambda *_: lies.clear())
    app = _one_by_one(DomainDispatcherApplication(create_backend_app), lies)  # type: ignore[arg-type]
    server = make_server(address, port, app, threaded=True)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])
