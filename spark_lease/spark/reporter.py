"""Tells the keeper about the Spark in this process, and watches the lease from this side."""

import contextlib
import logging
from collections.abc import Callable, Sequence

from ..election.keepalive import LivenessCheck, watch_once
from ..election.record import Protection
from ..errors import LeaseLost
from ..keeper.client import KeeperHold
from .session import Spark

_BEGINS = 30.0
"""Seconds for the keeper to look around as a block begins, of which it takes one in a thousand."""


class SparkReporter:
    """Watches the lease from this side, and tells the keeper about Spark. Has what `Keepalive` has."""

    def __init__(
        self,
        lease: KeeperHold,
        spark: Spark,
        *,
        on_lost: Callable[[LeaseLost], None],
        on_look: Callable[[], None],
        on_unprotected: Callable[[str], None],
        liveness_checks: Sequence[LivenessCheck],
    ) -> None:
        """`on_unprotected` is told, on the listening thread, why some of the work cannot be ended any more."""
        self.on_unprotected = on_unprotected
        self._lease, self._spark, self._on_lost, self._liveness_checks = lease, spark, on_lost, liveness_checks
        self._on_look = on_look
        self._level = lease.protection
        self._jvm: tuple[int, bool] | None = None
        self._local: bool | None = None
        self._over = False

    def start(self) -> None:
        # Before anything of the block runs: what is not known to the keeper is neither tied nor killed.
        self.report()
        if self._jvm is None:
            self._lease.tell({"jvm": 0, "marked": True})
        else:  # what the block starts before the keeper has set aside what was there would count as there before
            self._lease.answer("begun", min(self._lease.remaining(), _BEGINS))
        self._lease.report_to(self)

    def stop(self) -> bool:
        self._over = True
        return self._lease.stop()

    def look(self) -> bool:
        """To be called again and again, on the listening thread; soon again if it is True.

        That is while a JVM is there without a Spark: the keeper has to know at once where that will work."""
        if self._over:
            return False
        if lost := watch_once(self._lease):
            self._over = True
            self._on_lost(lost)
            return False
        with contextlib.suppress(Exception):  # whatever it is: this thread has to go on listening
            self._on_look()
        with contextlib.suppress(Exception):  # user code may be in the middle of making a session
            self.report()
        return self._jvm is not None and self._local is None

    def judge_the_end_of(self, jvm: int) -> None:
        """Tell whether that was meant, or lose the lease by it."""
        if self._over or not watch_once(self._lease, self._liveness_checks):
            self._lease.tell({"expected": jvm})

    def report(self) -> None:
        """Tell what is new of Spark: from a wait, if it has one by then, and from the block."""
        jvm = self._spark.jvm()
        if jvm and jvm != self._jvm:
            self._jvm, self._local = jvm, None
            self._lease.tell({"jvm": jvm[0], "marked": jvm[1]}, jvm[0])
        local = self._spark.is_local()
        if local is None:  # the next session may be elsewhere, and is told at once
            self._local = None
        elif local != self._local:
            self._local = local
            if self._lease.protection is not Protection.NONE:
                self._lease.protection = Protection.SERVER if self._spark.is_served() else self._level
            self._lease.tell({"local": local, "level": self._lease.protection})
            if not local:
                level = self._lease.protection
                message = f"tasks run outside the driver: no early release after a crash, protection {level}"
                self._lease.log.say(__name__, logging.WARNING, f"{self._lease.name}: its {message}")
                if level is Protection.SERVER:
                    self.on_unprotected("a Spark Connect server runs the work, and can only be asked to end it")
