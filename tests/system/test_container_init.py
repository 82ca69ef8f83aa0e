"""`spark-lease` as the first process of a container, which no process of that container can kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_lease.system.processes import kill, tree
from tests.support.command import COMMAND
from tests.support.drivers import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PID namespaces are Linux's")
Start = Callable[..., subprocess.Popen[str]]
CONTAINER = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork"]
CONTAINER += ["--kill-child", "--mount-proc"]


@pytest.fixture
def start(url: str) -> Iterator[Start]:
    """Start `spark-lease run` as pid 1 of a PID namespace; what is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        command = [*CONTAINER, COMMAND, "run", "--lease", "n", "--url", url, *words]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for process in started:
        kill(tree(process.pid))
        process.communicate(timeout=10)


def first_process(container: subprocess.Popen[str]) -> int:
    """Its pid outside."""
    return int(until(lambda: [each.pid for each in tree(container.pid) if each.parent == container.pid])[0])


@pytest.mark.parametrize("contain", ["off", "auto"])
def test_the_exit_code_and_the_outcome_are_the_commands(start: Start, contain: str) -> None:
    container = start("--contain", contain, "--", "sh", "-c", "exit 4")
    out, err = container.communicate(timeout=30)
    assert container.returncode == 4, err
    assert json.loads(out.splitlines()[-1])["outcome"] == "failed"
    assert f"protection {'kernel' if contain == 'off' else 'contained'}" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_from_outside_ends_command_and_lease(start: Start, tmp_path: Path, number: int) -> None:
    container = start("--contain", "off", "--", "sh", "-c", f"touch {tmp_path}/up; exec sleep 60")
    until((tmp_path / "up").exists)
    os.kill(first_process(container), number)
    out, err = container.communicate(timeout=30)
    assert container.returncode == 128 + number, err
    outcome = json.loads(out.splitlines()[-1])
    assert (outcome["outcome"], bool(outcome["released"])) == ("interrupted", True)


def test_orphans_are_buried(start: Start) -> None:
    orphans = "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.5; ps -e -o stat= | grep -c Z"
    out, _ = start("--contain", "off", "--", "sh", "-c", orphans).communicate(timeout=30)
    assert out.splitlines()[0] == "0"


BEATS = "touch {0}/up; while :; do date +%s.%N > {0}/beat; sleep 0.01; done"


@pytest.mark.parametrize("what", ["front door", "everything"])
def test_a_front_door_that_is_frozen_has_no_command_beside_the_next_master(
    start: Start, url: str, tmp_path: Path, what: str
) -> None:
    """Without a child of its own that can be killed, the command would go on: pid 1 takes no SIGKILL from inside."""
    container = start("--contain", "off", "--lease-duration", "4", "--", "sh", "-c", BEATS.format(tmp_path))
    until((tmp_path / "up").exists)
    init = first_process(container)
    door = next(each.pid for each in tree(init) if each.parent == init)
    frozen = [door] if what == "front door" else [each.pid for each in tree(init)]
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):  # its `date` is a short one
            os.kill(pid, signal.SIGSTOP)
    done = subprocess.run(
        [COMMAND, "run", "--lease", "n", "--url", url, "--", "true"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    granted = json.loads(done.stdout.splitlines()[-1])["epoch"] / 1000
    for pid in frozen:
        if os.path.exists(f"/proc/{pid}"):
            os.kill(pid, signal.SIGCONT)
    container.communicate(timeout=20)
    assert container.returncode in (137, -signal.SIGKILL)
    assert (tmp_path / "beat").stat().st_mtime < granted
