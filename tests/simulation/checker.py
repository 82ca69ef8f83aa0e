"""Did the promises hold? Judges the histories of all contenders of a lease, put together.

| promise | is broken by |
| --- | --- |
| P1 | two holds whose `may write` intervals overlap; a `check()` after the loss; a grant or renewal under a broker |
| P2 | a grant whose epoch is not larger than that of every earlier one; a renewal of an epoch that is not the newest |
| P3 | work that goes on when the next hold is granted, or after its own was told "no"; a renewal after the loss |
| P4 | an accepted write whose epoch is smaller than that of one accepted before |
| P5 | a release while the work of that hold runs |
| P6 | no contender is master although the lease is free and one has waited for it undisturbed |
| P10 | a loss, or a standby that gives up, because "another has it" where no answer was all there was |

What is excused, because nothing without a fence can promise it: P1 and P3 where the *store* lost what it had confirmed
to the earlier hold, for as long as that may believe in it; P3 for a process that stood still, until shortly after its
thaw. Work that never ended, and whose process did not give up, runs to the end of the history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .history import RELEASE, STANDBY, Did, Event

AFTER_THAW = 0.5
"""Seconds that a process which stood still has to end its work: it must notice first (keepalive.WATCH_PERIOD)."""

_TOUCHED = (Did.DAMAGED, Did.REWRITTEN)
_KEEPS_FREE = (*_TOUCHED, Did.BLOCKED)
_STOOD = (Did.FROZEN, Did.STARVED)
_NEVER = "never answered"


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
        words += f" ({'from' if event.did in (Did.MAY_WRITE, *_STOOD) else 'asked at'} {event.since:.3f})"
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

    `takeover` is how many seconds a free lease may stand idle while a contender waits: poll_period and a round trip.
    """
    by_lease = defaultdict(list)
    for event in _doubts_known(sorted(events, key=lambda each: each.at)):
        by_lease[event.lease].append(event)
    found = [each for mine in by_lease.values() for each in _judge_one(mine, takeover)]
    return sorted(found, key=lambda each: len(each.evidence))


def _doubts_known(events: Sequence[Event]) -> Iterator[Event]:
    """The events without those that say that something was asked; unless it was never answered: then in doubt."""
    answers = (Did.ASKED, Did.GRANTED, Did.RENEWED, Did.RELEASED, Did.IN_DOUBT)
    answered: dict[str, bool] = {}
    found = []
    for event in reversed(events):
        if event.did != Did.ASKS:
            answered[event.who] = answered.get(event.who, False) or event.did in answers
            found.append(event)
        elif not answered.pop(event.who, False):
            found.append(replace(event, did=Did.IN_DOUBT, detail=_NEVER))
    return reversed(found)


def _judge_one(events: list[Event], takeover: float) -> Iterator[Violation]:
    by_holder: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_holder[event.who].append(event)
    all_holds = [_Hold(who, mine) for who, mine in by_holder.items()]
    holds = sorted((each for each in all_holds if each.used), key=lambda hold: hold.granted.at)
    outside = [each for each in events if each.did in _TOUCHED]
    yield from _epochs_grow(holds, outside)
    # Answers may be late: this is the order in which they were granted.
    holds.sort(key=lambda hold: hold.granted.epoch)
    yield from _one_master(holds, outside)
    last = max((each for each in events if each.did not in _STOOD), key=lambda each: each.at, default=events[0])
    yield from _work_ends_in_time(holds, outside, last)
    yield from _no_old_epoch_writes(events)
    yield from _nothing_released_early(holds)
    yield from _no_idle_lease(events, all_holds, last, takeover)
    yield from _no_answer_is_not_no(holds, all_holds, events)


def _one_master(holds: Sequence[_Hold], outside: Sequence[Event]) -> Iterator[Violation]:
    for hold in holds:
        end = hold.last(Did.MAY_WRITE)
        over = hold.first(Did.LOST, Did.RELEASED)
        if end and over and over.at < (since := end.at):
            yield Violation("P1", f"check() of {hold.who} succeeded {since - over.at:.3f} s after the end", (over, end))
    for number, earlier in enumerate(holds):
        for later in holds[number + 1 :]:
            end, begin = earlier.last(Did.MAY_WRITE), later.first(Did.MAY_WRITE)
            if end is None or begin is None or not _overlap(earlier, later):
                continue
            renewals = [each for each in earlier.all(Did.RENEWED) if each.at <= end.at]
            if not _store_forgot(earlier, later, outside, end):
                words = f"{earlier.who} and {later.who} both master for {end.at - begin.begun:.3f} s"
                shown = [earlier.granted, *renewals[-1:], later.granted, begin, end]
                yield Violation("P1", words, tuple(sorted(shown, key=lambda each: each.at)))
    for broker in (each for each in outside if each.did == Did.REWRITTEN and each.until):
        for hold in holds:
            for yes in [hold.granted, *hold.all(Did.RENEWED)]:
                touched = any(broker.at < each.at <= yes.at for each in outside)
                if broker.at < yes.begun and yes.at < (broker.until or 0) and not touched:
                    words = f"{hold.who} was told yes {(broker.until or 0) - yes.at:.3f} s before the broker's ran out"
                    yield Violation("P1", words, (broker, yes))
                    break


