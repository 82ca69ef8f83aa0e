"""`spark-lease doctor`: is all there that a lease needs, here and in its store? It changes no lease."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from ..config.settings import Config
from . import doctor_machine, doctor_store
from .findings import Finding, Verdict, run
from .settings import resolved


def doctor(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something fails."""
    config = resolved(arguments).config
    # First: it forks, which needs one thread, and drivers may have more.
    here = [run(check) for check in doctor_machine.checks(config)]
    findings = [*of_the_store(config), *filter(None, here)]
    if arguments.json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        width = max(len(each.what) for each in findings)
        print(*(_line(each, width) for each in findings), sep="\n")
        print(_summary(findings))
    return int(any(each.verdict is Verdict.FAIL for each in findings))


def of_the_store(config: Config) -> list[Finding]:
    careful = replace(config, create_table="false")  # nothing is made by looking
    makes_tables = config.scheme == "sqlite" and config.create_table != "false"
    findings: list[Finding] = []
    lacking: dict[str, str] = {}
    for check in doctor_store.checks(careful, makes_tables=makes_tables):
        first = lacking.get(check.needs)
        found = Finding(check.what, Verdict.SKIP, f"not checked: see {first}", "") if first else run(check)
        if found:
            findings.append(found)
            if found.verdict is not Verdict.OK:
                lacking[check.what] = first or check.what
    return findings


def _line(finding: Finding, width: int) -> str:
    line = f"{finding.verdict:<5} {finding.what:<{width}}  {finding.message}"
    return f"{line}\n{' ' * (width + 8)}→ {finding.advice}" if finding.advice else line


def _summary(findings: Sequence[Finding]) -> str:
    counted = {each: sum(finding.verdict is each for finding in findings) for each in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
