"""Ends what a dead driver has left on a Spark Connect server: the server would go on without it."""

import json
import logging
import subprocess

from ..system.python import import_path, start_python

log = logging.getLogger(__name__)

_CODE = (
    "import json, sys; told = json.loads(sys.stdin.readline()); sys.path[:] = told['path']; "
    "from spark_lease.spark.connect import end_session; end_session(told['lease'], told['address'])"
)
_started: list[subprocess.Popen[bytes]] = []
"""Python complains of a process that it forgets while it runs."""


def end_server_session(lease: str, address: str) -> None:
    """Start a process that ends the session, and return at once. `address`, which may hold a token, goes by a pipe."""
    try:
        process = start_python(_CODE, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        _started.append(process)
        if process.stdin:
            with process.stdin as pipe:
                pipe.write(json.dumps({"path": import_path(), "lease": lease, "address": address}).encode() + b"\n")
    except OSError as error:
        log.warning("%s: cannot end what the driver has left on its Spark Connect server: %s", lease, error)
