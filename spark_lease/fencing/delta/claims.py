"""Claims many Delta tables side by side, in a process that is killed when its time is over.

A file system or an object store may hang without end, and only the end of the process ends a call that waits for it.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from ...clock import BootClock, Clock
from ...errors import ConfigError, Fenced, FenceUnreachable, SparkLeaseError
from ...system.python import import_path, start_python
from .fence import Claim, claim

_BOOT = (
    "import json, sys; order = json.loads(sys.stdin.readline()); sys.path[:] = order.pop('path'); "
    "from spark_lease.fencing.delta.claims import main; main(order)"
)
_LOOK_AGAIN = 0.1
_LINGER = 2.0
"""Seconds that the process may take to end after it was killed."""

Answer = bool | SparkLeaseError
"""Whether the table exists, or the reason why it could not be claimed."""


def claim_side_by_side(
    wanted: Claim, tables: Collection[str], *, clock: Clock, timeout: float, still_mine: Callable[[], object]
) -> dict[str, Answer]:
    """Claim all `tables` within `timeout` seconds; `still_mine` is called meanwhile, and ends the claims by raising."""
    if not tables:
        return {}
    order = {"path": import_path(), "claim": asdict(wanted), "tables": sorted(tables), "timeout": timeout}
    try:
        process = start_python(_BOOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    except OSError as error:
        return dict.fromkeys(
            tables, FenceUnreachable("Delta", f"no process can be started for claims: {error.strerror}")
        )
    found: dict[str, Answer] = {}
    reading = threading.Thread(target=_read, args=(process, order, found), name="claims", daemon=True)
    end = clock.now() + timeout
    try:
        reading.start()
        while reading.is_alive() and clock.now() < end:
            reading.join(_LOOK_AGAIN)
            still_mine()
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a file system that hangs delays even a kill
            process.wait(_LINGER)
    why = f"no answer within {timeout:g} s" if clock.now() >= end else "the process for claims ended without an answer"
    return dict.fromkeys(tables, FenceUnreachable("Delta", why)) | dict(found)


def _read(process: subprocess.Popen[bytes], order: Mapping[str, Any], found: dict[str, Answer]) -> None:
    assert process.stdin and process.stdout
    with contextlib.suppress(OSError, ValueError), process.stdin, process.stdout:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            table, kind, arguments = json.loads(line)
            found[table] = _ANSWERS[kind](*arguments)
            if len(found) == len(order["tables"]):
                return


_ANSWERS: dict[str, Callable[..., Answer]] = {
    "found": bool,
    "Fenced": Fenced,
    "ConfigError": ConfigError,
    "FenceUnreachable": FenceUnreachable,
}


def main(order: Mapping[str, Any]) -> None:
    """Run in the process: print one line of JSON for each table."""
    wanted, clock, saying = Claim(**order["claim"]), BootClock(), threading.Lock()

    def work(table: str) -> None:
        try:
            answer: tuple[str, list[Any]] = ("found", [claim(wanted, table, clock=clock, timeout=order["timeout"])])
        except ModuleNotFoundError as error:
            answer = ("FenceUnreachable", [table, f"{error.name} is not installed: pip install 'spark_lease[delta]'"])
        except SparkLeaseError as error:
            answer = (type(error).__name__, list(error.args))
        with saying:
            sys.stdout.write(json.dumps([table, *answer]) + "\n")
            sys.stdout.flush()

    threads = [threading.Thread(target=work, args=(table,)) for table in order["tables"]]
    for each in threads:
        each.start()
    for each in threads:  # an interpreter that ends can import nothing more
        each.join()
