"""The table of a campaign, from out/campaign.jsonl into docs/explanation/campaign.md: kinds of faults × stores.

python -m tests.faults.campaign.report      (make campaign-report)
"""

from __future__ import annotations

import re
import statistics
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from tests.faults.campaign.__main__ import RESULTS, ROOT, results
from tests.faults.campaign.round import CONTROLS, DOORS, LEASE, SPARK
from tests.faults.campaign.schedule import Kind
from tests.faults.campaign.stores import STORES, kinds_of

PAGE = ROOT / "docs/explanation/campaign.md"
_PLACES = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def row(cells: Collection[object]) -> str:
    return f"| {' | '.join(str(each) for each in cells)} |"


def table(rounds: Sequence[dict[str, Any]]) -> str:
    hits = Counter((each["store"], fault["kind"]) for each in rounds for fault in each["faults"] if fault["hit"])
    bad = Counter((each["store"], fault["kind"]) for each in rounds if each["violations"] for fault in each["faults"])
    lines = [row(["fault", *STORES]), row(["---"] * (len(STORES) + 1))]
    for kind in Kind:
        cells = [f"{hits[store, kind]}{f', {bad[store, kind]} violated' * bool(bad[store, kind])}" for store in STORES]
        lines.append(
            row([kind, *(cell if fits(store, kind) else "-" for store, cell in zip(STORES, cells, strict=True))])
        )
    played = [sum(each["store"] == store for each in rounds) for store in STORES]
    violated = [sum(each["store"] == store and bool(each["violations"]) for each in rounds) for store in STORES]
    return "\n".join([*lines, row(["**rounds**", *played]), row(["**violated**", *violated])])


def fits(store: str, kind: Kind) -> bool:
    return kind in kinds_of(store)


def controls(rounds: Sequence[dict[str, Any]]) -> str:
    lines = [row(["", "rounds", "violated", "of these"]), row(["---"] * 4)]
    for door in CONTROLS:
        mine = [each for each in rounds if each["door"] == door]
        promises = Counter(text.partition(":")[0] for each in mine for text in {*each["violations"]})
        found = ", ".join(f"{name} {number}" for name, number in sorted(promises.items()))
        lines.append(row([door, len(mine), sum(bool(each["violations"]) for each in mine), found]))
    return "\n".join(lines)


def main() -> int:
    everything = results()
    rounds = [each for each in everything if each["door"] in (*DOORS, SPARK)]
    hit = {(each["store"], fault["kind"]) for each in rounds for fault in each["faults"] if fault["hit"]}
    missing = [
        f"{kind} on {store}" for store in STORES for kind in Kind if fits(store, kind) and (store, kind) not in hit
    ]
    takeovers = [each["takeover"] for each in rounds if each.get("takeover")]
    if not takeovers:
        print(f"no take-over is in {RESULTS.relative_to(ROOT)} yet: make campaign", file=sys.stderr)
        return 1
    violated = sum(bool(each["violations"]) for each in rounds)
    counts = [len(rounds), violated, *(sum(each[what] for each in rounds) for what in ("grants", "lines", "rows"))]
    totals = "{} rounds, {} violated; {} grants, {} lines, {} fenced rows.".format(*(f"{each:_}" for each in counts))
    totals += f" With Spark: {sum(each['door'] == SPARK for each in rounds)} rounds."
    totals += f" Never hit: {', '.join(missing)}." if missing else ""
    waited = f"Taken over from a job killed with its keeper: median {statistics.median(takeovers):.1f} s, at most "
    waited += f"{max(takeovers):.1f} s (a lease is {LEASE:g} s)."
    parts = {"rounds": f"{totals}\n\n{table(rounds)}\n\n{waited}\n", "controls": f"{controls(everything)}\n"}
    PAGE.write_text(_PLACES.sub(lambda place: place[1] + parts[place[2]] + place[3], PAGE.read_text()))
    print(f"{totals} See {PAGE.relative_to(ROOT)}")
    return int(bool(violated or missing))


if __name__ == "__main__":
    sys.exit(main())
