"""Side by side means side by side: modules stay whole, and Spark has one process for itself."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="these tests run one after the other")
def test_a_module_stays_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes the group into the name; with a pytest that it does not know, it groups nothing."""
    assert request.node.nodeid.endswith(f"@{request.node.path.relative_to(request.config.rootpath)}")
