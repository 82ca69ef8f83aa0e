"""Tells the keeper about the Spark in this process, and watches the lease in the driver."""

import contextlib
import logging
from collections.abc import Callable, Sequence

from ..election.keepalive import LivenessCheck, watch_once
from ..election.record import Protection
from ..errors import LeaseLost
from ..keeper.client import KeeperHold
from .connect import session_address
from .session import Spark

_BEGINS = 30.0
"""Maximum seconds for the keeper to look around as a block begins; it takes a thousandth of that."""


class SparkReporter:
    """Watches the lease in the driver, and tells the keeper about Spark. Has the methods of `Keepalive`."""

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
        """`on_unprotected` is called, on the listening thread, with why some work cannot be ended any more."""
        self.on_unprotected = on_unprotected
        self._lease, self._spark, self._on_lost, self._liveness_checks = lease, spark, on_lost, liveness_checks
        self._on_look = on_look
        self._level = lease.protection
        self._jvm: tuple[int, bool] | None = None
        self._local: bool | None = None
        self._address = ""
        self._over = False

    def start(self) -> None:
        # Before the block runs: a process that the keeper does not know gets no kill pipe and is not killed.
        self.report()
        if self._jvm is None:
            self._lease.tell({"jvm": 0, "marked": True})
        else:  # a process started before the keeper's first look would count as older than the block
            self._lease.answer("begun", min(self._lease.remaining(), _BEGINS))
        self._lease.report_to(self)

    def stop(self) -> bool:
        self._over = True
        return self._lease.stop()

    def look(self) -> bool:
        """Call it repeatedly, on the listening thread; soon again if it returns True.

        It returns True while a JVM has no Spark yet: the keeper must know at once where that Spark will work."""
        if self._over:
            return False
        if lost := watch_once(self._lease):
            self._over = True
            self._on_lost(lost)
            return False
        with contextlib.suppress(Exception):  # any error: this thread must go on listening
            self._on_look()
        with contextlib.suppress(Exception):  # user code may be in the middle of making a session
            self.report()
        return self._jvm is not None and self._local is None

    def judge_the_end_of(self, jvm: int) -> None:
        """Tell the keeper that the end of the JVM was intended, or lose the lease because of it."""
        if self._over or not watch_once(self._lease, self._liveness_checks):
            self._lease.tell({"expected": jvm})

    def report(self) -> None:
        """Tell the keeper what is new about Spark. Called in the block, and during the wait once Spark is there."""
        if (address := session_address()) and address != self._address:
            self._address = address
            self._lease.tell({"order": "know_session", "address": address})
        jvm = self._spark.jvm()
        if jvm and jvm != self._jvm:
            self._jvm, self._local = jvm, None
            self._lease.tell({"jvm": jvm[0], "marked": jvm[1]}, jvm[0])
        local = self._spark.is_local()
        if local is None:  # the next session may run elsewhere: then it is reported at once
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
