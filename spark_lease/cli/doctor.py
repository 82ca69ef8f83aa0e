"""`spark-lease doctor`: is all there that a lease needs, here and in its store? It changes no lease."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from ..config.settings import Config
from . import doctor_machine, doctor_store
from .findings import Finding, Verdict, found, unknown
from .settings import resolved

_WIDTH = 8


def doctor(arguments: argparse.Namespace) -> int:
    """Exit code 1 if something fails."""
    config = resolved(arguments).config
    here = found(doctor_machine.checks(config))  # first: it forks, which needs one thread, and drivers may have more
    findings = [*of_the_store(config), *here]
    if arguments.json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    else:
        print(*(_line(each) for each in findings), sep="\n")
        print(_summary(findings))
    return int(any(each.verdict is Verdict.FAIL for each in findings))


def of_the_store(config: Config) -> list[Finding]:
    careful = replace(config, create_table="false")  # nothing is made by looking
    makes_tables = config.scheme == "sqlite" and config.create_table != "false"
    findings: list[Finding] = []
    lacking = ""
    for check in doctor_store.checks(careful, makes_tables=makes_tables):
        if lacking == "store" or (lacking and check.needs_table):
            findings += unknown([check], f"see {lacking}")
            continue
        findings += (now := found([check]))
        if check.what in ("store", "table") and any(each.verdict is not Verdict.OK for each in now):
            lacking = check.what
    return findings


def _line(finding: Finding) -> str:
    line = f"{finding.verdict:<{_WIDTH - 2}}{finding.what:<{_WIDTH}} {finding.message}"
    return f"{line}\n{' ' * (2 * _WIDTH - 1)}→ {finding.advice}" if finding.advice else line


def _summary(findings: Sequence[Finding]) -> str:
    counted = {each: sum(finding.verdict is each for finding in findings) for each in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
