"""Run keys: what redundant schedulers both start, for the same day, say, is done once.

Three kinds of notes beside the lease: a run has begun (under an epoch), it has ended otherwise than well, its key is
done. A key is done when a master says so while it is master; there is one such note for a key, for good.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from .clock import Clock, utc_text, wall_time
from .config import Config
from .errors import AlreadyDone, Fenced, Loss, RecordUnreadable, SparkLeaseError, StoreError
from .fences.base import Held
from .lockers.base import Notes
from .lockers.registry import open_notes

log = logging.getLogger(__name__)

BEGUN, ENDED, DONE = "run", "run-ended", "run-done"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a key. `outcome`: begun, failed, interrupted, lost, finished. Times are UTC, by the holder."""

    lease: str
    key: str
    epoch: int
    holder: str
    outcome: str
    started: str = ""
    finished: str = ""
    application: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)


class Runs:
    """The runs of one hold. Everything raises LeaseLost if it is over, StoreError, and ConfigError where the lease
    store has no place for notes."""

    def __init__(self, lease: Held, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._clock = lease, config, clock
        self._started: dict[str, str] = {}

    def begin(self, key: str) -> None:
        """Note that a run of `key` begins. Raises AlreadyDone if there is nothing to do."""
        with closing(open_notes(self._config, self._clock)) as notes:
            notes.prune(self._lease.name, (BEGUN, ENDED, DONE), self._config.run_retention)
            if done := notes.all(self._lease.name, DONE).get(key):
                raise AlreadyDone(self._lease.name, key, _run(done, notes).epoch)
            run = self._run_of(key, "begun", started=utc_text(wall_time()))
            self._started[key] = run.started
            self._note(notes, BEGUN, run)

    def end(self, key: str, outcome: str, *, application: str = "") -> None:
        """Note that it ended otherwise than well: failed, interrupted."""
        run = self._run_of(key, outcome, finished=utc_text(wall_time()), application=application)
        with closing(open_notes(self._config, self._clock)) as notes:
            self._note(notes, ENDED, run)

    def complete(self, key: str, *, counts: Mapping[str, int], application: str = "") -> None:
        """Note that `key` is done; may be repeated. Raises Fenced if it was done under another epoch meanwhile."""
        finished = utc_text(wall_time())
        run = self._run_of(key, "finished", finished=finished, application=application, counts=dict(counts))
        with closing(open_notes(self._config, self._clock)) as notes:
            there = _run(self._note(notes, DONE, run), notes)
        if there.epoch != run.epoch:
            raise Fenced(run.lease, f"run key {key!r}", run.epoch, there.epoch)

    def settle(self, key: str, outcome: str, *, application: str = "") -> SparkLeaseError | None:
        """Note how the run of `key` ended, patiently. Never raises: what kept it from being noted as done, so that it
        will be run again; None if nothing did, or a `key` is empty."""
        end, never = self._clock.now() + self._config.renew_deadline, threading.Event()
        while key:
            try:
                if outcome == "finished":
                    self.complete(key, counts={}, application=application)
                else:
                    self.end(key, outcome, application=application)
                return None
            except SparkLeaseError as error:
                if not isinstance(error, StoreError) or self._clock.now() >= end:
                    log.error("%s: run key %r is not noted as %s: %s", self._lease.name, key, outcome, error)
                    return error if outcome == "finished" else None
            self._clock.wait(never, self._config.retry_period / 5)
        return None

    def _run_of(self, key: str, outcome: str, **more: Any) -> Run:
        told = {"started": self._started.get(key, ""), **more}
        return Run(self._lease.name, key, self._lease.check(), self._lease.holder, outcome, **told)

    def _note(self, notes: Notes, kind: str, run: Run) -> str:
        """What is noted then."""
        item = run.key if kind == DONE else f"{run.key}\n{run.epoch}"
        text = json.dumps(asdict(run))
        there = notes.add(run.lease, kind, item, text, holder=run.holder, epoch=run.epoch)
        if there is None:
            self._lease.lose(Loss.TAKEN, f"run key {run.key!r} was to be noted, and the lease is another's")
            self._lease.check()
        return there or text


def runs_of(notes: Notes, name: str) -> list[Run]:
    """Every run of lease `name` that is still noted, the oldest first. Raises StoreError."""
    found: dict[tuple[str, int], Run] = {}
    for kind in (BEGUN, ENDED, DONE):
        for text in notes.all(name, kind).values():
            run = _run(text, notes)
            found[run.key, run.epoch] = run
    return sorted(found.values(), key=lambda run: run.started)


def _run(text: str, notes: Notes) -> Run:
    try:
        return Run(**json.loads(text))
    except (ValueError, TypeError):
        raise RecordUnreadable(notes.where, f"a note of a run is none: {text[:80]!r}") from None
