"""`spark-lease release LEASE --force`: releases a lease in place of a holder that cannot.

A lease that has run out is freed at once. One that has not is taken from its holder, which sees that at its next
renewal and stops. It stays blocked until the moment at which it would have run out: freed at once, the next master
would start beside one that still works. Both are a swap of exactly the record that was read.
"""

import argparse
import json
import logging
import shlex
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass

from ..clock import BootClock, Clock
from ..election.journal_entries import RAN_OUT, TAKEN_AWAY
from ..election.ports import Journal, LeaseStore
from ..election.record import (
    FORCED,
    LeaseRecord,
    Snapshot,
    expires_in,
    forced,
    is_forced,
    is_grant_of,
    new_holder,
    released,
)
from ..errors import SparkLeaseError
from ..journal.changes import ChangeJournal
from ..logs import say
from ..stores.registry import open_store
from .look import moment, no_such_lease
from .settings import USAGE, of_one_lease, who

log = logging.getLogger(__name__)

_TRIES = 5
_MARGIN = 0.001
"""Seconds: the store counts in milliseconds, and may have cut off a part of one."""


class Unreleased(SparkLeaseError):
    """Nothing was changed; the message says why."""


@dataclass(frozen=True, slots=True)
class Released:
    """The result: free in `free_in` seconds; it was taken from `holder` under `epoch`."""

    lease: str
    changed: bool
    holder: str = ""
    epoch: int = 0
    free_in: float = 0.0

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.lease} is not held, nothing to do" + (f"; free in {self.free_in:.1f} s" * (self.free_in > 0))
        was = f"{self.holder}, epoch {self.epoch}"
        if not self.free_in:
            return f"{self.lease} had run out and is free; it was {was}"
        return (
            f"{self.lease} was taken from {was}. That master stops at its next renewal. In {self.free_in:.1f} s it has "
            "ended, and others can take the lease"
        )


def release(arguments: argparse.Namespace) -> int:
    """Release the lease; exit code 1 if nothing was changed although it should have been."""
    config = of_one_lease(arguments)
    if not arguments.force:
        say("normally the holder releases a lease; if it cannot, add --force")
        return USAGE
    clock = BootClock()
    with closing(open_store(config)) as store, closing(ChangeJournal(config)) as journal:
        forcing = Forcing(store, config.name, poll=config.poll_period, clock=clock, journal=journal)
        done = forcing.run(given=arguments.yes, ask=_ask if sys.stdin and sys.stdin.isatty() else lambda question: "")
    print(json.dumps(asdict(done)) if arguments.json else done)
    return 0


class Forcing:
    """Takes one lease from its holder."""

    def __init__(
        self, store: LeaseStore, name: str, *, poll: float, clock: Clock, journal: Journal | None = None
    ) -> None:
        self._store, self._name, self._poll, self._clock, self._journal = store, name, poll, clock, journal

    def run(self, *, given: str | None, ask: Callable[[str], str]) -> Released:
        """Release the lease. `given`: the lease name, if it confirms; else `ask` gets a question and returns a name.
        Only a lease that may not have run out must be confirmed. Raises Unreleased, StoreError.
        """
        seen, still_for = self._store.read(self._name), 0.0
        if seen.record and seen.record.holder and seen.left is None and given is None:
            seen, still_for = self._watch(seen)
        record, left = seen.record, expires_in(seen, still_for=still_for)
        if record is None:
            raise Unreleased(no_such_lease(self._name, self._store.where))
        if record.holder is None or (is_forced(record.holder) and seen.left is not None):
            return Released(self._name, False, free_in=max(round(left, 1), 0.0))
        if left <= 0:
            return self._free(seen, record)
        question = _question(self._name, record, left, seen)
        if self._name != (ask(question) if given is None else given):
            if given:
                raise Unreleased(f"--yes {given} is not {self._name}: nothing was changed")
            raise Unreleased(
                f"{self._name} may still be held: nothing was changed. To take it from {record.holder} anyway "
                f"(this stops that master's work): --yes {shlex.quote(self._name)}"
            )
        return self._take_away(record)

    def _watch(self, seen: Snapshot) -> tuple[Snapshot, float]:
        """Watch a record until it changes or stays unchanged for its duration: its store cannot tell what is left."""
        began, record = self._clock.now(), seen.record
        duration = record.duration if record else 0.0
        log.info("%s: watching for %g s whether it is renewed, because %s", self._name, duration, seen.why_unknown)
        while (still_for := self._clock.now() - began) < duration:
            self._clock.wait(threading.Event(), min(self._poll, duration - still_for))
            if (now := self._store.read(self._name)).record != record:
                return now, 0.0
        return seen, still_for

    def _free(self, seen: Snapshot, record: LeaseRecord) -> Released:
        if self._store.swap(self._name, record, released(record)):
            if self._journal and not is_forced(record.holder):
                at = record.stamp if seen.left is not None else None
                self._journal.ended(record.epoch, RAN_OUT, at=at or round(seen.wall * 1000), detail=f"freed by {who()}")
            return Released(self._name, True, record.holder or "", record.epoch)
        raise Unreleased(f"{self._name} was renewed or taken meanwhile: nothing was changed")

    def _take_away(self, confirmed: LeaseRecord) -> Released:
        """Take the lease from the `confirmed` grant, which may be renewed between a read and a swap."""
        by, holder, epoch = new_holder(f"{FORCED}:{who()}"), confirmed.holder or "", confirmed.epoch
        left = 0.0
        for _ in range(_TRIES):
            seen = self._store.read(self._name)
            if is_grant_of(seen.record, by):  # an earlier swap was written although the store refused it
                return Released(self._name, True, holder, epoch, round(left, 1))
            if seen.record is None or not is_grant_of(seen.record, holder, epoch):
                raise Unreleased(f"{self._name} is no longer held by {holder}: nothing was changed, check status")
            # Without a clock the record has to stay unchanged for its whole duration once more.
            left = max(expires_in(seen, still_for=0.0), 0.0) + _MARGIN
            if self._store.swap(self._name, seen.record, forced(seen.record, by=by, left=left)):
                if self._journal:
                    at = round((seen.wall + left) * 1000)
                    self._journal.ended(epoch, TAKEN_AWAY, at=at, detail=f"by {who()} at {moment(seen.wall)}")
                return Released(self._name, True, holder, epoch, round(left, 1))
        raise Unreleased(f"{self._name} changes faster than it can be taken: nothing was changed, try again")


def _question(name: str, record: LeaseRecord, left: float, seen: Snapshot) -> str:
    known = seen.why_unknown if seen.left is None else f"{left:.1f} s are left of it"
    return f"{name} is held by {record.holder}, epoch {record.epoch}, {known}. A running master will lose it and stop."


def _ask(question: str) -> str:
    print(f"{question}\nType the lease name to take it anyway: ", end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().rstrip("\n")
    except KeyboardInterrupt:
        print("", file=sys.stderr)
        say("nothing was changed")
        raise
