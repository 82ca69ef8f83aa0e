"""A task's callable under its lease, in the process that the task starts. Imports nothing of Airflow."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from collections.abc import Callable
from typing import Any

from ..guard.api import leased
from ..logs import log_to_stderr
from ..system.kernel import die_with_parent


def under_lease(function: Callable[..., Any], parent: int) -> Callable[..., Any]:
    """`function` under the lease that SPARK_LEASE_* names, until the process `parent` ends.

    Exits as `leased` does. If the run key is done, `function` is not called, and None comes back.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        log_to_stderr()
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                die_with_parent(parent, signal.SIGTERM)
        try:
            return leased()(function)(*args, **kwargs)
        except SystemExit as exit:
            if exit.code:
                raise
            return None

    return guarded
