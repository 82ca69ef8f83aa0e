"""Draws the pictures of the documentation as SVG from the descriptions below: `make docs` writes them to docs/_static.

Each picture has its own background and follows the reader's light or dark mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

STYLE = """<style>
text { font: 14px system-ui, sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.panel { fill: #f6f8fa } .box { fill: #fff; stroke: #8c959f } .line { stroke: #8c959f } .arrow { stroke: #24292f }
.head { fill: #24292f } .good { fill: #2da44e } .warn { fill: #d4a72c } .bad { fill: #cf222e } .wait { fill: #8c959f }
.on { fill: #fff; font-weight: 600 } .refused { stroke: #cf222e } .word-bad { font-size: 12px; fill: #cf222e }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .small { fill: #9198a1 } .panel { fill: #161b22 } .box { fill: #0d1117; stroke: #656c76 }
.line { stroke: #656c76 } .arrow { stroke: #e6edf3 } .head { fill: #e6edf3 } .word-bad { fill: #ff7b72 }
.refused { stroke: #ff7b72 } }
</style>
<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">
<path d="M0 0 8 4 0 8z" class="head"/></marker></defs>"""

TIME_LINE = [
    ("holder", [(0, 15, "good", "check() answers"), (15, 25, "warn", "Spark is stopped"), (25, 26, "bad", "")]),
    ("contender", [(0, 30, "wait", "waits"), (30, 38, "good", "master")]),
]
MARKS = [
    (0, "renewal sent"),
    (5, "retry"),
    (10, "retry"),
    (15, "renew_deadline"),
    (25, "stop_budget"),
    (30, "lease_duration"),
]

Step = tuple[str, str, str]
"""From lane, to lane (or "" for a note), words; words that begin with `x ` are a refusal."""

DEMOTION: tuple[list[str], list[Step]] = (
    ["Spark of A", "keeper of A", "lease store", "standby B"],
    [
        ("keeper of A", "lease store", "renew: written"),
        ("keeper of A", "lease store", "x renew: no answer"),
        ("keeper of A", "", "15 s since the last good renewal was sent: lost"),
        ("keeper of A", "Spark of A", "stop jobs and streams"),
        ("Spark of A", "", "ended, or killed at 25 s"),
        ("standby B", "lease store", "30 s: take, epoch 6"),
        ("standby B", "", "starts Spark"),
    ],
)
TAKE_OVER: tuple[list[str], list[Step]] = (
    ["driver A", "keeper of A", "lease store", "standby B"],
    [
        ("driver A", "", "killed, 0 s"),
        ("driver A", "keeper of A", "its end is seen"),
        ("keeper of A", "driver A", "kill JVM and workers"),
        ("keeper of A", "", "twice nothing is found"),
        ("keeper of A", "lease store", "release"),
        ("lease store", "standby B", "wake"),
        ("standby B", "lease store", "take, epoch 6"),
        ("standby B", "", "master, 0.1 s"),
    ],
)
FENCE: tuple[list[str], list[Step]] = (
    ["old master, epoch 5", "guarded table", "new master, epoch 6"],
    [
        ("old master, epoch 5", "guarded table", "begin, write rows"),
        ("old master, epoch 5", "", "frozen"),
        ("new master, epoch 6", "guarded table", "claim: epoch 6"),
        ("new master, epoch 6", "guarded table", "write, commit"),
        ("old master, epoch 5", "", "thawed"),
        ("old master, epoch 5", "guarded table", "x commit: refused"),
    ],
)
BOXES = [
    (30, 40, 290, 110, "driver", ["Python: check() reads the deadline", "JVM, Python workers: Spark"]),
    (30, 250, 290, 72, "kernel", ["timer on the keeper, PID namespace"]),
    (450, 40, 240, 72, "guarded tables", ["refuse an older epoch"]),
    (450, 145, 240, 72, "lease store", ["who, until when, epoch"]),
    (450, 250, 240, 72, "keeper", ["takes, renews, watches, gives back"]),
]
ARROWS = [
    ((320, 76), (450, 76), "writes", (365, 68)),
    ((450, 262), (320, 140), "deadline", (336, 222)),
    ((570, 250), (570, 217), "renews", (580, 238)),
    ((450, 292), (320, 292), "sets the timer", (345, 284)),
    ((60, 250), (60, 150), "SIGKILL, if the keeper is late or ends", (72, 204)),
]


def svg(width: int, height: int, title: str, body: Iterator[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
    panel = f'<rect class="panel" width="{width}" height="{height}" rx="10"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", STYLE, panel, *body, "</svg>\n"])


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float, kind: str = "arrow") -> str:
    tip = 'marker-end="url(#tip)"'
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}" stroke-width="1.5" {tip}/>'


def time_line() -> Iterator[str]:
    left, step = 110, 15.5
    for second, words in MARKS:
        x = left + second * step
        yield f'<line x1="{x:g}" x2="{x:g}" y1="52" y2="190" class="line" stroke-dasharray="3 3"/>'
        anchor = {"stop_budget": "end", "lease_duration": "start"}.get(words, "middle")
        yield text(x, 24, f"{second} s", "small", anchor)
        yield text(x, 42, words, "small", anchor)
    for row, (who, spans) in enumerate(TIME_LINE):
        y = 66 + row * 64
        yield text(16, y + 26, who)
        for start, end, kind, words in spans:
            x, width = left + start * step, (end - start) * step
            yield f'<rect x="{x:g}" y="{y}" width="{width:g}" height="40" rx="4" class="{kind}"/>'
            yield text(x + width / 2, y + 25, words, "on", "middle")
    yield text(left + 26 * step + 6, 91, "killed", "small")


def sequence(lanes: Sequence[str], steps: Sequence[Step]) -> Iterator[str]:
    at = {lane: 100 + 200 * number for number, lane in enumerate(lanes)}
    bottom = 74 + 44 * len(steps)
    for lane, x in at.items():
        yield f'<line x1="{x}" x2="{x}" y1="46" y2="{bottom}" class="line"/>'
        yield f'<rect x="{x - 84}" y="14" width="168" height="32" rx="6" class="box"/>'
        yield text(x, 35, lane, "", "middle")
    for number, (one, other, words) in enumerate(steps):
        y = 82 + 44 * number
        refused = words.startswith("x ")
        words = words.removeprefix("x ")
        if other:
            away = 6 if at[other] > at[one] else -6
            yield arrow(at[one], y, at[other] - away, y, "refused" if refused else "arrow")
            middle = (at[one] + at[other]) / 2
            yield text(middle, y - 7, words, "word-bad" if refused else "small", "middle")
        else:
            width = 14 + 6.6 * len(words)
            x = min(max(at[one] - width / 2, 8), 200 * len(lanes) - width - 8)
            yield f'<rect x="{x:g}" y="{y - 18}" width="{width:g}" height="28" rx="14" class="box"/>'
            yield text(x + width / 2, y, words, "small", "middle")


def architecture() -> Iterator[str]:
    for x, y, width, height, title, lines in BOXES:
        yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" class="box"/>'
        yield text(x + 14, y + 26, title)
        for number, line in enumerate(lines):
            yield text(x + 14, y + 48 + 20 * number, line, "small")
    for (x1, y1), (x2, y2), words, (x, y) in ARROWS:
        yield arrow(x1, y1, x2, y2)
        yield text(x, y, words, "small")


def pictures() -> dict[str, str]:
    made = {
        "time-line": svg(720, 206, "The time line of a lease that cannot be renewed", time_line()),
        "architecture": svg(720, 352, "Driver, keeper, kernel, lease store, guarded tables", architecture()),
    }
    for name, title, (lanes, steps) in [
        ("demotion", "A demotion", DEMOTION),
        ("take-over", "A take-over after a crash", TAKE_OVER),
        ("fence", "A fenced commit", FENCE),
    ]:
        made[name] = svg(200 * len(lanes), 84 + 44 * len(steps), title, sequence(lanes, steps))
    return made


if __name__ == "__main__":
    for name, drawn in pictures().items():
        (Path(__file__).parent / "_static" / f"{name}.svg").write_text(drawn)
