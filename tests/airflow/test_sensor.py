"""`SparkLeaseSensor` and its trigger."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.airflow.firing import fire

pytestmark = pytest.mark.timeout(120)


def test_it_sees_who_is_master_and_waits_for_a_lease_to_be_free(master: Callable[..., subprocess.Popen[str]]) -> None:
    master("taken", "sleep", "60")
    soon = master("soon", "sleep", "3")
    ended = fire("senses")
    assert {each.state for each in ended.values()} == {"success"}
    assert ended["free"].told["state"] == "free"
    assert (ended["master"].told["state"], ended["master"].told["holder"][:6]) == ("held", "other:")
    assert soon.wait(20) == 0
    assert ended["soon_free"].told["state"] == "free"


def test_its_docstring_says_that_it_guards_nothing() -> None:
    from spark_lease.airflow.sensor import SparkLeaseSensor

    assert "looks and does not guard" in (SparkLeaseSensor.__doc__ or "")
