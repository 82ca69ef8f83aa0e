"""`spark-lease demo`: what it shows, and that it ends well on a real Spark."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from spark_lease.cli.demo import _problems
from spark_lease.demo.picture import ENDED, FROZEN, KILLED, MASTER, STANDBY, WROTE, Event, picture
from tests.support.command import COMMAND

EVENTS = [
    Event(1.0, "paris", MASTER),
    Event(2.0, "lyon", STANDBY),
    Event(4.0, "paris", WROTE),
    Event(5.0, "paris", KILLED),
    Event(5.1, "paris", ENDED),
    Event(6.0, "lyon", MASTER),
    Event(8.0, "lyon", FROZEN),
    Event(10.0, "lyon", ENDED),
]


def test_the_picture_has_a_lane_for_each_site() -> None:
    lines = picture(EVENTS, width=27, encoding="utf-8")
    assert lines[0] == "paris    ──────█─✗"
    assert lines[1] == "lyon       ········────░░░"
    assert lines[2] == "       0 s             10 s"
    assert all(len(line) <= 27 for line in lines[:3])


def test_the_picture_can_be_said_in_plain_letters() -> None:
    text = "\n".join(picture(EVENTS, width=60, encoding="ascii"))
    assert text.isascii() and "x killed" in text and "#" in text


def test_what_is_wrong_with_the_table() -> None:
    assert _problems([(1, 5, "a"), (2, 7, "b")]) == []
    assert _problems([]) == ["nothing was written"]
    assert _problems([(1, 5, "a"), (3, 7, "b"), (3, 5, "a")]) == [
        "step 3 was written 2 times",
        "step 2 is missing",
        "step 3 was written under epoch 5, after one of epoch 7",
    ]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = subprocess.run([COMMAND, "demo", "--folder", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (78, f"spark-lease: folder: {tmp_path} is not empty: name a new one\n")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "demo", "--json", "--folder", str(tmp_path / "new")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["problems"], len(found["masters"]), set(found["took_over"])) == ([], 3, {"kill", "freeze"})
    assert {each[2] for each in found["events"]} == {STANDBY, MASTER, WROTE, KILLED, FROZEN, ENDED}
    assert (tmp_path / "new" / "paris.log").exists()
