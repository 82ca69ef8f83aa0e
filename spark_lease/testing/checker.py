"""Did the promises hold? Judges the histories of all contenders of a lease, put together.

| promise | is broken by |
| --- | --- |
| P1 | two holds whose `may write` intervals overlap; a `check()` that succeeds after the loss; a grant under a broker |
| P2 | a grant whose epoch is not larger than that of every earlier one; a renewal of an epoch that is not the newest |
| P3 | work of a hold that goes on when the next hold is granted |
| P4 | an accepted write whose epoch is smaller than that of one accepted before |
| P5 | a release while the work of that hold runs |
| P6 | nobody is master although the lease is free and somebody has waited for it undisturbed |
| P10 | a loss because "another has it" where there is no other: no answer was taken for "no" |

What is excused, because nobody without a fence can promise it: P1 from the moment at which the *store* lost what it had
confirmed, for holds that were granted before, until their next renewal is answered (then P2 judges); P3 for a process
that stood still, until shortly after it was thawed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from .history import Did, Event

AFTER_THAW = 0.5
"""Seconds that a process which stood still has to end its work: it must notice first (keepalive.WATCH_PERIOD)."""

_TOUCHED = (Did.DAMAGED, Did.REWRITTEN)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: what happened, and the events that show it, in order."""

    promise: str
    words: str
    evidence: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.promise}: {self.words}", *(f"  {line(event)}" for event in self.evidence)])


def line(event: Event) -> str:
    """One event for a person: when, who, what."""
    words = f"{event.did}, epoch {event.epoch}" if event.epoch else str(event.did)
    if event.since is not None and event.since != event.at:
        words += f" (from {event.since:.3f})" if event.did in (Did.MAY_WRITE, Did.FROZEN) else ""
        words += f" (asked at {event.since:.3f})" if event.did not in (Did.MAY_WRITE, Did.FROZEN) else ""
    return f"{event.at:10.3f}  {event.who:<8} {words}" + (f": {event.detail}" if event.detail else "")


@dataclass
class _Hold:
    """All that one holder did, and when."""

    who: str
    events: list[Event]

    def first(self, *dids: Did) -> Event | None:
        return next((each for each in self.events if each.did in dids), None)

    def last(self, *dids: Did) -> Event | None:
        return next((each for each in reversed(self.events) if each.did in dids), None)

    def all(self, *dids: Did) -> list[Event]:
        return [each for each in self.events if each.did in dids]

    @cached_property
    def granted(self) -> Event:
        """The grant that was used: one that arrives too late is void, and asked for again."""
        return self.all(Did.GRANTED)[-1]

    @property
    def used(self) -> bool:
        return self.first(Did.GRANTED) is not None and self.first(Did.BEGAN, Did.MAY_WRITE) is not None


def judge(events: Iterable[Event], *, takeover: float = 2.0) -> list[Violation]:
    """Every promise that these events break, the shortest evidence first; none: all of them hold.

    `takeover` is how many seconds a free lease may stand idle while somebody waits: poll_period and a round trip.
    """
    by_lease = defaultdict(list)
    for event in sorted(events, key=lambda each: each.at):
        by_lease[event.lease].append(event)
    found = [each for mine in by_lease.values() for each in _judge_one(mine, takeover)]
    return sorted(found, key=lambda each: len(each.evidence))


def _judge_one(events: list[Event], takeover: float) -> Iterator[Violation]:
    by_holder: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_holder[event.who].append(event)
    everybody = [_Hold(who, mine) for who, mine in by_holder.items()]
    holds = sorted((each for each in everybody if each.used), key=lambda hold: hold.granted.at)
    outside = [each for each in events if each.did in _TOUCHED]
    yield from _one_master(holds, outside)
    yield from _epochs_grow(holds, outside)
    yield from _work_ends_in_time(holds, outside)
    yield from _no_old_epoch_writes(events)
    yield from _nothing_released_early(holds)
    yield from _no_idle_lease(events, everybody, takeover)
    yield from _no_loss_without_a_taker(holds, events)


