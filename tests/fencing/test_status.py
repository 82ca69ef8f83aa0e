"""What is fenced under a hold is shown on the lease and beside it, and nothing hangs on that."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.fencing.status import KIND, Fences, FencingStatus, fences_of
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.registry import open_notes
from tests.support.command import COMMAND
from tests.support.drivers import until


@pytest.fixture(params=["sqlite", "file"])
def config(request: pytest.FixtureRequest, url_of: Callable[[str], str]) -> Config:
    return configure(name="n", url=url_of(request.param))


def held(config: Config) -> tuple[LocalHold, FencingStatus]:
    lease = open_contender(config, BootClock())
    lease.acquire()
    return lease, FencingStatus(lease, config)


def noted(config: Config) -> dict[str, str]:
    with closing(open_notes(config)) as notes:
        return notes.all("n", KIND)


def test_what_is_fenced_is_noted_under_its_epoch_and_follows_each_change(config: Config) -> None:
    first, levels = held(config)
    levels.show(delta="claims")
    assert first.fences == Fences(delta="claims", sql="none")
    until(lambda: noted(config))
    levels.show(delta="hook", sql="claimed")
    with closing(open_notes(config)) as notes:
        until(lambda: fences_of(notes, "n", first.epoch) == Fences(delta="hook", sql="claimed"))
    first.release()
    second, levels = held(config)
    levels.show(delta="off")
    until(lambda: [json.loads(text)["delta"] for text in noted(config).values()] == ["off"])
    assert list(noted(config)) == [str(second.epoch)]
    for each in (first, second):
        each.close()


def test_a_former_master_notes_nothing(config: Config) -> None:
    first, former = held(config)
    first.release()
    second, levels = held(config)
    levels.show(delta="hook")
    until(lambda: noted(config))
    former.show(delta="claims")
    former._write()  # again, and to its end
    assert list(noted(config)) == [str(second.epoch)]
    for each in (first, second):
        each.close()


def test_what_cannot_be_noted_is_said_and_no_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configure(name="n", url=f"sqlite:///{tmp_path}/lease.db")
    lease, levels = held(config)
    lease._config = configure(name="n", url=f"sqlite:///{tmp_path}/none/lease.db")
    levels.show(delta="claims")
    until(lambda: "n: what is fenced (delta claims, sql none) is not shown by status" in caplog.text)
    assert lease.check() and "Traceback" not in caplog.text
    lease.release()
    lease.close()


def test_status_shows_what_is_fenced_while_a_command_runs(url: str) -> None:
    """As JSON, and to people."""
    script = f"""
        import json, subprocess, sys
        status = [{COMMAND!r}, "status", "n", "--url", {url!r}]
        while not (row := json.loads(subprocess.check_output([*status, "--json"]))[0])["fences"]:
            pass
        print(row["fences"], subprocess.check_output(status, text=True))
    """
    command = [COMMAND, "run", "--lease", "n", "--url", url, "--", sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "{'delta': 'claims', 'sql': 'none'}" in done.stdout
    assert re.search(r"fences +delta claims, sql none", done.stdout)
