"""What is noted beside a lease of each change of hands: who was granted it in place of which record, why a hold ended.

Keys are epochs, texts are JSON. `journal/changes.py` writes them, right after the change; `monitoring/history.py` reads
them. An entry that is missing is filled in by the next one, which names the record that it replaced. Times are the
store's, in milliseconds since 1970.
"""

import json
import socket

from .record import LeaseRecord, Snapshot

GRANT, ENDED, APPLICATION = "grant", "ended", "application"
KINDS = (GRANT, ENDED, APPLICATION)
RELEASED = "released"
FINISHED, FAILED, INTERRUPTED, ALREADY_DONE, CRASHED = "finished", "failed", "interrupted", "already done", "crashed"
GIVEN_BACK = (RELEASED, FINISHED, FAILED, INTERRUPTED, ALREADY_DONE, CRASHED)
"""Why a hold ended that was given back: how its work did. "released" where that is not known."""
TAKEN_AWAY, RAN_OUT = "taken by force", "ran out"
_DAY = 86_400_000
_FOR_EVER = 100 * 365 * 86400.0


def grant_text(holder: str, over: Snapshot, *, site: str) -> str:
    """That `holder` was granted the lease in place of the record `over`, which runs, or ran, out at `until_ms`."""
    old, after = over.record, None
    if old is not None:
        until = None if over.left is None else old.stamp
        after = {"holder": old.holder, "epoch": old.epoch, "until_ms": until}
    return json.dumps({"holder": holder, "host": socket.gethostname(), "site": site, "after": after})


def site_in(text: str | None, holder: str) -> str:
    """The site of `holder`, if `text` notes a grant of that holder; "" if no note says so."""
    try:
        entry = json.loads(text or "{}")
        return str(entry["site"]) if entry.get("holder") == holder else ""
    except (ValueError, KeyError, TypeError, AttributeError):  # `history` says what is wrong with it
        return ""


def end_text(why: str, *, detail: str = "", **when: int) -> str:
    """`at`, by the clock that the epochs are of, or `by`: some time before."""
    return json.dumps({"why": why, **when} | ({"detail": detail} if detail else {}))


def is_first_of_its_day(old: LeaseRecord | None, epoch: int) -> bool:
    """Whether the grant `epoch` in place of `old` is: then it is time to forget what is too old."""
    return old is None or old.epoch // _DAY != epoch // _DAY


def bounded_age(retention: float) -> float:
    """`retention`, which may be for ever, as a store can count it."""
    return min(retention, _FOR_EVER)
