"""Run keys (idempotency keys): work that redundant schedulers all start, for one day say, is done once.

There are three kinds of notes beside the lease: a run began (under an epoch), a run ended without success, a key is
done. Only a master can note that a key is done, while it is master; a key has one such note, for good.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..clock import Clock, iso_text, wall_time
from ..config.settings import Config, refuse_run_key
from ..election.journal_entries import bounded_age
from ..election.ports import HeldLease, Notes
from ..errors import AlreadyDone, ConfigError, Loss, NotesDenied, RecordUnreadable, SparkLeaseError, StoreError
from ..stores.registry import open_notes
from .patience import patiently

log = logging.getLogger(__name__)

BEGINNING, ENDED, DONE = "run", "run-ended", "run-done"
KINDS = (BEGINNING, ENDED, DONE)
BEGUN = "begun"


@dataclass(frozen=True, slots=True)
class Run:
    """One attempt at a key. `outcome`: begun, failed, interrupted, already done, finished; or how its hold ended, if no
    note says how the run ended. Times are UTC by the holder's clock."""

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
    """The runs of one hold. Its methods raise LeaseLost if the hold is over, StoreError, and ConfigError if the lease
    store has no place for notes."""

    def __init__(self, lease: HeldLease, config: Config, clock: Clock) -> None:
        self._lease, self._config, self._clock = lease, config, clock
        self.application: Callable[[], str] = str  # Spark's application id, noted with a run; "" if not known
        self._started: dict[str, str] = {}
        self._is_pruned = False

    def is_done(self, key: str) -> bool:
        refuse_run_key("run_key", key)
        if not self._config.enabled:
            return False
        with closing(open_notes(self._config)) as notes:
            return notes.get(self._lease.name, DONE, key) is not None

    def begin(self, key: str) -> None:
        """Note that a run of `key` begins, retrying if the store does not answer. Raises AlreadyDone if it is done."""
        if self._config.enabled:
            self._patiently(lambda: self._begin(key))

    def _begin(self, key: str) -> None:
        self._lease.check()
        with closing(open_notes(self._config)) as notes:
            if epoch := done_under(notes, self._lease.name, key):
                raise AlreadyDone(self._lease.name, key, epoch)
            run = self._run_of(key, BEGUN, started=iso_text(wall_time()))
            self._started[key] = run.started
            self._note(notes, BEGINNING, run)
            self._prune(notes)

    def complete(self, key: str, *, counts: Mapping[str, int]) -> None:
        """Note that `key` is done; may be repeated. Raises AlreadyDone if it was done under another epoch, and
        ConfigError if it is not a valid run key."""
        refuse_run_key("run_key", key)
        if not self._config.enabled:
            return
        run = self._ended(key, "finished", counts=dict(counts))
        with closing(open_notes(self._config)) as notes:
            there = _run(self._note(notes, DONE, run), notes)
            self._prune(notes)
        if there.epoch != run.epoch:
            raise AlreadyDone(run.lease, key, there.epoch)

    def backfill(self, key: str, epoch: int) -> None:
        """Note that `key` was completed under `epoch`, ours or an earlier one: the guarded store has recorded it."""
        run = replace(self._ended(key, "finished"), epoch=epoch)
        if epoch != self._lease.epoch:
            run = replace(run, holder="", started="", application="")
        with closing(open_notes(self._config)) as notes:
            self._note(notes, DONE, run)

    def note_end(self, key: str, outcome: str) -> list[SparkLeaseError]:
        """Note how the run of `key` ended; does nothing if it did not begin. Never raises.

        If the run finished, retries while the store does not answer, and returns the errors that kept the key from
        being noted as done: then it will be run again.
        """
        if key not in self._started:
            return []
        is_finished = outcome == "finished"
        try:
            if is_finished:
                # The work is done: even a missing right is waited for.
                self._patiently(lambda: self.complete(key, counts={}), is_final=lambda error: False)
            else:
                with closing(open_notes(self._config)) as notes:
                    self._note(notes, ENDED, self._ended(key, outcome))
        except AlreadyDone as error:
            log.warning("%s", error)
        except Exception as error:  # any error: the release that follows must not be skipped
            log.error("%s: run key %r cannot be recorded as %s: %s", self._lease.name, key, outcome, error)
            return [_as_ours(error)] if is_finished else []
        return []

    def _patiently(self, note: Callable[[], None], **how: Any) -> None:
        patiently(note, self._clock, timeout=self._config.renew_deadline, every=self._config.retry_period / 5, **how)

    def _prune(self, notes: Notes) -> None:
        """Prune old notes, once in a hold: a store in folders must list folders for it."""
        if self._is_pruned:
            return
        self._is_pruned = True
        with contextlib.suppress(StoreError):  # the caller did not ask for it
            notes.prune(self._lease.name, KINDS, bounded_age(self._config.run_retention))

    def _ended(self, key: str, outcome: str, **more: Any) -> Run:
        return self._run_of(key, outcome, finished=iso_text(wall_time()), application=self.application(), **more)

    def _run_of(self, key: str, outcome: str, **more: Any) -> Run:
        fields = {"started": self._started.get(key, ""), **more}
        return Run(self._lease.name, key, self._lease.check(), self._lease.holder, outcome, **fields)

    def _note(self, notes: Notes, kind: str, run: Run) -> str:
        """Add the note; returns the stored text: ours, or that of the first writer."""
        item = run.key if kind == DONE else f"{run.key}\n{run.epoch}"
        text = json.dumps(asdict(run), default=int)  # a count may be a numpy number
        there = notes.add(run.lease, kind, item, text, holder=self._lease.holder, epoch=self._lease.epoch)
        if there is None:
            self._lease.lose(Loss.TAKEN, f"run key {run.key!r} was not noted: the lease is no longer held")
            self._lease.check()
        return there or text


def done_under(notes: Notes, name: str, key: str) -> int:
    """The epoch under which `key` was done; 0 if it was not. Raises StoreError."""
    done = notes.get(name, DONE, key)
    return _run(done, notes).epoch if done else 0


def runs_of(notes: Notes, name: str) -> list[Run]:
    """Every run of lease `name` that is still noted, the oldest first. Raises StoreError."""
    found: dict[tuple[str, int], Run] = {}
    noted = notes.every(name, KINDS)
    for text in (text for kind in KINDS for text in noted[kind].values()):
        run = _run(text, notes)
        found[run.key, run.epoch] = run
    return sorted(found.values(), key=lambda run: run.started)


def _run(text: str, notes: Notes) -> Run:
    try:
        return Run(**json.loads(text))
    except (ValueError, TypeError):
        raise RecordUnreadable(notes.where, f"cannot read a note of a run: {text[:80]!r}") from None


def _as_ours(error: Exception) -> SparkLeaseError:
    if isinstance(error, NotesDenied):  # the work is done, so its configuration was right
        return StoreError(error.where, error.problem)
    if isinstance(error, ConfigError):  # the same: a table dropped meanwhile, for example
        return StoreError(error.key, error.problem)
    return error if isinstance(error, SparkLeaseError) else StoreError("notes", repr(error))
