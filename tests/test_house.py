"""The rules of the house that a reader relies on: imports only go down, one clock, no printing below the door."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import spark_lease

PACKAGE = Path(spark_lease.__file__).parent

LAYERS = re.findall(
    r"\S+",
    """
errors clock logs config system election database stores journal fencing holds lease outcome monitoring keeper spark
guard submit testing demo cli airflow __main__
""",
)
"""Folders and single modules, from the ground up: each imports only what stands before it, lazy imports included."""

HEAVY = {
    "airflow": "airflow.",
    "sqlalchemy": ("database.", "stores.sql.", "fencing.sql.", "fencing.dataframe.", "demo.job"),
    "pyspark": ("spark.", "demo.job", "fencing.dataframe.load"),
    "pyarrow": ("fencing.dataframe.", "fencing.delta.log"),
    "delta": "",
    "deltalake": ("stores.folders.delta", "fencing.delta."),
    "obstore": ("stores.folders.object_store", "fencing.delta.bucket"),
    "arro3": "stores.folders.delta",
    "psycopg2": "",
    "pymysql": "",
    "prometheus_client": "monitoring.metrics",
}


@functools.cache
def modules() -> dict[str, ast.Module]:
    files = {path.relative_to(PACKAGE).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    trees = {".".join(name.parts): ast.parse(path.read_text()) for name, path in files.items()}
    return {name: tree for name, tree in trees.items() if not name.endswith("__init__")}


def imports(name: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(imported module of ours, "") and ("", imported package of others) of the module `name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield "", alias.name
        if isinstance(node, ast.ImportFrom):
            base = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*base, *filter(None, (node.module or "").split("."))])
            if not node.level and not re.match(r"spark_lease\b", module):
                yield "", module
                continue
            module = module.removeprefix("spark_lease").strip(".") if not node.level else module
            if module in modules():
                yield module, ""
            else:
                yield from ((f"{module}.{alias.name}".strip("."), "") for alias in node.names)


def layer(name: str) -> int:
    return LAYERS.index(name.partition(".")[0])


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_layer_imports_only_layers_below_it(name: str) -> None:
    for ours, _ in imports(name, modules()[name]):
        if ours and ours.partition(".")[0] != name.partition(".")[0]:
            assert layer(ours) < layer(name), f"{name} imports {ours}, which stands above it"


def test_neither_modules_nor_folders_import_each_other_in_a_circle() -> None:
    ours = {name: {ours for ours, _ in imports(name, tree) if ours} for name, tree in modules().items()}
    TopologicalSorter(ours).prepare()  # raises CycleError
    folders: dict[str, set[str]] = {}
    for name, imported in ours.items():
        here = name.rpartition(".")[0]
        folders.setdefault(here, set()).update({each.rpartition(".")[0] for each in imported} - {here, ""})
    folders.pop("")
    TopologicalSorter(folders).prepare()


def test_the_configuration_stands_alone() -> None:
    for name, tree in modules().items():
        if name.startswith("config."):
            assert {ours.partition(".")[0] for ours, _ in imports(name, tree) if ours} <= {"config", "clock", "errors"}


def test_the_policy_knows_no_store_no_fence_and_no_spark() -> None:
    for name, tree in modules().items():
        if name.startswith("election."):
            known = {ours.partition(".")[0] for ours, _ in imports(name, tree) if ours}
            assert known <= {"election", "config", "clock", "errors"}, name


def test_heavy_packages_stand_in_one_room_each() -> None:
    for name, tree in modules().items():
        for _, theirs in imports(name, tree):
            home = HEAVY.get(theirs.partition(".")[0])
            assert home is None or (home and name.startswith(home)), f"{name} imports {theirs}"


def test_only_the_clock_reads_a_clock() -> None:
    for name, tree in modules().items():
        read = {theirs.partition(".")[0] for _, theirs in imports(name, tree)} & {"time", "datetime"}
        assert not read or name == "clock", f"{name} imports {read}"


def test_only_the_doors_print() -> None:
    for name, tree in modules().items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        prints = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
        assert not prints or name.startswith(("cli.", "submit.")) or name == "demo.job", f"{name} prints"


def test_sentences_have_a_subject_that_does_something() -> None:
    vague = re.compile(r"\b(nobody|whoever|somebody|anybody|everybody)\b", re.IGNORECASE)
    root = Path(__file__).parents[1]
    files = [*(root / "spark_lease").rglob("*.py"), *(root / "jobs").rglob("*.py"), *(root / "conf").iterdir()]
    found = [f"{each.relative_to(root)}: {word}" for each in files for word in vague.findall(each.read_text())]
    assert not found, "name who does it: a contender, the keeper, a user"


def test_one_idea_has_one_word_and_that_is_the_fields() -> None:
    ours = "lookout strand minder astray bystander weave woven heed barred desk attendance untie"
    private = re.compile(rf"\b({ours.replace(' ', '|')})s?\b", re.IGNORECASE)
    found = [f"{each}: {word}" for each in PACKAGE.rglob("*.py") for word in private.findall(each.read_text())]
    assert not found, "ARCHITECTURE.md has the word for it"


def test_what_a_docstring_names_as_code_is_there() -> None:
    theirs = """SPARK_LEASE_LEASE_DURATION leaseDuration configure_spark_with_delta_pip startTransaction yield_per
    apache_airflow_provider LEGACY_TRANSACTION_CONTROL stream_results"""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    code, known = re.compile(r"`([A-Za-z_][\w.]*)`"), set(theirs.split())
    for path, text in texts.items():
        known |= {*path.relative_to(PACKAGE).with_suffix("").parts, *re.findall(r"\w+", code.sub("", text))}
    named = [(path.name, each) for path, text in texts.items() for each in code.findall(text)]
    assert not [each for each in named if set(each[1].split(".")) - known]


def test_tests_stand_where_the_package_has_what_they_test() -> None:
    root = Path(__file__).parent
    apart = {"support", "services", "simulation", "faults", "benchmarks", "docs", "versions"}
    for each in root.rglob("test_*.py"):
        where = each.parent.relative_to(root)
        if where.parts and where.parts[0] not in apart:
            assert (PACKAGE / where).is_dir(), f"{each.name}: spark_lease has no {where}"


def test_no_test_imports_from_a_file_of_tests() -> None:
    for each in Path(__file__).parent.rglob("*.py"):
        for found in re.findall(
            r"^(?:from|import) (tests\.\S*(?:\.test_|conftest)\S*)", each.read_text(), re.MULTILINE
        ):
            itself = each.relative_to(Path(__file__).parents[1]).with_suffix("").parts  # in a program that it starts
            assert found == ".".join(itself), f"{each.name} imports {found}: move what both need to tests/support"


def test_the_configuration_file_shows_every_setting_with_its_default() -> None:
    from spark_lease.config.settings import SECRETS, SETTINGS
    from spark_lease.config.sources import configure, from_file, resolve

    file = Path(__file__).parents[1] / "conf" / "spark_lease.toml"
    shown = file.read_text()
    assert resolve(from_file(file)).config == configure(), "a line that is not commented out changes a default"
    for key in set(SETTINGS) - SECRETS:
        assert f"# {key} = " in shown, f"{key} is missing"


def test_the_configuration_file_is_right_when_its_comments_are_taken_away(tmp_path: Path) -> None:
    from spark_lease.config.sources import configure, from_file, resolve

    file = Path(__file__).parents[1] / "conf" / "spark_lease.toml"
    lines = [line.removeprefix("# ") if " = " in line else line for line in file.read_text().splitlines()]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    config = resolve(from_file(tmp_path / "c.toml")).config
    default = configure(name="nightly-flights")
    for key in ("lease_duration", "renew_deadline", "stop_budget", "retry_period", "attempt_timeout", "poll_period"):
        assert getattr(config, key) == getattr(default, key)
