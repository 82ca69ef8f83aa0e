"""How Sphinx builds the site (`make docs`), with MyST and Furo. The site loads nothing from the network."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

from spark_lease import __version__

project, author, release, copyright = "spark_lease", "spark_lease contributors", __version__, "spark_lease contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
suppress_warnings = ["misc.highlighting_failure"]  # `…` in a block of Python stands for what is left out
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order, autodoc_typehints, autodoc_preserve_defaults = "bysource", "signature", True
html_theme, html_title, html_static_path = "furo", f"spark_lease {release}", ["_static"]
html_show_sphinx = html_copy_source = False

_REPOSITORY = Path(__file__).parents[1]
_TO_FILES = re.compile(r"\[([^\]]+)\]\((?:\.\./)*((?:jobs|conf|tests|spark_lease)/[^)]*|[A-Z]+\.md)\)")
_ABOUT_BLOCKS = re.compile(r"^```(\w+) [^\n{]+$", re.MULTILINE)


def for_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """On the site a file of the repository is a name, not a link, and what tests know of a block is not shown."""
    if page in ("contributing", "security"):
        source[0] = (_REPOSITORY / f"{page.upper()}.md").read_text().replace("](docs/", "](")
    source[0] = _ABOUT_BLOCKS.sub(r"```\1", _TO_FILES.sub(r"\1 (`\2`)", source[0]))


def setup(app: Sphinx) -> None:
    app.connect("source-read", for_the_site)
