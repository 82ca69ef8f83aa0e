"""The real policy, loaded once more from its source with a step before each statement, and with a fault if wanted.

A step is where the simulator may freeze a machine or starve a thread. A mutation is one exact piece of source and what
stands there instead; one whose piece is not found exactly once does not apply any more, and that is an error.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "config.settings",
    "config.sources",
    "election.record",
    "election.locker",
    "election.hold",
    "election.contender",
    "election.keepalive",
    "election.lifecycle",
    "testing.store",
)
"""Reloaded in this order: each finds the new ones of those before it."""
STEPPED = tuple(
    each for each in MODULES if each not in ("config.settings", "config.sources", "election.record", "testing.store")
)


@dataclass(frozen=True)
class Edit:
    """In the module `module` of spark_lease, `old` becomes `new`."""

    module: str
    old: str
    new: str


class DoesNotApply(Exception):
    """The source does not have the piece that a mutation is about."""


@dataclass(frozen=True)
class Policy:
    settings: Any
    sources: Any
    record: Any
    locker: Any
    hold: Any
    contender: Any
    keepalive: Any
    lifecycle: Any
    store: Any


def load(step: Callable[[], None], edits: Sequence[Edit] = ()) -> Policy:
    """The policy's modules with `edits`, calling `step` before each of their statements. Leaves the imported alone."""
    names = [f"spark_lease.{module}" for module in MODULES]
    before = {name: importlib.import_module(name) for name in names}
    loaded: dict[str, ModuleType] = {}
    if elsewhere := {edit.module for edit in edits} - set(MODULES):
        raise DoesNotApply(f"no modules of the policy: {elsewhere}")
    try:
        for module, name in zip(MODULES, names, strict=True):
            loaded[module] = sys.modules[name] = _run(module, before[name], step, edits)
    finally:
        sys.modules.update(before)
    return Policy(**{module.rpartition(".")[2]: each for module, each in loaded.items()})


def _run(module: str, original: ModuleType, step: Callable[[], None], edits: Sequence[Edit]) -> ModuleType:
    file = str(original.__file__)
    tree = ast.parse(edited(Path(file).read_text(), module, edits), file)
    if module in STEPPED:
        tree = ast.fix_missing_locations(_Stepping().visit(tree))
    fresh = ModuleType(original.__name__)
    fresh.__dict__.update(__package__=original.__package__, __file__=file, step__=step)
    sys.modules[original.__name__] = fresh  # dataclasses look themselves up there
    exec(compile(tree, file, "exec"), fresh.__dict__)
    return fresh


def edited(source: str, module: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        if edit.module == module:
            if source.count(edit.old) != 1:
                raise DoesNotApply(f"{source.count(edit.old)} times in {module}, not once: {edit.old!r}")
            source = source.replace(edit.old, edit.new)
    return source


class _Stepping(ast.NodeTransformer):
    """Puts `step__()` before each statement of each function."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._step_through(node)
        return node

    def _step_through(self, node: ast.AST) -> None:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                steps = []
                for each in statements:
                    self._step_through(each)
                    steps += [ast.parse("step__()").body[0], each]
                setattr(node, name, steps)
        for handler in getattr(node, "handlers", []):
            self._step_through(handler)