def _overlap(one: _Hold, two: _Hold) -> bool:
    first, second = one.all(Did.MAY_WRITE), two.all(Did.MAY_WRITE)
    return max(first[0].begun, second[0].begun) < min(first[-1].at, second[-1].at)


def _store_forgot(earlier: _Hold, later: _Hold, outside: Sequence[Event], end: Event) -> bool:
    """True if the store lost what it had told `earlier`, and if that does not go on for longer than it was good."""
    told = [each for each in earlier.all(Did.GRANTED, Did.RENEWED) if each.at <= end.at]
    before = [each.begun for each in told if each.begun <= later.granted.at]
    if not before and (doubt := earlier.first(Did.IN_DOUBT)):
        before = [doubt.begun]  # a take without an answer, which was found again after the accident
    if not before or end.at > (told[-1].until or 0):
        return False
    since, until = before[-1], max(later.granted.at, earlier.granted.at)
    return any(each.did == Did.DAMAGED and since <= each.at <= until for each in outside)


def _epochs_grow(holds: Sequence[_Hold], outside: Sequence[Event]) -> Iterator[Violation]:
    for number, earlier in enumerate(holds):
        for later in holds[number + 1 :]:
            first, second = earlier.granted, later.granted
            asked = min((each.begun for each in later.all(Did.IN_DOUBT, Did.GRANTED)), default=second.begun)
            # A take of long ago that was never answered may be restored together with its row.
            revived = any(asked <= each.at <= second.at for each in outside)
            smaller = first.at <= second.begun and second.epoch < first.epoch and not revived
            if second.epoch == first.epoch or smaller:
                yield Violation("P2", f"epoch {second.epoch} was granted after {first.epoch}", (first, second))
            # A renewal that was asked for after the later grant was known can only be told "no".
            for renewal in earlier.all(Did.RENEWED):
                damaged = any(second.begun <= each.at <= renewal.at for each in outside)
                if second.at < renewal.begun and first.epoch < second.epoch and not damaged:
                    words = f"epoch {first.epoch} was renewed after {second.epoch} was granted"
                    yield Violation("P2", words, (first, second, renewal))
                    break


def _work_ends_in_time(holds: Sequence[_Hold], outside: Sequence[Event], last: Event) -> Iterator[Violation]:
    for number, earlier in enumerate(holds):
        if not earlier.first(Did.BEGAN):
            continue
        end = _end_of_work(earlier, last)
        loss = earlier.first(Did.LOST)
        for renewal in earlier.all(Did.RENEWED):
            # Between looking at the deadline and sending the request its thread may have stood still.
            stood = any(each.begun <= renewal.begun <= each.at + AFTER_THAW for each in earlier.all(*_STOOD))
            if loss and renewal.begun > loss.at and not stood:
                yield Violation("P3", f"{earlier.who} renewed a lease that it had lost", (loss, renewal))
                break
        if loss and loss.detail.startswith("taken") and end.at > _thawed(earlier, loss.at + AFTER_THAW):
            yield Violation("P3", f"{earlier.who} worked on for {end.at - loss.at:.3f} s after a no", (loss, end))
        for later in holds[number + 1 :]:
            if end.at <= _thawed(earlier, later.granted.at) or _store_forgot(earlier, later, outside, end):
                continue
            if _end_of_work(later, last).at <= earlier.granted.at:
                continue
            words = f"{earlier.who} still worked {end.at - later.granted.at:.3f} s after {later.who} was granted"
            shown = [earlier.granted, *earlier.all(Did.RENEWED)[-1:], later.granted, end]
            yield Violation("P3", words, tuple(sorted(shown, key=lambda each: each.at)))


def _end_of_work(hold: _Hold, last: Event) -> Event:
    end = hold.last(Did.ENDED) or hold.last(Did.GAVE_UP)
    return end or replace(last, who=hold.who, did=Did.ATTEMPTED)


def _thawed(hold: _Hold, instant: float) -> float:
    """When work that has to end at `instant` may end at the latest: a process that stands still ends when it thaws."""
    for stood in hold.all(Did.FROZEN):
        if stood.begun <= instant:
            instant = max(instant, stood.at + min(AFTER_THAW, stood.at - stood.begun))
    return instant


def _no_old_epoch_writes(events: Sequence[Event]) -> Iterator[Violation]:
    newest: dict[str, Event] = {}
    for event in events:
        if event.did == Did.ACCEPTED:
            before = newest.setdefault(event.detail, event)
            if event.epoch < before.epoch and before.at < event.begun:
                words = f"a write of epoch {event.epoch} was accepted after one of {before.epoch}"
                yield Violation("P4", words, (before, event))
            elif event.epoch > before.epoch:
                newest[event.detail] = event


