"""Reports to callbacks and the log what happens to a lease while work runs under it.

`metrics.py` counts the events.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from ..clock import iso_text, wall_time
from ..config.settings import Config
from ..errors import ConfigError, LeaseLost
from ..holds import GuardedHold

if TYPE_CHECKING:
    from .metrics import Report

log = logging.getLogger(__name__)

_TOLD_WITHIN, _LOSS_TOLD_WITHIN = 2.0, 0.05
"""Seconds that the end of a hold waits for `on_event` to get the last event: usually, and after a loss."""


class What(StrEnum):
    """The kind of an event."""

    STANDBY = "standby"
    """The kind of standby has changed: `detail` is cold, warming up or warm."""
    HELD = "held"
    IN_DOUBT = "in doubt"
    """A renewal is overdue: the lease is still held, but maybe not for long. Begin no new work."""
    CERTAIN = "certain"
    """The lease was renewed after all."""
    LOST = "lost"
    ENDED = "ended"
    """The work is over and was not disturbed; the lease is released, or runs out."""


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """One event. `epoch`, `holder`: of the hold. `remaining`: the seconds left of it, 0 once lost. `at`: the time by
    this machine's clock, in seconds since 1970."""

    what: What
    name: str
    epoch: int
    remaining: float
    detail: str = ""
    holder: str = ""
    at: float = 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """The event for a message: plain values, under stable names."""
        named: dict[str, str | int | float] = {"what": str(self.what), "lease": self.name, "holder": self.holder}
        return named | {
            "epoch": self.epoch,
            "remaining": round(self.remaining, 3),
            "detail": self.detail,
            "at": iso_text(self.at),
        }


OnEvent = Callable[[LeaseEvent], None]


def open_events(config: Config, on_event: OnEvent | None = None) -> Events:
    """Events with the metrics that `config` asks for. Raises ConfigError if their library is missing."""
    if not config.is_measured:
        return Events(on_event)
    try:
        from .metrics import Report  # heavy: imported only if configured
    except ModuleNotFoundError as error:
        raise ConfigError("metrics", f"needs {error.name}: pip install 'spark_lease[metrics]'") from error
    return Events(on_event, Report(config))


class Events:
    """Reports events one by one to the log and `on_event`, on its own thread: they may block and delay no lease."""

    def __init__(self, on_event: OnEvent | None, report: Report | None = None) -> None:
        self._on_event, self._report = on_event, report
        self._waiting: queue.SimpleQueue[LeaseEvent | None] = queue.SimpleQueue()
        self._doubted = self._over = False
        self._telling: threading.Thread | None = None
        self._holder = ""

    def begin(self, lease: GuardedHold) -> None:
        """Report that the wait for the lease begins."""
        if self._report:
            self._report.begin(lease)

    def standby(self, lease: GuardedHold, state: str) -> None:
        """Report the state of a warm standby."""
        self._start(lease)
        if self._report:
            self._report.standby(state)
        self._waiting.put(replace(self._event(What.STANDBY, lease), detail=state))

    def held(self, lease: GuardedHold) -> None:
        self._holder = lease.holder
        self._start(lease)
        if self._report:
            self._report.held(lease)
        self._waiting.put(self._event(What.HELD, lease))

    def look(self, lease: GuardedHold) -> None:
        """Call it repeatedly while the lease is held. Does not block, not even on a log."""
        doubted, self._doubted = self._doubted, lease.is_in_doubt
        if self._doubted and not doubted:
            self._say(self._event(What.IN_DOUBT, lease))
        elif doubted and not self._doubted and lease.remaining():
            self._say(self._event(What.CERTAIN, lease))

    def renewal(self, took: float, done: bool) -> None:
        if self._report:
            self._report.renewal(took, done)

    def lost(self, lost: LeaseLost) -> None:
        """Report the loss of the lease: once, as the last event, even if several threads find it."""
        why = f"{lost.reason}: {lost.detail}"
        self._say_last(LeaseEvent(What.LOST, lost.name, lost.epoch, 0.0, why, self._holder, wall_time()))

    def ended(self, lease: GuardedHold) -> None:
        """Report that the work is over and the lease was not lost."""
        self._say_last(replace(self._event(What.ENDED, lease), detail=lease.ending))

    def end(self, *, lost: bool = False) -> None:
        """Report the events that still wait, and no more. Waits for a slow `on_event`, but not for long."""
        self._waiting.put(None)
        if self._telling:
            self._telling.join(_LOSS_TOLD_WITHIN if lost else _TOLD_WITHIN)
        if self._report:
            self._report.end(lost=lost)

    def _start(self, lease: GuardedHold) -> None:
        if not self._telling:
            telling = threading.Thread(target=self._tell, name=f"events of {lease.name}", daemon=True)
            telling.start()
            self._telling = telling

    def _event(self, what: What, lease: GuardedHold) -> LeaseEvent:
        return LeaseEvent(what, lease.name, lease.epoch, lease.remaining(), "", lease.holder, wall_time())

    def _say_last(self, event: LeaseEvent) -> None:
        over, self._over = self._over, True
        if not over:
            self._say(event)

    def _say(self, event: LeaseEvent) -> None:
        self._waiting.put(event)
        if self._report:
            # Count how the work ended, not only that it did: people want to hear of "failed".
            self._report.count(event.detail.partition(":")[0] if event.what is What.ENDED else event.what)

    def _tell(self) -> None:
        while event := self._waiting.get():
            match event.what:
                case What.IN_DOUBT:
                    log.warning("%s: in doubt: a renewal is overdue, %.1f s left", event.name, event.remaining)
                case What.CERTAIN:
                    log.info("%s: renewed again, no longer in doubt", event.name)
            try:
                if self._on_event:
                    self._on_event(event)
            except BaseException:  # any error of user code: the next event may be the loss
                log.exception("%s: on_event failed", event.name)
            if event.what is What.LOST:
                return
