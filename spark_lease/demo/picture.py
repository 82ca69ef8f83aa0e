"""Draws the events of a demo as a picture of characters: one lane per site, time from left to right."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STANDBY, MASTER, WROTE, KILLED, FROZEN, ENDED = "standby", "master", "wrote", "killed", "frozen", "ended"
_LOOKS = {STANDBY: "·", MASTER: "─", WROTE: "█", KILLED: "✗", FROZEN: "░", ENDED: " "}
_PLAIN = str.maketrans("·─█✗░", ".-#x:")


@dataclass(frozen=True, slots=True)
class Event:
    """`what` happened to the site `who`, `at` seconds after the beginning."""

    at: float
    who: str
    what: str


def picture(events: Sequence[Event], *, width: int, encoding: str) -> list[str]:
    """Lines of at most `width` characters: a lane per site, the time, and what the signs mean."""
    sites = list(dict.fromkeys(each.who for each in events))
    label = max(map(len, sites), default=0) + 2
    columns = max(width - label, 20)
    end = max((each.at for each in events), default=0.0) or 1.0
    lines = [who.ljust(label) + _lane([e for e in events if e.who == who], end, columns) for who in sites]
    last = f"{end:.0f} s"
    lines.append(" " * label + "0 s".ljust(columns - len(last)) + last)
    signs = (KILLED, FROZEN, WROTE, MASTER, STANDBY)
    lines.append(" " * label + "   ".join(f"{_LOOKS[each]} {each}" for each in signs))
    return [each.rstrip() if _can_say(each, encoding) else each.translate(_PLAIN).rstrip() for each in lines]


def _lane(events: Iterable[Event], end: float, columns: int) -> str:
    by_column: dict[int, list[str]] = {}
    for each in events:
        by_column.setdefault(min(int(each.at / end * columns), columns - 1), []).append(each.what)
    signs, state = list[str](), ENDED
    for column in range(columns):
        here = by_column.get(column, [])
        # A write has no duration, and a kill matters more than later events in the same column.
        shown = next((each for each in (KILLED, WROTE) if each in here), "")
        for what in here:
            state = {WROTE: MASTER, KILLED: ENDED}.get(what, what)
        signs.append(_LOOKS[shown or state])
    return "".join(signs)


def _can_say(line: str, encoding: str) -> bool:
    try:
        line.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