def _nothing_released_early(holds: Sequence[_Hold]) -> Iterator[Violation]:
    for hold in holds:
        doubt = [each for each in hold.all(Did.IN_DOUBT) if each.detail == RELEASE]
        release = hold.first(Did.RELEASED) or (doubt[0] if doubt else None)
        begun, ends = hold.first(Did.BEGAN), hold.all(Did.ENDED)
        if release is None or begun is None:
            continue
        late = [each for each in hold.all(Did.ENDED, Did.ATTEMPTED) if each.at > release.begun]
        if late or not ends:
            shown = sorted([release, (late or [begun])[-1]], key=lambda each: each.at)
            yield Violation("P5", f"{hold.who} released while its work ran", tuple(shown))


def _no_idle_lease(
    events: Sequence[Event], all_holds: Sequence[_Hold], last: Event, takeover: float
) -> Iterator[Violation]:
    """Between two grants: the lease is free from the last thing that its holder was told, plus its duration.

    Not judged where that is not known: after a request that may have taken effect, or an accident of the store.
    Whenever the store's clock was set back, what was left may have grown to all of a lease again.
    """
    holds = [each for each in all_holds if each.first(Did.GRANTED)]
    for hold in holds:
        if any(each.granted.at < hold.granted.at and each.granted.epoch > hold.granted.epoch for each in holds):
            continue  # its answer came so late that another was granted meanwhile
        release, confirmed = hold.first(Did.RELEASED), hold.all(Did.GRANTED, Did.RENEWED)[-1]
        duration = (confirmed.until or 0) - confirmed.begun
        free = release.at if release else confirmed.at + duration
        set_back = sum(each.did == Did.SET_BACK and each.at > confirmed.begun for each in events)
        patience = takeover + duration * (1 + set_back) * bool(set_back)
        if not release and any(each.at > confirmed.begun for each in hold.all(Did.IN_DOUBT)):
            continue  # it may have been renewed
        for waiter in (each for each in all_holds if each is not hold):
            asked = [each for each in waiter.events if hold.granted.at < each.at]
            if not asked or asked[0].did != Did.ASKED or any(each.at < asked[0].at for each in waiter.all(Did.GRANTED)):
                continue
            if any(each.at <= free for each in waiter.all(Did.GAVE_UP)):
                continue  # and so did not wait for it
            # Its own request without an answer may have taken effect: the next one will tell.
            free_for_it = max(free, asked[0].at)
            doubt = [each.at for each in asked if each.did == Did.IN_DOUBT and each.at <= free_for_it + patience]
            end = max([free_for_it, *doubt]) + patience
            meanwhile = [each for each in events if hold.granted.at < each.at and each.begun <= end]
            taken = any(each.did == Did.GRANTED for each in meanwhile)
            if not taken and last.at >= end and not _disturbed(meanwhile, hold, waiter, end - patience, takeover):
                words = f"no contender was master although the lease was free at {free:.3f} and {waiter.who} waited"
                shown = [asked[0], confirmed, *([release] if release else [])]
                shown += [each for each in asked if each.did in (Did.IN_DOUBT, Did.GRANTED)][:2]
                yield Violation("P6", words, tuple(sorted(shown, key=lambda each: each.at)))
                break


def _disturbed(meanwhile: Sequence[Event], hold: _Hold, waiter: _Hold, free: float, takeover: float) -> bool:
    for each in meanwhile:
        unclear = each.did in (Did.IN_DOUBT, Did.GAVE_UP)
        # What was never answered may hang until the history ends, and its contender with it.
        hangs = each.at - each.begun > takeover / 2 or (each.did == Did.IN_DOUBT and each.detail == _NEVER)
        stood = each.did in _STOOD or hangs
        if each.did in _KEEPS_FREE or (unclear and (each.at > free or each.who not in (hold.who, waiter.who))):
            return True
        if stood and each.who == waiter.who:
            return True
    return False


def _no_answer_is_not_no(
    holds: Sequence[_Hold], all_holds: Sequence[_Hold], events: Sequence[Event]
) -> Iterator[Violation]:
    for hold in holds:
        loss = hold.first(Did.LOST)
        if loss and loss.detail.startswith("taken"):
            others = [each for each in events if each.who != hold.who and hold.granted.begun <= each.at <= loss.at]
            if not any(each.did in (Did.GRANTED, Did.IN_DOUBT, *_TOUCHED) for each in others):
                doubt = [each for each in hold.all(Did.IN_DOUBT) if each.at <= loss.at]
                words = f"{hold.who} lost without another holder: {loss.detail}"
                yield Violation("P10", words, (hold.granted, *doubt[-1:], loss))
    for waiter in all_holds:
        end, told = waiter.last(Did.GAVE_UP), waiter.last(Did.ASKED, Did.IN_DOUBT)
        if end and told and end.detail.startswith(STANDBY) and told.did == Did.IN_DOUBT and told.detail != RELEASE:
            yield Violation("P10", f"{waiter.who} gave up as a standby without an answer", (told, end))
