"""What happens to a lease while work runs under it, told to whoever wants to know: held, in doubt, certain, lost."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from .errors import LeaseLost
from .lease import Lease

log = logging.getLogger(__name__)


class What(StrEnum):
    """What has happened."""

    HELD = "held"
    IN_DOUBT = "in doubt"
    """A renewal is overdue: the lease is still mine, and may not be for long. Begin nothing new."""
    CERTAIN = "certain"
    """It was renewed after all."""
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """`epoch` is that of the hold; `remaining` are the seconds left of it, 0 once lost."""

    what: What
    name: str
    epoch: int
    remaining: float
    detail: str = ""


OnEvent = Callable[[LeaseEvent], None]


class Events:
    """Tells `on_event` on a thread of its own, one after the other: it may block, and hold up nobody."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self._on_event = on_event
        self._waiting: queue.SimpleQueue[LeaseEvent | None] = queue.SimpleQueue()
        self._doubted = False

    def held(self, lease: Lease) -> None:
        if self._on_event:
            threading.Thread(
                target=self._tell, args=(self._on_event,), name=f"events of {lease.name}", daemon=True
            ).start()
        self._say(What.HELD, lease)

    def look(self, lease: Lease) -> None:
        """To be called again and again while it is held."""
        doubted, self._doubted = self._doubted, lease.is_in_doubt
        if self._doubted and not doubted:
            log.warning("%s: in doubt: a renewal is overdue, %.1f s left", lease.name, lease.remaining())
            self._say(What.IN_DOUBT, lease)
        elif doubted and not self._doubted and lease.remaining():
            log.info("%s: certain again", lease.name)
            self._say(What.CERTAIN, lease)

    def lost(self, lost: LeaseLost) -> None:
        """May be found by several, and is told once, as the last."""
        self._waiting.put(LeaseEvent(What.LOST, lost.name, lost.epoch, 0.0, f"{lost.reason}: {lost.detail}"))

    def end(self) -> None:
        """Nothing more is to be told, once all that waits is."""
        self._waiting.put(None)

    def _say(self, what: What, lease: Lease) -> None:
        self._waiting.put(LeaseEvent(what, lease.name, lease.epoch, lease.remaining()))

    def _tell(self, on_event: OnEvent) -> None:
        while event := self._waiting.get():
            try:
                on_event(event)
            except Exception:  # it is the user's: whatever it is, the next event may be the loss
                log.exception("%s: on_event failed", event.name)
            if event.what is What.LOST:
                return
