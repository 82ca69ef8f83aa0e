"""The history of a lease as one page for a browser: a picture of who was master when, and a table of the same.

One file that loads nothing: what it needs is in it, and it forbids its own browser to fetch anything else. The picture
is drawn here; the rest is `history_page.html`, whose script only shows the details of what is pointed at. Words of
users are escaped wherever they stand.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from ..clock import iso_text, utc_text
from ..election.directive import label_of
from ..election.journal_entries import GIVEN_BACK, RAN_OUT
from .history import UNKNOWN, Hold, Overlap, not_exact

_LANE, _BAR, _TOP = 46, 20, 8
_NARROWEST = 0.35
"""Per cent of the width: a narrower bar would be invisible."""
_TICKS = 6
_MARGIN = 12
"""Per cent at both ends without a time label: half the width of a label, on a phone."""
_STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400]
_STEPS += [86400 * days for days in (2, 5, 10, 30, 90, 365, 1825)]
_ENDS = dict.fromkeys(GIVEN_BACK, "released") | {"": "holds", RAN_OUT: "ranout", UNKNOWN: "unknown"}


def page(name: str, holds: Sequence[Hold], both: Sequence[Overlap], *, earliest: int, now: int, where: str) -> str:
    """The whole page. It shows the time from `earliest` (0: the first that is known) to `now`; all in ms since 1970."""
    instants = [each for hold in holds for each in (hold.start, hold.end) if each is not None]
    begin, end = earliest or min(instants, default=now - 1000), max([now, *instants])
    scale = _Scale(begin, max(end, begin + 1000))
    lanes = list(dict.fromkeys(label_of(hold.holder) for hold in holds))
    height = _TOP + _LANE * (len(lanes) + 1) + 26
    picture = "\n".join(
        [
            *_axis(scale, height),
            *_nobody(scale, holds),
            *_bars(scale, holds, lanes),
            *_alarms(scale, both, _TOP + _LANE * (len(lanes) + 1)),
        ]
    )
    template = files(__package__).joinpath("history_page.html").read_text(encoding="utf-8")
    script = template.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(template).substitute(
        name=escape(name),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        when=f"{_time(begin)} – {_time(end)}",
        where=escape(where),
        made=_time(now),
        verdict=_verdict(holds, both),
        height=height,
        picture=picture,
        rows="\n".join(_row(number, hold) for number, hold in enumerate(holds)),
    )


class _Scale:
    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end

    def at(self, instant: int | None, otherwise: int) -> float:
        """The position of `instant` in per cent of the width."""
        shown = min(max(otherwise if instant is None else instant, self.begin), self.end)
        return 100 * (shown - self.begin) / (self.end - self.begin)


def _axis(scale: _Scale, height: int) -> Iterator[str]:
    span = (scale.end - scale.begin) / 1000
    step = next((each for each in _STEPS if span / each <= _TICKS), _STEPS[-1]) * 1000
    for number, instant in enumerate(range(scale.begin - scale.begin % step + step, scale.end + 1, step)):
        x = scale.at(instant, instant)
        label = utc_text(instant / 1000)
        shown = label[:10] if step >= 86_400_000 else label[5:16] if step >= 60_000 else label[11:19]
        yield f'<line class="tick" x1="{x:.3f}%" x2="{x:.3f}%" y1="0" y2="{height - 22}"/>'
        if _MARGIN < x < 100 - _MARGIN:
            few = " few" if number % 2 else ""
            yield f'<text class="when{few}" x="{x:.3f}%" y="{height - 6}" text-anchor="middle">{shown}</text>'


def _nobody(scale: _Scale, holds: Sequence[Hold]) -> Iterator[str]:
    """The lane of the times in which the lease was free, as far as is known."""
    yield f'<text class="who" x="0" y="{_TOP + 12}">no master</text>'
    reached = scale.begin
    for hold in sorted(holds, key=lambda hold: hold.position):
        start = hold.start if hold.start is not None else hold.end or scale.end
        if start > reached:
            yield _gap(scale, reached, start)
        reached = scale.end if hold.goes_on else max(reached, hold.end or start)
    if reached < scale.end:
        yield _gap(scale, reached, scale.end)


def _gap(scale: _Scale, begin: int, end: int) -> str:
    x, width = scale.at(begin, begin), scale.at(end, end) - scale.at(begin, begin)
    title = f"no master for {_span((end - begin) / 1000)}, from {_time(begin)} to {_time(end)}"
    return (
        f'<rect class="gap" x="{x:.3f}%" width="{max(width, 0.1):.3f}%" y="{_TOP + 18}" height="{_BAR}">'
        f"<title>{title}</title></rect>"
    )


def _bars(scale: _Scale, holds: Sequence[Hold], lanes: Sequence[str]) -> Iterator[str]:
    for lane, who in enumerate(lanes, start=1):
        yield f'<text class="who" x="0" y="{_TOP + _LANE * lane + 12}">{escape(who)}</text>'
    for number, hold in enumerate(holds):
        y = _TOP + _LANE * (lanes.index(label_of(hold.holder)) + 1) + 18
        x, end = scale.at(hold.start, hold.end or scale.begin), scale.at(hold.end, scale.end)
        if hold.end is None and not hold.goes_on:  # not known: a mark where it began
            end = x
        width = max(end - x, _NARROWEST)
        yield (
            f'<rect class="hold {_ENDS.get(hold.why, "lost")}{"" if hold.ends_exactly else " bound"}" tabindex="0" '
            f'role="button" data-row="{number}" aria-label="{escape(_description(hold))}" '
            f'x="{min(x, 100 - width):.3f}%" width="{width:.3f}%" y="{y}" height="{_BAR}" rx="3"/>'
        )


def _alarms(scale: _Scale, both: Sequence[Overlap], height: int) -> Iterator[str]:
    for each in both:
        x, end = scale.at(each.start, each.start), scale.at(each.end, scale.end)
        yield (
            f'<rect class="overlap" x="{x:.3f}%" width="{max(end - x, _NARROWEST):.3f}%" y="{_TOP}" '
            f'height="{height - _TOP}"><title>two held it</title></rect>'
        )


def _verdict(holds: Sequence[Hold], both: Sequence[Overlap]) -> str:
    if both:
        lines = "".join(
            f"<li>{_time(each.start)} – {_time(each.end) if each.end is not None else 'now'}: "
            f"{escape(each.first.holder)} and {escape(each.second.holder)}</li>"
            for each in both
        )
        return f'<div class="verdict alarm" role="alert"><b>⚠ Two held it at one time</b><ul>{lines}</ul></div>'
    if not holds:
        return '<div class="verdict">It was free all this time.</div>'
    unsure = not_exact(holds)
    but = f" Of {unsure} it is not known to the millisecond when they began and ended." if unsure else ""
    return f'<div class="verdict">✓ No two of {len(holds)} held it at one time.{but}</div>'


def _row(number: int, hold: Hold) -> str:
    begun, end = hold.times
    cells = {
        "From": begun,
        "To": end,
        "Lasted": "" if hold.lasted is None else _span(hold.lasted),
        "Ended by": hold.ended_by or "holds it",
        "Epoch": str(hold.epoch or "–"),
        "Holder": hold.holder,
        "Host": hold.where,
        "Application": " ".join(hold.applications),
        "Run keys": " ".join(hold.run_keys),
    }
    shown = "".join(f'<td data-label="{label}">{escape(text)}</td>' for label, text in cells.items())
    return f'<tr id="row{number}">{shown}</tr>'


def _description(hold: Hold) -> str:
    end = "now" if hold.goes_on else "an unknown time" if hold.end is None else _time(hold.end)
    begin = "an unknown time" if hold.start is None else _time(hold.start)
    return f"{hold.holder}, from {begin} to {end}, {hold.why or 'holds it'}"


def _time(instant: int) -> str:
    return iso_text(instant / 1000)


def _span(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