def _one_master(holds: Sequence[_Hold], outside: Sequence[Event]) -> Iterator[Violation]:
    for hold in holds:
        end = hold.last(Did.MAY_WRITE)
        over = hold.first(Did.LOST, Did.RELEASED)
        if end and over and over.at < (since := end.at):
            yield Violation("P1", f"check() of {hold.who} succeeded {since - over.at:.3f} s after the end", (over, end))
    for number, earlier in enumerate(holds):
        for later in holds[number + 1 :]:
            end, begin = earlier.last(Did.MAY_WRITE), later.first(Did.MAY_WRITE)
            if end is None or begin is None or end.at <= begin.begun:
                continue
            renewals = [each for each in earlier.all(Did.RENEWED) if each.at <= end.at]
            if not _store_forgot(earlier, later, outside):
                words = f"{earlier.who} and {later.who} both master for {end.at - begin.begun:.3f} s"
                shown = [earlier.granted, *renewals[-1:], later.granted, begin, end]
                yield Violation("P1", words, tuple(sorted(shown, key=lambda each: each.at)))
    for broker in (each for each in outside if each.did == Did.REWRITTEN and each.until):
        for hold in holds:
            grant = hold.granted
            touched = any(broker.at < each.at <= grant.at for each in outside)
            if broker.at < grant.begun and grant.at < (broker.until or 0) and not touched:
                words = f"{hold.who} took the lease {(broker.until or 0) - grant.at:.3f} s before the broker's ran out"
                yield Violation("P1", words, (broker, grant))


def _store_forgot(earlier: _Hold, later: _Hold, outside: Sequence[Event]) -> bool:
    between = (earlier.granted.begun, later.granted.at)
    return any(each.did == Did.DAMAGED and between[0] <= each.at <= between[1] for each in outside)


def _epochs_grow(holds: Sequence[_Hold], outside: Sequence[Event]) -> Iterator[Violation]:
    for number, earlier in enumerate(holds):
        for later in holds[number + 1 :]:
            first, second = earlier.granted, later.granted
            if second.epoch == first.epoch or (first.at <= second.begun and second.epoch < first.epoch):
                yield Violation("P2", f"epoch {second.epoch} was granted after {first.epoch}", (first, second))
            # A renewal that was asked for after the later grant was known can only be told "no".
            for renewal in earlier.all(Did.RENEWED):
                damaged = any(second.at <= each.at <= renewal.at for each in outside)
                if second.at < renewal.begun and first.epoch < second.epoch and not damaged:
                    words = f"epoch {first.epoch} was renewed after {second.epoch} was granted"
                    yield Violation("P2", words, (first, second, renewal))
                    break


def _work_ends_in_time(holds: Sequence[_Hold], outside: Sequence[Event]) -> Iterator[Violation]:
    for number, earlier in enumerate(holds):
        for later in holds[number + 1 :]:
            end = earlier.last(Did.ENDED) or earlier.last(Did.ATTEMPTED)
            begun = earlier.first(Did.BEGAN)
            if end is None or begun is None or end.at <= later.granted.at:
                continue
            may_end = later.granted.at
            for stood in earlier.all(Did.FROZEN):
                if stood.begun <= may_end:
                    may_end = max(may_end, stood.at + AFTER_THAW)
            if end.at <= may_end or _store_forgot(earlier, later, outside):
                continue
            words = f"{earlier.who} still worked {end.at - later.granted.at:.3f} s after {later.who} was granted"
            shown = [earlier.granted, *earlier.all(Did.RENEWED)[-1:], later.granted, end]
            yield Violation("P3", words, tuple(sorted(shown, key=lambda each: each.at)))


