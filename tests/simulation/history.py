"""What contenders did, written down while they do it: the evidence that `checker.judge` looks at.

Each process keeps a `History` of its own, in memory or in a file of one JSON object per line; `load` puts any number of
them together. All stamps are of one clock: CLOCK_BOOTTIME of one machine, or a virtual one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from spark_lease.election.hold import Hold
from spark_lease.election.ports import Denied, Grant, Locker
from spark_lease.errors import LeaseLost, StoreError
from spark_lease.lease import Lease

RELEASE, STANDBY = "release", "standby: "
"""How the detail begins of a release in doubt, and of a wait that was given up because another has the lease."""


class Did(StrEnum):
    """What there is to write down. `Event.since` is the moment before the request, or the start of an interval."""

    ASKS = "asks"
    """A request was sent. One that nothing follows is in doubt: its process was killed, or is still waiting."""
    ASKED = "asked"
    """Told "no": another has it."""
    GRANTED = "granted"
    RENEWED = "renewed"
    IN_DOUBT = "in doubt"
    """No answer from the lease store: what was asked may have taken effect."""
    MAY_WRITE = "may write"
    """`check()` succeeded from `since` to `at`."""
    LOST = "lost"
    RELEASED = "released"
    BEGAN = "work began"
    ENDED = "work ended"
    """Nothing of the guarded work runs any more."""
    ATTEMPTED = "write attempted"
    ACCEPTED = "write accepted"
    REFUSED = "write refused"
    GAVE_UP = "gave up"
    """Contends no longer: its wait ended without a grant, or its process did. A test that kills it writes this."""
    FROZEN = "frozen"
    """Stood still from `since` to `at`: all of it, or the thread that has to end the work."""
    STARVED = "starved"
    """Another thread of it stood still from `since` to `at`."""
    DAMAGED = "damaged"
    """Not a contender's doing: the store lost or changed what it had confirmed, or its clock was set forward."""
    SET_BACK = "set back"
    """Not a contender's doing: the clock of the store was. It delays the next master, and does no more."""
    REWRITTEN = "rewritten"
    """Not a contender's doing: an ActiveMQ broker wrote its name into the row, good until `until`."""
    BLOCKED = "blocked"
    """Not a contender's doing: an operator paused it, so that its master gives it up and no contender takes it."""


@dataclass(slots=True)
class Event:
    """`who` is unique for every hold. `until` is when others may take the lease, as far as the writer knows."""

    at: float
    who: str
    did: Did
    lease: str = ""
    epoch: int = 0
    since: float | None = None
    until: float | None = None
    detail: str = ""

    @property
    def begun(self) -> float:
        return self.at if self.since is None else self.since


class History:
    """The events of one process, in the order in which they happened."""

    def __init__(self, now: Callable[[], float], *, lease: str = "", file: Path | None = None) -> None:
        """With `file` each event is written to it at once, in one system call, so that a killed process leaves it."""
        self.now, self._lease = now, lease
        self.events: list[Event] = []
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) if file else -1

    def add(
        self,
        who: str,
        did: Did,
        *,
        epoch: int = 0,
        at: float | None = None,
        since: float | None = None,
        until: float | None = None,
        detail: str = "",
    ) -> None:
        """Write down that `who` `did` it; now, unless `at` says when."""
        event = Event(self.now() if at is None else at, who, did, self._lease, epoch, since, until, detail)
        if self._fd >= 0:
            fields = {key: value for key, value in asdict(event).items() if value not in (None, "", 0)}
            os.write(self._fd, json.dumps(fields).encode() + b"\n")
        else:
            self.events.append(event)

    def check(self, lease: Hold | Lease, who: str) -> int:
        """`lease.check()`, written down. It is stamped before the call: the lease was mine then, if it is now."""
        before = self.now()
        epoch = lease.check()
        if self.events and (last := self.events[-1]).did == Did.MAY_WRITE and (last.who, last.epoch) == (who, epoch):
            last.at = before
        else:
            self.add(who, Did.MAY_WRITE, epoch=epoch, at=before, since=before)
        return epoch


class RecordedLocker:
    """Implements `Locker` over another one, and writes down what was asked and answered."""

    def __init__(self, inner: Locker, history: History, who: str, *, duration: float) -> None:
        self._inner, self._history, self._who, self._duration = inner, history, who, duration
        self._epoch = 0

    def try_acquire(self) -> Grant | Denied:
        return self._recorded(self._inner.try_acquire, Did.GRANTED)

    def renew(self) -> Grant | Denied:
        return self._recorded(self._inner.renew, Did.RENEWED)

    def release(self) -> bool:
        since = self._asks()
        try:
            done = self._inner.release()
        except StoreError:
            self._history.add(self._who, Did.IN_DOUBT, epoch=self._epoch, since=since, detail=RELEASE)
            raise
        did = Did.RELEASED if done else Did.ASKED
        self._history.add(self._who, did, epoch=self._epoch, since=since)
        return done

    def wait(self, timeout: float, poll: float) -> None:
        self._inner.wait(timeout, poll)

    def close(self) -> None:
        self._inner.close()

    def _asks(self) -> float:
        self._history.add(self._who, Did.ASKS, epoch=self._epoch)
        return self._history.now()

    def _recorded(self, ask: Callable[[], Grant | Denied], yes: Did) -> Grant | Denied:
        since = self._asks()
        try:
            answer = ask()
        except StoreError as error:
            self._history.add(self._who, Did.IN_DOUBT, epoch=self._epoch, since=since, detail=error.problem)
            raise
        if isinstance(answer, Grant):
            self._epoch = answer.epoch
            self._history.add(self._who, yes, epoch=answer.epoch, since=since, until=since + self._duration)
        else:
            fields = f"held by {answer.holder or 'no contender'}"
            self._history.add(self._who, Did.ASKED, epoch=self._epoch, since=since, detail=fields)
        return answer


def lost(history: History, who: str, error: LeaseLost) -> None:
    """Write down a loss that was noticed; for the `on_lost` of the lease's owner."""
    history.add(who, Did.LOST, epoch=error.epoch, detail=f"{error.reason}: {error.detail}")


def load(files: Iterable[Path]) -> list[Event]:
    """The events of all the files. A last line that was cut off by a kill is left out."""
    found = []
    for file in files:
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                fields = json.loads(line)
                found.append(Event(**fields | {"did": Did(fields["did"])}))
    return found
