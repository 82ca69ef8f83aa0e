"""Each page of the built site, in a real browser: at a desk and on a phone, by day and by night, without a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import Opens
from tests.support.tiers import once_more

ROOT = Path(__file__).parents[2]
SITE, OUT = ROOT / "out" / "site", ROOT / "out" / "pages"
PAGES = sorted(str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md"))
WIDER = """() => {
    const room = document.documentElement.clientWidth;
    const scrolls = node => node && (getComputedStyle(node).overflowX != 'visible' || scrolls(node.parentElement));
    return [...document.querySelectorAll('article *')]
        .filter(each => each.getBoundingClientRect().right > room + 1 && !scrolls(each.parentElement))
        .map(each => each.tagName + ' ' + each.textContent.slice(0, 60));
}"""


def luminance(colour: str) -> float:
    red, green, blue = (float(each) for each in colour.partition("(")[2].rstrip(")").split(",")[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def background(page: Any) -> float:
    return luminance(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (390, "dark"), once_more(1280, "dark"), once_more(390, "light")]
)
def test_every_page_can_be_read(opens: Opens, width: int, scheme: str) -> None:
    if not SITE.is_dir() and "CI" not in os.environ:
        pytest.skip("the site is not built: make docs")
    OUT.mkdir(parents=True, exist_ok=True)
    wrong: dict[str, Any] = {}
    page = opens(SITE / "index.html", width=width, scheme=scheme)
    for name in PAGES:
        page.goto((SITE / f"{name}.html").as_uri())
        if wider := page.evaluate(WIDER):
            wrong[name] = wider
        assert len(page.inner_text("article")) > 200, name
        assert (background(page) > 0.5) is (scheme == "light"), name
        broken = page.evaluate("() => [...document.images].filter(each => !each.naturalWidth).map(each => each.src)")
        assert not broken, name
        if "CI" not in os.environ:  # for people
            page.screenshot(path=str(OUT / f"{name.replace('/', '-')}-{width}-{scheme}.png"), full_page=True)
    assert not wrong
