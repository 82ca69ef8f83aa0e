"""An operator's pause or transfer, kept in the lease record: no contender, or only one holder or site, may take it.

It never takes the lease from a master by force: one that shall give up is told so at its next renewal, stops its work
as after any loss, and gives it back once the end of that work is proven; else it runs out. All times are seconds since
1970 by the store's clock; where the store has none, by that of the machine that looks.
"""

import json
import math
from dataclasses import asdict, dataclass

from ..clock import iso_text

LONGEST = 600
"""Characters of the text that stands in a record."""
_YEAR_9999 = 253_370_764_800.0


@dataclass(frozen=True, slots=True)
class Directive:
    """`to`: the holder, its label or the site that alone may take the lease; empty: none may.

    Void from `until` on (inf: until it is taken back). A master that it is not for gives up at `give_up`, and keeps the
    lease as long as it likes if that is inf.
    """

    by: str
    reason: str = ""
    to: str = ""
    until: float = math.inf
    give_up: float = math.inf

    def is_for(self, holder: str, site: str) -> bool:
        return bool(self.to) and self.to in (holder, label_of(holder), site)

    def blocks(self, holder: str, site: str, *, now: float) -> bool:
        """Whether it keeps `holder` from taking the lease."""
        return now < self.until and not self.is_for(holder, site)

    def __str__(self) -> str:
        what = f"reserved for {self.to}" if self.to else "paused"
        until = f" until {iso_text(self.until)[:19]}Z" if self.until < math.inf else ""
        return f"{what} by {self.by}{until}" + (f": {self.reason}" if self.reason else "")

    def in_full(self) -> str:
        """With when a master that it is not for has to stop."""
        whose = "any other master" if self.to else "its master"
        return str(self) + (f"; {whose} stops at {iso_text(self.give_up)[:19]}Z" if self.give_up < math.inf else "")

    def text(self) -> str:
        """As it stands in a record: JSON without what is not said."""
        fields = {key: value for key, value in asdict(self).items() if value not in ("", math.inf)}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def directive_of(text: str) -> Directive | None:
    """What stands in a record. An unreadable text bars all contenders and demotes none."""
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
            "an unknown operator", f"its directive {text[:40]!r} cannot be read: spark-lease resume takes it back"
        )


def _instant(value: object) -> float:
    """Seconds since 1970; what is no time of a calendar is never."""
    number = float(str(value))
    return number if 0 <= number < _YEAR_9999 else math.inf


def label_of(holder: str) -> str:
    """What its configuration calls it: a holder without its unique ending, if it has one (a broker's name has not)."""
    parts = holder.rsplit(":", 3)
    return parts[0] if len(parts) == 4 else holder
