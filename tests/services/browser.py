"""A real headless Chromium for the tests: that of this machine, or Debian's package, which this installs as root:

python -m tests.services.browser
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MISSING = "there is no Chromium: apt-get install chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def install() -> None:
    if os.geteuid() or not shutil.which("apt-get"):
        return
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        subprocess.run(["apt-get", *words], env=environ, stdout=subprocess.DEVNULL, timeout=300)


@contextmanager
def running_browser(path: str) -> Iterator[Any]:
    """A `Browser` of playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: Chromium refuses it to root. The pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    if not installed():
        install()
    sys.exit(0 if installed() else MISSING)
