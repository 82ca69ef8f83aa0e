"""The page of a lease's history, in a real browser."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_lease.monitoring.history import Hold, overlaps
from spark_lease.monitoring.history_page import page
from tests.support.pages import Opens

OUT = Path(__file__).parents[2] / "out"
HOUR, NOON = 3_600_000, 1_795_262_400_000
EVIL = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&"


def hold(site: str, start: float, end: float | None, why: str = "released", **more: Any) -> Hold:
    """Hours after noon."""
    begin = NOON + round(start * HOUR)
    until = None if end is None else NOON + round(end * HOUR)
    name = f"{site}:{4000 + len(site)}:1795262400:74fc676c"
    return Hold(
        lease="nightly", epoch=begin, holder=name, host=f"{site}.example", start=begin, end=until, why=why, **more
    )


DAY = [
    hold("paris", 0, 2, run_keys=("2026-11-20",), applications=("local-1795262400123",)),
    hold("lyon", 2.2, 5.1, "ran out"),
    hold("paris", 6, 6.05),
    hold("lyon", 6.5, 9, "taken", detail="held by nice"),
    hold("nice", 9.5, 11, is_exact=False),
    hold("paris", 11.5, None, "", run_keys=("2026-11-21",)),
]


def written(folder: Path, holds: list[Hold], name: str = "nightly") -> Path:
    file = folder / "page.html"
    file.write_text(page(name, holds, overlaps(holds), earliest=0, now=NOON + 12 * HOUR, where="postgresql://db/ops"))
    return file


def kept(found: Any, name: str) -> None:
    OUT.mkdir(exist_ok=True)
    found.screenshot(path=str(OUT / name), full_page=True)


def luminance(colour: str) -> float:
    red, green, blue = (int(each) for each in colour.removeprefix("rgb(").removesuffix(")").split(","))
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_each_hold_is_a_bar_where_and_as_long_as_it_was(opens: Opens, tmp_path: Path) -> None:
    found = opens(written(tmp_path, DAY))
    kept(found, "history-light.png")
    blocks = [bar.bounding_box() for bar in found.locator(".hold").all()]
    width = found.locator("svg.time").bounding_box()["width"]
    assert len(blocks) == len(DAY)
    assert blocks[0]["width"] == pytest.approx(width * 2 / 12, rel=0.02)
    assert blocks[1]["x"] - blocks[0]["x"] == pytest.approx(width * 2.2 / 12, rel=0.02)
    assert blocks[2]["width"] >= 3, "three minutes of a day can be seen"
    assert blocks[5]["x"] + blocks[5]["width"] == pytest.approx(blocks[0]["x"] + width, abs=1.5)
    assert blocks[0]["y"] == blocks[2]["y"] != blocks[1]["y"], "each contender has a lane"
    assert len(found.locator(".gap").all()) == 5 + 1  # and the legend's
    assert "No two of 6 held it at one time" in found.inner_text(".verdict")


def test_two_that_held_it_at_one_time_are_shown_in_alarm(opens: Opens, tmp_path: Path) -> None:
    found = opens(written(tmp_path, [*DAY, hold("nice", 1, 3)]))
    kept(found, "history-overlap.png")
    assert "Two held it at one time" in found.inner_text("[role=alert]")
    (alarm, alarm_too, *_) = found.locator("svg.time .overlap").all()
    width = found.locator("svg.time").bounding_box()["width"]
    assert alarm.bounding_box()["width"] == pytest.approx(width / 12, rel=0.05)
    assert alarm_too


def test_details_come_by_pointer_by_keys_and_by_touch(opens: Opens, tmp_path: Path) -> None:
    file = written(tmp_path, DAY)
    found = opens(file)
    found.locator(".hold").nth(0).hover()
    assert "2026-11-20" in found.inner_text("#details") and "local-1795262400123" in found.inner_text("#details")
    found.locator(".hold").nth(2).focus()
    found.keyboard.press("ArrowRight")
    assert "taken: held by nice" in found.inner_text("#details")
    found.keyboard.press("ArrowLeft")
    assert f"{DAY[2].epoch}" in found.inner_text("#details")
    phone = opens(file, width=375, touch=True)
    phone.locator(".hold").nth(4).tap()
    assert "nice.example" in phone.inner_text("#details") and "≤" in phone.inner_text("#details")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_on_a_phone_by_day_and_by_night(opens: Opens, tmp_path: Path, scheme: str) -> None:
    found = opens(written(tmp_path, DAY), width=375, scheme=scheme, touch=True)
    kept(found, f"history-phone-{scheme}.png")
    assert found.evaluate("document.documentElement.scrollWidth") <= 375
    style = "getComputedStyle(document.body)."
    back, text = (luminance(found.evaluate(style + what)) for what in ("backgroundColor", "color"))
    assert (back > 0.9 and text < 0.2) if scheme == "light" else (back < 0.15 and text > 0.8)
    labels = [label.bounding_box() for label in found.locator("svg.time .when:not(.few)").all()]
    assert labels and labels[0]["x"] >= 0 and labels[-1]["x"] + labels[-1]["width"] <= 375
    assert all(one["x"] + one["width"] < other["x"] for one, other in itertools.pairwise(labels))
    size = "each => parseFloat(getComputedStyle(each).fontSize)"
    assert all(found.locator(each).first.evaluate(size) >= 12 for each in (".when", ".who", "td"))


def test_words_of_users_are_words(opens: Opens, tmp_path: Path) -> None:
    evil = hold(EVIL, 1, 2, f"taken{EVIL}", detail=EVIL, run_keys=(EVIL,), applications=(EVIL,))
    found = opens(written(tmp_path, [evil, hold(EVIL + "2", 1.5, 3)], EVIL))
    for bar in found.locator(".hold").all():
        bar.hover()
        bar.focus()
    assert found.evaluate("window.hacked") is None
    assert found.locator("img").count() == 0 == found.locator("script").count() - 1
    assert EVIL in found.inner_text("h1") and EVIL in found.inner_text("#details")
    assert EVIL in found.locator("svg .who").nth(1).text_content()


def test_the_command_writes_a_page_of_what_there_is(opens: Opens, url: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("spark-lease"))]
    for number in range(2):
        words = ["run", "--lease", "n", "--url", url, "--holder", "paris", "--run-key", f"k{number}", "--", "true"]
        subprocess.run([*command, *words], check=True, capture_output=True)
    file = tmp_path / "n.html"
    told = subprocess.run(
        [*command, "history", "n", "--url", url, "--html", str(file), "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert len(json.loads(told.stdout)["holds"]) == 2
    found = opens(file)
    assert found.locator(".hold").count() == 2 == found.locator("tbody tr").count()
    assert found.locator("tbody tr").nth(1).inner_text().split("\t")[-1] == "k1"
