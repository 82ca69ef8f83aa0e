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
from tests.faults.campaign.round import AIRFLOW, CONTROLS, DOORS, LEASE, ONCE, SPARK
from tests.faults.campaign.schedule import Kind
from tests.faults.campaign.stores import STORES

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
    return kind in STORES[store][1]


def controls(rounds: Sequence[dict[str, Any]]) -> str:
    lines = [row(["", "rounds", "violated", "of these"]), row(["---"] * 4)]
    for door in CONTROLS:
        mine = [each for each in rounds if each["door"] == door]
        promises = Counter(text.partition(":")[0] for each in mine for text in {*each["violations"]})
        found = ", ".join(f"{name} {number}" for name, number in sorted(promises.items()))
        lines.append(row([door, len(mine), sum(bool(each["violations"]) for each in mine), found]))
    return "\n".join(lines)


def hit_nowhere(rounds: Sequence[dict[str, Any]]) -> list[str]:
    hit = {(each["store"], fault["kind"]) for each in rounds for fault in each["faults"] if fault["hit"]}
    return [f"{kind} on {store}" for store in STORES for kind in Kind if fits(store, kind) and (store, kind) not in hit]


def totals(rounds: Sequence[dict[str, Any]], earlier: Sequence[dict[str, Any]], missing: Sequence[str]) -> str:
    violated, before = (sum(bool(each["violations"]) for each in some) for some in (rounds, earlier))
    counts = [len(rounds), violated, *(sum(each[what] for each in rounds) for what in ("grants", "lines", "rows"))]
    words = "{} rounds, {} violated; {} grants, {} lines, {} fenced rows.".format(*(f"{each:_}" for each in counts))
    for door, how in ((ONCE, "Under run keys"), (SPARK, "With Spark"), (AIRFLOW, "In Airflow")):
        words += f" {how}: {sum(each['door'] == door for each in rounds)} rounds."
    words += f" Never hit: {', '.join(missing)}." if missing else ""
    return words + (f" On earlier code: {len(earlier):_} rounds, {before} violated." if earlier else "")


def main() -> int:
    everything = results()
    guarded = [each for each in everything if each["door"] in (*DOORS, SPARK, AIRFLOW)]
    rounds = [each for each in guarded if each["code"] == guarded[-1]["code"]]
    quick = [each["takeover"] for each in rounds if each.get("takeover") and each["door"] in DOORS]
    if not quick:
        print(f"no take-over is in {RESULTS.relative_to(ROOT)} yet: make campaign", file=sys.stderr)
        return 1
    missing = hit_nowhere(rounds)
    summary = totals(rounds, [each for each in guarded if each not in rounds], missing)
    waited = f"Taken over from a job killed with its keeper: median {statistics.median(quick):.1f} s, at most "
    waited += f"{max(quick):.1f} s (a lease is {LEASE:g} s, moto's and the file server's 6 s)."
    parts = {"rounds": f"{summary}\n\n{table(rounds)}\n\n{waited}\n"}
    if any(each["door"] in CONTROLS for each in everything):  # else those of an earlier campaign stay
        parts["controls"] = f"{controls(everything)}\n"
    page = _PLACES.sub(
        lambda place: place[1] + parts[place[2]] + place[3] if place[2] in parts else place[0], PAGE.read_text()
    )
    PAGE.write_text(page)
    print(f"{summary} See {PAGE.relative_to(ROOT)}")
    return int(missing != [] or any(each["violations"] for each in rounds))


if __name__ == "__main__":
    sys.exit(main())
