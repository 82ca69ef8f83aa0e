"""Which run keys say the same on all sites, and what is refused for want of one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

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
    assert sorted((FOLDER / "submitted").read_text().split()) == ["a", "b", "c"]
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


def test_dates_of_a_schedule_that_each_site_has_for_itself_are_no_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from airflow.models import dagrun

    make = dagrun.get_or_create_dagrun

    def as_scheduled(**told: Any) -> Any:
        run = make(**told)
        run.run_type = "scheduled"
        told["session"].commit()
        return run

    assert {each.state for each in fire("every_day").values()} == {"success"}  # by hand, and so is its date
    monkeypatch.setattr(dagrun, "get_or_create_dagrun", as_scheduled)
    states = {task: each.state for task, each in fire("every_day").items()}
    assert states == {"default": "failed", "write": "failed", "keyed": "success", "keyed_by_setting": "success"}
    said = "".join(capfd.readouterr())
    assert "the schedule of this DAG (DeltaTriggerTimetable) gives each site dates of its own" in said


def test_which_schedules_give_all_sites_the_same_dates() -> None:
    from airflow.sdk import DAG, Asset
    from airflow.sdk.definitions.timetables.assets import AssetOrTimeSchedule
    from airflow.sdk.definitions.timetables.interval import DeltaDataIntervalTimetable
    from airflow.sdk.definitions.timetables.trigger import CronPartitionTimetable, DeltaTriggerTimetable
    from airflow.timetables.trigger import DeltaTriggerTimetable as OfTheScheduler

    from spark_lease.airflow.run_key import has_own_dates

    hour, start = timedelta(hours=1), {"start_date": datetime(2026, 1, 1, tzinfo=UTC)}
    either = AssetOrTimeSchedule(assets=[Asset("a")], timetable=DeltaTriggerTimetable(hour))
    own = [
        {"schedule": hour, **start},
        {"schedule": OfTheScheduler(hour), **start},
        {"schedule": either, **start},
        {"schedule": "@once"},
        {"schedule": "@continuous", "max_active_runs": 1, **start},
        {"schedule": CronPartitionTimetable("@daily", timezone="UTC"), **start},
    ]
    shared = [
        {"schedule": None, **start},
        {"schedule": "@daily", **start},
        {"schedule": hour, "catchup": True, **start},
        {"schedule": DeltaDataIntervalTimetable(hour), **start},
        {"schedule": "@once", **start},
        {"schedule": "@once", "default_args": start},
    ]
    assert [each for each in own if not has_own_dates(DAG("d", **each))] == []
    assert [each for each in shared if has_own_dates(DAG("d", **each))] == []