def _no_old_epoch_writes(events: Sequence[Event]) -> Iterator[Violation]:
    newest: dict[str, Event] = {}
    for event in events:
        if event.did == Did.ACCEPTED:
            before = newest.setdefault(event.detail, event)
            if event.epoch < before.epoch:
                words = f"a write of epoch {event.epoch} was accepted after one of {before.epoch}"
                yield Violation("P4", words, (before, event))
            elif event.epoch > before.epoch:
                newest[event.detail] = event


def _nothing_released_early(holds: Sequence[_Hold]) -> Iterator[Violation]:
    for hold in holds:
        release = hold.first(Did.RELEASED)
        after = [each for each in hold.all(Did.ENDED, Did.ATTEMPTED) if release and each.at > release.begun]
        if release and after:
            yield Violation("P5", f"{hold.who} released while its work still ran", (release, after[0]))


def _no_idle_lease(events: Sequence[Event], everybody: Sequence[_Hold], takeover: float) -> Iterator[Violation]:
    """Between two grants: the lease is free from the last thing that its holder was told, plus its duration.

    Not judged where that is not known: after a request that may have taken effect, or an accident of the store.
    """
    holds = [each for each in everybody if each.first(Did.GRANTED)]
    for hold in holds:
        if any(each.granted.at < hold.granted.at and each.granted.epoch > hold.granted.epoch for each in holds):
            continue  # its answer came so late that another was granted meanwhile
        release, confirmed = hold.first(Did.RELEASED), hold.all(Did.GRANTED, Did.RENEWED)[-1]
        free = release.at if release else confirmed.at + (confirmed.until or 0) - confirmed.begun
        for waiter in (each for each in everybody if each is not hold):
            asked = [each for each in waiter.events if hold.granted.at < each.at]
            if not asked or asked[0].did != Did.ASKED or asked[0].at >= free:
                continue
            # Its own request without an answer may have taken effect: the next one will tell.
            doubt = [each.at for each in asked if each.did == Did.IN_DOUBT and each.at <= free + takeover]
            end = max([free, *doubt]) + takeover
            meanwhile = [each for each in events if hold.granted.at < each.at and each.begun <= end]
            taken = any(each.did == Did.GRANTED for each in meanwhile)
            if not taken and asked[-1].at >= end and not _disturbed(meanwhile, hold, waiter, end - takeover, takeover):
                words = f"nobody was master although the lease was free at {free:.3f} and {waiter.who} waited"
                shown = [asked[0], confirmed, *([release] if release else [])]
                shown += [each for each in asked if each.did in (Did.IN_DOUBT, Did.GRANTED)][:2]
                yield Violation("P6", words, tuple(sorted(shown, key=lambda each: each.at)))
                break


def _disturbed(meanwhile: Sequence[Event], hold: _Hold, waiter: _Hold, free: float, takeover: float) -> bool:
    for each in meanwhile:
        unclear = each.did in (Did.IN_DOUBT, Did.GAVE_UP)
        stood = each.did in (Did.FROZEN, Did.STARVED) or each.at - each.begun > takeover / 2
        if each.did in _TOUCHED or (unclear and (each.at > free or each.who not in (hold.who, waiter.who))):
            return True
        if stood and each.who == waiter.who:
            return True
    return False


def _no_loss_without_a_taker(holds: Sequence[_Hold], events: Sequence[Event]) -> Iterator[Violation]:
    for hold in holds:
        for loss in hold.all(Did.LOST):
            since = hold.granted.begun
            others = [each for each in events if each.who != hold.who and since <= each.at <= loss.at]
            if loss.detail.startswith("taken") and not any(
                each.did in (Did.GRANTED, Did.IN_DOUBT, *_TOUCHED) for each in others
            ):
                doubt = [each for each in hold.all(Did.IN_DOUBT) if each.at <= loss.at]
                yield Violation("P10", f"{hold.who} lost to nobody: {loss.detail}", (hold.granted, *doubt[-1:], loss))
                break
