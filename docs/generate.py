"""Writes what the reference pages say of the code: settings, commands, errors, events, metrics, tables.

    python docs/generate.py            rewrite the pages
    python docs/generate.py --check    exit 1 and name each page that is out of date

Between `<!-- generated: NAME -->` and `<!-- end -->` stands what the function NAME below returns.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import spark_lease
from spark_lease import errors
from spark_lease.cli.main import main, parser
from spark_lease.cli.settings import default_of
from spark_lease.config.settings import SETTINGS

DOCS = Path(__file__).parent
_PLACE = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def settings() -> str:
    rows = [[f"`{key}`", default_of(key) or "–", meta["help"]] for key, meta in SETTINGS.items()]
    return table(["setting", "default", "meaning"], rows)


def commands() -> str:
    choices = next(each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return "\n".join(_command(name, command) for name, command in choices.choices.items())


def _command(name: str, command: argparse.ArgumentParser) -> str:
    own = [
        [f"`{_shown(each)}`", each.help or ""]
        for each in (*command._positionals._group_actions, *command._optionals._group_actions)
        if not {"--help", "--verbose"} & {*each.option_strings}
    ]
    parts = [f"## {name}\n\n{command.description}\n"]
    if own:
        parts.append(table(["", ""], own))
    parts.append(f"```text not-compared\n{(command.epilog or '').strip()}\n```\n")
    return "\n".join(parts)


def _shown(argument: argparse.Action) -> str:
    value = argument.metavar or "|".join(argument.choices or [])
    return " ".join([*argument.option_strings, value]).strip()


def exceptions() -> str:
    public = [each for name, each in vars(errors).items() if name in spark_lease.__all__]
    ours = [each for each in public if issubclass(each, errors.SparkLeaseError)]
    rows = [[f"`{each.__name__}`", str(each.exit_code), f"`{each.__mro__[1].__name__}`"] for each in ours]
    return table(["error", "exit code", "is a"], rows)


def metrics() -> str:
    from spark_lease.monitoring.metrics import METRICS

    def name(metric: object) -> str:
        [described] = metric.describe()  # type: ignore[attr-defined]
        return described.name + ("_total" if described.type == "counter" else "")

    rows = [[f"`{name(each)}`", each._type, each._documentation] for each in METRICS]
    return table(["metric", "type", "meaning"], rows)


def tables_postgresql() -> str:
    return _tables("postgresql://lease@db/ops")


def tables_mariadb() -> str:
    return _tables("mysql://lease@db/ops")


def _tables(url: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if code := main(["init", "--print-sql", "--url", url]):
            sys.exit(code)
    return f"```sql not-run=it has two ways: a new table, or one that is there\n{said.getvalue()}```\n"


def written(page: str) -> str:
    return _PLACE.sub(lambda place: place[1] + globals()[place[2]]() + place[3], page)


if __name__ == "__main__":
    for key in [key for key in os.environ if key.startswith("SPARK_LEASE_")]:
        del os.environ[key]
    stale = [path for path in sorted(DOCS.rglob("*.md")) if written(path.read_text()) != path.read_text()]
    if sys.argv[1:] == ["--check"]:
        sys.exit("\n".join(f"{each.relative_to(DOCS)} is out of date: run `make docs`" for each in stale) or 0)
    for each in stale:
        each.write_text(written(each.read_text()))
        print("wrote", each.relative_to(DOCS))
