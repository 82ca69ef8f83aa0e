"""`spark-lease doctor`: checks this machine and the store for what a lease needs. It changes no lease."""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain

from ..clock import BootClock
from ..config.settings import Config
from . import doctor_machine, doctor_store
from .findings import NO_ANSWER, Finding, Verdict, run
from .settings import resolved

_WIDTH = len("fence schemas")


def doctor(arguments: argparse.Namespace) -> int:
    """Print all findings; exit code 1 if a check fails."""
    config = resolved(arguments).config
    # First: it forks, which needs one thread, and drivers may have more.
    here = [run(check) for check in doctor_machine.checks(config)]
    findings = list[Finding]()
    for each in chain(of_the_store(config), filter(None, here)):
        findings.append(each)
        if not arguments.json:  # print each at once: a store that hangs takes long
            print(_line(each), flush=True)
    print(json.dumps([asdict(each) for each in findings], indent=2) if arguments.json else _summary(findings))
    return int(any(each.verdict is Verdict.FAIL for each in findings))


def of_the_store(config: Config) -> Iterator[Finding]:
    """Run the checks one by one. A store that did not answer within `attempt_timeout` is asked no more."""
    careful, clock = replace(config, create_table="false"), BootClock()  # a look must create nothing
    makes_tables = config.scheme == "sqlite" and config.create_table != "false"
    unanswered, lacking = "", dict[str, str]()
    for check in doctor_store.checks(careful, makes_tables=makes_tables):
        is_elsewhere = "fence" in (check.what, check.needs)
        first, began = lacking.get(check.needs) or ("" if is_elsewhere else unanswered), clock.now()
        found = Finding(check.what, Verdict.SKIP, f"not checked: see {first}", "") if first else run(check)
        if found and found.verdict is not Verdict.OK:
            lacking[check.what] = first or check.what
            if found.advice == NO_ANSWER and clock.now() - began >= config.attempt_timeout and not is_elsewhere:
                unanswered = check.what
        if found:
            yield found


def _line(finding: Finding) -> str:
    line = f"{finding.verdict:<5} {finding.what:<{_WIDTH}}  {finding.message}"
    return f"{line}\n{' ' * (_WIDTH + 8)}→ {finding.advice}" if finding.advice else line


def _summary(findings: Sequence[Finding]) -> str:
    counted = {each: sum(finding.verdict is each for finding in findings) for each in Verdict}
    return ", ".join(f"{number} {verdict}" for verdict, number in counted.items())
