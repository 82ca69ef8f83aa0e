"""An operator's pause or transfer, kept in the lease record: no contender, or only one holder or site, may take it.

It takes the lease from no master by force. A master that must give up learns it at its next renewal, stops its work as
after any loss, and releases the lease once the end of that work is proven; else the lease runs out. All times are
seconds since 1970 by the store's clock, or by the reading machine's if the store has none.
"""

import json
import math
from dataclasses import asdict, dataclass

from ..clock import iso_text

LONGEST = 600
"""Maximum length of the text in a record."""
_YEAR_9999 = 253_370_764_800.0


@dataclass(frozen=True, slots=True)
class Directive:
    """`to`: the only holder, label or site that may take the lease; empty: none may.

    It ends at `until` (inf: when an operator resumes the lease). Any other master gives up at `give_up` (inf: never).
    """

    by: str
    reason: str = ""
    to: str = ""
    until: float = math.inf
    give_up: float = math.inf

    def is_for(self, holder: str, site: str) -> bool:
        return bool(self.to) and self.to in (holder, label_of(holder), site)

    def blocks(self, holder: str, site: str, *, now: float) -> bool:
        """True if `holder` may not take the lease."""
        return now < self.until and not self.is_for(holder, site)

    def __str__(self) -> str:
        what = f"reserved for {self.to}" if self.to else "paused"
        until = f" until {iso_text(self.until)[:19]}Z" if self.until < math.inf else ""
        return f"{what} by {self.by}{until}" + (f": {self.reason}" if self.reason else "")

    def in_full(self) -> str:
        """The text for people, with the time at which another master must stop."""
        whose = "any other master" if self.to else "its master"
        return str(self) + (f"; {whose} stops at {iso_text(self.give_up)[:19]}Z" if self.give_up < math.inf else "")

    def text(self) -> str:
        """The text in a record: JSON without empty fields."""
        fields = {key: value for key, value in asdict(self).items() if value not in ("", math.inf)}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def directive_of(text: str) -> Directive | None:
    """Parse the text of a record. An unreadable text blocks all contenders and demotes no master."""
    if not text:
        return None
    try:
        fields = json.loads(text)
        return Directive(
            by=str(fields["by"]),
            reason=str(fields.get("reason", "")),
            to=str(fields.get("to", "")),
            until=_instant(fields.get("until", math.inf)),
            give_up=_instant(fields.get("give_up", math.inf)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return Directive(
            "an unknown operator", f"its directive {text[:40]!r} cannot be read: spark-lease resume cancels it"
        )


def _instant(value: object) -> float:
    """Seconds since 1970; inf for a number outside the calendar."""
    number = float(str(value))
    return number if 0 <= number < _YEAR_9999 else math.inf


def label_of(holder: str) -> str:
    """The configured label: a holder without its unique ending (a broker's name has none)."""
    parts = holder.rsplit(":", 3)
    return parts[0] if len(parts) == 4 else holder
