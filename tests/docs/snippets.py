"""Runs the blocks of a page as a reader would: in order, in one folder, with a PostgreSQL of their own.

A block's first line may say more than its language:
    ```sh not-run=why             it is not run, for this reason
    ```sh fails=1                 it has to end with this exit code
    ```sh terminal=second         it goes on in a terminal of its own, and has to end well
    ```sh terminal=first killed   … or is killed by a later block
    ```text                       each line stands, in this order, in what the block before it printed
    ```text second                … in what that terminal prints
    ```text not-compared          nothing is compared
In a line that is compared, a number stands for any number and `…` for anything.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from spark_lease.system.processes import kill, tree

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (\w+)=(\S+)", re.MULTILINE)

PATIENCE = 100.0
"""Seconds for one block, and for what a terminal is yet to print."""


class Block(NamedTuple):
    language: str
    about: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(each[1], each[2].strip(), each[3], text[: each.start()].count("\n") + 1) for each in _BLOCK.finditer(text)
    ]


def is_run(block: Block) -> bool:
    return block.language in ("python", "sh", "sql") and not block.about.startswith("not-run=")


class Reader:
    """Somebody who follows a page in `folder`. `replaced` are words of the page for which this machine has others."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], replaced: Mapping[str, str], database: str
    ) -> None:
        self._folder, self._environment, self._replaced, self._database = folder, dict(environment), replaced, database
        self._printed: dict[str, Path] = {}
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._killed = set[str]()

    def follow(self, page: Path) -> None:
        try:
            for block in blocks(page):
                if is_run(block):
                    self._run(block)
                elif block.language == "text" and block.about != "not-compared":
                    self._compare(block)
            for name, terminal in self._terminals.items():
                terminal.wait(PATIENCE)
                killed = name in self._killed
                assert (terminal.returncode != 0) == killed, f"{name}: {self._printed[name].read_text()}"
        finally:
            for terminal in self._terminals.values():
                kill(tree(terminal.pid))

    def _run(self, block: Block) -> None:
        kind, _, value = block.about.partition("=")
        terminal, _, is_killed = value.partition(" ") if kind == "terminal" else ("", "", "")
        self._killed |= {terminal} if is_killed else set()
        printed = self._folder / f"printed-{block.line}"
        self._printed[terminal] = printed
        with printed.open("wb") as file:
            process = subprocess.Popen(
                self._command(block), cwd=self._folder, env=self._environment, stdout=file, stderr=subprocess.STDOUT
            )
        if terminal:
            self._terminals[terminal] = process
            return
        self._environment.update(_EXPORT.findall(self._ours(block.code)))
        try:
            code = process.wait(PATIENCE)
        finally:
            kill(tree(process.pid))
        expected = int(value) if kind == "fails" else 0
        assert code == expected, f"line {block.line} ended with {code}:\n{block.code}\n{printed.read_text()}"

    def _command(self, block: Block) -> list[str]:
        code = self._ours(block.code)
        file = self._folder / f"block-{block.line}.{block.language}"
        if block.language == "sh":
            code = re.sub(r"^pip install .*$", "", code, flags=re.MULTILINE)
        file.write_text(code)
        if block.language == "sql":
            return ["psql", self._database, "-v", "ON_ERROR_STOP=1", "-f", str(file)]
        return [sys.executable, str(file)] if block.language == "python" else ["bash", "-eu", str(file)]

    def _ours(self, code: str) -> str:
        for theirs, ours in self._replaced.items():
            code = code.replace(theirs, ours)
        return code

    def _compare(self, block: Block) -> None:
        printed = self._printed[block.about]
        patterns = [re.compile(_pattern(line)) for line in block.code.splitlines() if line.strip()]
        deadline = time.monotonic() + (PATIENCE if block.about else 0)
        while (missing := _missing(patterns, printed.read_text())) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not missing, f"line {block.line}: {missing.pattern!r} is not in\n{printed.read_text()}"


def _pattern(line: str) -> str:
    return re.sub(r"\d+", r"\\d+", re.sub("…", ".*", re.escape(line.strip())))


def _missing(patterns: list[re.Pattern[str]], printed: str) -> re.Pattern[str] | None:
    """The first pattern that stands in no line after that of the one before it."""
    lines = iter(printed.splitlines())
    return next((each for each in patterns if not any(each.search(line) for line in lines)), None)
