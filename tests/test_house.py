"""The rules of the house that a reader relies on: imports only go down, one clock, no printing below the door."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_lease

PACKAGE = Path(spark_lease.__file__).parent

# From the ground up: a module imports only what stands before it.
FLOORS = re.findall(
    r"\S+",
    """
errors clock logs processes signals system.container_init system.containment wish record fences.session config
lockers.base lockers.wrapped lockers.timed lockers.changes lockers.sql_backends lockers.sql_engine lockers.sql_words
lockers.sql_schema lockers.sql_statements lockers.sql_rows lockers.sql_notes lockers.sql_noting lockers.sql_history
lockers.sql lockers.sql_probe lockers.bounded lockers.folders
lockers.delta_words lockers.delta_files lockers.delta_objects lockers.note_files lockers.folder_history lockers.delta
lockers.file lockers.folder_probe lockers.sql_session lockers.unguarded lockers.folder_notes lockers.registry
lockers.bystander lockers.standbys
fences.base fences.levels fences.delta_folders fences.delta_bucket fences.delta_log
fences.delta fences.delta_claims fences.delta_tables fences.delta_rs
fences.sql_table fences.sql_older fences.sql_astray fences.sql_claim fences.sql_refusals fences.sql_inside
fences.sql_cursors fences.sql_psycopg2 fences.sql_commit fences.sql fences.sql_done
fences.frames_target fences.frames_columns fences.frames_collect fences.frames_load fences.frames_place
fences.frames_move fences.frames
fences.postgres fences.databases runs lookout history history_page
locker lease keepalive hold metrics events outcome
keeper.kernel keeper.deadline keeper.death keeper.channel keeper.messages keeper.standstill
keeper.enforced keeper.family keeper.supervisor keeper.driver keeper.contained keeper.process keeper.start keeper.kept
submissions submit.contained
spark.connect spark.demotion spark.contexts spark.applications spark.refusals spark.delta_hook spark.fencing
spark.conf spark.orphan
guard typed doors spark.launcher runner
testing.clock testing.store testing.lease testing.contract testing.history testing.checker
demo.job demo.picture
cli.settings cli.table cli.look cli.spark_submit cli.run cli.store cli.watch cli.history cli.release cli.wishes
cli.fence cli.bundle cli.cluster cli.submit
cli.demo cli.findings cli.doctor_machine cli.doctor_store cli.doctor cli.main __main__
airflow.provider airflow.access airflow.masking airflow.hook airflow.link airflow.pages airflow.plugin airflow.trigger
airflow.submission airflow.operator airflow.sensor airflow.callable airflow.decorator
""",
)

HEAVY = {
    "airflow": "airflow.",
    "sqlalchemy": ("lockers.sql", "fences.", "demo.job"),
    "pyspark": ("spark.", "demo.job", "fences.frames_load", "fences.frames_collect"),
    "pyarrow": ("fences.frames", "fences.delta_log"),
    "delta": "",
    "deltalake": ("lockers.delta", "fences.delta"),
    "obstore": ("lockers.delta_objects", "fences.delta_bucket"),
    "arro3": "lockers.delta",
    "psycopg2": "",
    "pymysql": "",
    "prometheus_client": "metrics",
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
        if isinstance(node, ast.ImportFrom) and not node.level:
            package, _, inner = (node.module or "").partition(".")
            yield (inner, "") if package == "spark_lease" else ("", node.module or "")
        if isinstance(node, ast.ImportFrom) and node.level:
            base = name.split(".")[: -node.level]
            module = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            if module in FLOORS:
                yield module, ""
            else:
                yield from ((f"{module}.{alias.name}".strip("."), "") for alias in node.names)


def test_every_module_has_its_floor() -> None:
    assert sorted(modules()) == sorted(FLOORS)


@pytest.mark.parametrize("name", FLOORS)
def test_imports_only_go_down(name: str) -> None:
    for ours, _ in imports(name, modules()[name]):
        if ours:
            assert FLOORS.index(ours) < FLOORS.index(name), f"{name} imports {ours}, which stands above it"


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
        assert not prints or name.startswith("cli.") or name in ("spark.launcher", "demo.job"), f"{name} prints"


def test_sentences_have_a_subject_that_does_something() -> None:
    vague = re.compile(r"\b(nobody|whoever|somebody|anybody|everybody)\b", re.IGNORECASE)
    root = Path(__file__).parents[1]
    files = [*(root / "spark_lease").rglob("*.py"), *(root / "jobs").rglob("*.py"), *(root / "conf").iterdir()]
    found = [f"{each.relative_to(root)}: {word}" for each in files for word in vague.findall(each.read_text())]
    assert not found, "name who does it: a contender, the keeper, a user"


def test_the_configuration_file_shows_every_setting_with_its_default() -> None:
    from spark_lease.config import SECRETS, SETTINGS, configure, from_file, resolve

    file = Path(__file__).parents[1] / "conf" / "spark_lease.toml"
    shown = file.read_text()
    assert resolve(from_file(file)).config == configure(), "a line that is not commented out changes a default"
    for key in set(SETTINGS) - SECRETS:
        assert f"# {key} = " in shown, f"{key} is missing"


def test_the_configuration_file_is_right_when_its_comments_are_taken_away(tmp_path: Path) -> None:
    from spark_lease.config import configure, from_file, resolve

    file = Path(__file__).parents[1] / "conf" / "spark_lease.toml"
    lines = [line.removeprefix("# ") if " = " in line else line for line in file.read_text().splitlines()]
    (tmp_path / "c.toml").write_text("\n".join(lines))
    config = resolve(from_file(tmp_path / "c.toml")).config
    default = configure(name="nightly-flights")
    for key in ("lease_duration", "renew_deadline", "stop_budget", "retry_period", "attempt_timeout", "poll_period"):
        assert getattr(config, key) == getattr(default, key)
