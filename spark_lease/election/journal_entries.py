"""The journal entries of a lease: each grant with the record that it replaced, and why each hold ended.

Keys are epochs, texts are JSON. `journal/changes.py` writes an entry right after the change, `monitoring/history.py`
reads them. If an entry is missing, the next one tells: it names the record that it replaced. Times are the store's, in
milliseconds since 1970.
"""

import json
import socket

from .record import LeaseRecord, Snapshot

GRANT, ENDED, APPLICATION = "grant", "ended", "application"
KINDS = (GRANT, ENDED, APPLICATION)
RELEASED = "released"
FINISHED, FAILED, INTERRUPTED, ALREADY_DONE, CRASHED = "finished", "failed", "interrupted", "already done", "crashed"
GIVEN_BACK = (RELEASED, FINISHED, FAILED, INTERRUPTED, ALREADY_DONE, CRASHED)
"""Why a released hold ended: the outcome of its work; "released" if that is not known."""
TAKEN_AWAY, RAN_OUT = "taken by force", "ran out"
_DAY = 86_400_000
_FOR_EVER = 100 * 365 * 86400.0


def grant_text(holder: str, over: Snapshot, *, site: str) -> str:
    """The entry of a grant to `holder` in place of the record `over`, which expires, or expired, at `until_ms`."""
    old, after = over.record, None
    if old is not None:
        until = None if over.left is None else old.stamp
        after = {"holder": old.holder, "epoch": old.epoch, "until_ms": until}
    return json.dumps({"holder": holder, "host": socket.gethostname(), "site": site, "after": after})


def site_in(text: str | None, holder: str) -> str:
    """The site of `holder`, if `text` is the entry of its grant; else ""."""
    try:
        entry = json.loads(text or "{}")
        return str(entry["site"]) if entry.get("holder") == holder else ""
    except (ValueError, KeyError, TypeError, AttributeError):  # `history` reports an unreadable entry
        return ""


def end_text(why: str, *, detail: str = "", **when: int) -> str:
    """The entry of an end: `at` an instant by the clock of the epochs, or at some time before `by`."""
    return json.dumps({"why": why, **when} | ({"detail": detail} if detail else {}))


def is_first_of_its_day(old: LeaseRecord | None, epoch: int) -> bool:
    """True if `epoch` is the first grant of its day: then old entries are pruned."""
    return old is None or old.epoch // _DAY != epoch // _DAY


def bounded_age(retention: float) -> float:
    """`retention` (may be inf) as a finite number of seconds."""
    return min(retention, _FOR_EVER)
