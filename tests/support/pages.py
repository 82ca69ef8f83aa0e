"""Fixtures that open pages in a real browser, without a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.browser import MISSING, installed, running_browser

Opens = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = installed()
    if not path and "CI" not in os.environ:
        pytest.skip(MISSING)
    assert path, MISSING
    with running_browser(path) as found:
        yield found


@pytest.fixture
def opens(browser: Any) -> Iterator[Opens]:
    """Open a file; nothing may be asked of any network, and nothing may go wrong on the page."""
    contexts, troubles = [], list[str]()

    def open_page(file: Path, *, width: int = 1100, scheme: str = "light", touch: bool = False) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, has_touch=touch, offline=True
        )
        contexts.append(context)
        found = context.new_page()
        found.on("request", lambda request: request.url.startswith(("file:", "data:")) or troubles.append(request.url))
        found.on("pageerror", lambda error: troubles.append(str(error)))
        found.on("console", lambda message: troubles.append(message.text))
        found.on("dialog", lambda dialog: (troubles.append("dialog"), dialog.dismiss()))
        found.goto(file.as_uri())
        return found

    yield open_page
    for context in contexts:
        context.close()
    assert not troubles
