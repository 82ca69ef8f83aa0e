"""Which run keys say the same on all sites, and what is refused for want of one."""

from __future__ import annotations

import json

import pytest

from tests.airflow.firing import fire, new_day
from tests.airflow.support import FOLDER

pytestmark = pytest.mark.timeout(180)


def test_mapped_tasks_are_known_by_what_they_do() -> None:
    """The sites see different lists: what is number 0 here is number 1 there."""
    day = new_day()
    (FOLDER / "submitted").unlink(missing_ok=True)
    (FOLDER / "files.json").write_text(json.dumps(["a", "b"]))
    here = fire("maps", day)
    (FOLDER / "files.json").write_text(json.dumps(["c", "a", "b"]))
    there = fire("maps", day)
    assert (FOLDER / "submitted").read_text().split() == ["a", "b", "c"]
    assert {task: each.state for task, each in (here | there).items()} == dict.fromkeys(here | there, "success")
    assert there["keyed[1]"].told["run_key"] == f"{day:%Y-%m-%d} a"


def test_mapped_callables_are_known_by_what_they_do() -> None:
    day = new_day()
    (FOLDER / "files.json").write_text(json.dumps(["a", "b"]))
    here = fire("maps_callables", day)
    (FOLDER / "files.json").write_text(json.dumps(["c", "a", "b"]))
    there = fire("maps_callables", day)
    values = [each[f"write[{number}]"].value for each, count in ((here, 2), (there, 3)) for number in range(count)]
    assert values == ["a", "b", "c", None, None]


def test_a_mapped_task_without_a_key_of_its_own_fails(capfd: pytest.CaptureFixture[str]) -> None:
    ended = fire("maps_without_a_key")
    states = {task: each.state for task, each in ended.items()}
    assert states == {"submission[0]": "failed", "write[0]": "failed", "always[0]": "success"}
    said = "".join(capfd.readouterr())
    for example in ("flights {{ ds }} {{ task.application_args[0] }}", "flights {{ ds }} {{ task.op_kwargs.file }}"):
        assert f'give a key that does, as "{example}"' in said
