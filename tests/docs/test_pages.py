"""What every page of the documentation keeps to: links lead somewhere, no page is long, the words are plain, and what
is said of the code is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_lease import outcome
from spark_lease.election import journal_entries as changes
from spark_lease.monitoring.events import What
from tests.docs.snippets import DOCS, PAGES

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"<!-- generated.*?<!-- end -->", re.DOTALL)
ONE_SCREEN = 65
PRIVATE = re.compile(
    r"\b(nobody|whoever|somebody|anybody|everybody|what is wanted of|astray|strand|lookout|minder)\b", re.I
)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(params=PAGES, ids=name)
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_the_front_page_is_at_most_180_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 180


def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name(page)} links to {target}"
        assert not anchor or anchor in anchors(there), f"{name(page)} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in titles}


def test_a_page_is_at_most_two_screens_of_its_own(page: Path) -> None:
    if page.parent != ROOT:
        assert len(GENERATED.sub("", page.read_text()).splitlines()) <= 2 * ONE_SCREEN


def test_no_cell_of_a_table_is_a_paragraph(page: Path) -> None:
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    shown = [re.sub(r"\]\([^)]*\)", "]", cell) for cell in cells]
    assert not [cell for cell in shown if len(cell) > 120]


def test_the_words_are_plain(page: Path) -> None:
    assert not PRIVATE.findall(page.read_text())


def test_every_page_is_in_the_index(page: Path) -> None:
    if page.parent == ROOT or page.name == "index.md":
        return
    assert name(page).removeprefix("docs/").removesuffix(".md") in (DOCS / "index.md").read_text().split()


def test_every_event_and_outcome_has_its_line() -> None:
    events, codes = (DOCS / "reference" / f"{each}.md" for each in ("events", "exit-codes"))
    missing = [each for each in What if f"| `{each}` |" not in events.read_text()]
    words = {*outcome._WORDS.values(), *changes.GIVEN_BACK} - {"released"}
    missing += [each for each in words if f"`{each}`" not in codes.read_text()]
    assert not missing


def test_what_is_said_of_the_code_is_what_the_code_says() -> None:
    check = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert check.returncode == 0, check.stderr


def test_the_pictures_are_those_of_their_descriptions() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        from pictures import pictures  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    for title, drawn in pictures().items():
        assert (DOCS / "_static" / f"{title}.svg").read_text() == drawn, "run `make docs`"


def test_every_message_that_is_explained_is_one_of_ours() -> None:
    page = (DOCS / "reference" / "messages.md").read_text()
    named = re.findall(r"^\| `([^`]+)`", page, re.M)
    assert len(named) > 25 and named == sorted(named, key=str.lower)
    source = "".join(each.read_text() for each in (ROOT / "spark_lease").rglob("*.py"))
    one_line = re.sub(r'"\s*\n\s*f?"', "", source)  # a text over two lines
    assert [each for each in named if each not in one_line] == []
