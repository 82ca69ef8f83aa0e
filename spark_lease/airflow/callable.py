"""Runs a task's callable under its lease, in the process that the task starts. Imports nothing of Airflow."""

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..guard.api import leased
from ..logs import log_to_stderr
from ..system.kernel import die_with_parent


def under_lease(function: Callable[..., Any], parent: int, limit: float = 0.0) -> Callable[..., Any]:
    """Wrap `function` to run under the lease of SPARK_LEASE_*, until process `parent` ends, or for `limit` seconds.

    A task whose time is over waits for this process, and does not end it. `limit` 0: no limit.

    Exits as `leased` does. If the run key is done, `function` is not called, and the result is None.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        log_to_stderr()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                die_with_parent(parent, signal.SIGTERM)
        if limit:
            ending = threading.Timer(limit, os.kill, (os.getpid(), signal.SIGTERM))
            ending.daemon = True
            ending.start()
        try:
            return leased()(function)(*args, **kwargs)
        except SystemExit as exit:
            if exit.code:
                raise
            return None

    return guarded
