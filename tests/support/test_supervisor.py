"""However a run of the tests ends, nothing that it started lives on, and its folder for temporary files is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_lease.system.processes import look
from tests.support.drivers import until
from tests.support.supervisor import FOLDER

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor is Linux's")

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path

def test_leaves_everything_behind():
    hidden = subprocess.Popen(["sh", "-c", "setsid sleep 98765 & setsid sleep 98765 &"], env={})
    hidden.wait()
    frozen = subprocess.Popen(["setsid", "sleep", "98765"], env={})
    os.kill(frozen.pid, signal.SIGSTOP)
    frozen.returncode = 0  # or Popen would warn
    told = [os.getpid(), os.getppid(), tempfile.gettempdir()]
    Path(os.environ["TOLD"]).with_suffix(".part").write_text(" ".join(map(str, told)))
    Path(os.environ["TOLD"]).with_suffix(".part").rename(os.environ["TOLD"])
    while os.environ.get("WAITS"):
        time.sleep(0.01)
"""


class Run:
    """One run of pytest on the test above."""

    def __init__(self, folder: Path, *, waits: bool) -> None:
        (folder / "test_leaves.py").write_text(TESTS)
        (folder / "conftest.py").write_text(
            "from tests.support.supervisor import supervise\ndef pytest_configure():\n    supervise()\n"
        )
        told = folder / "told"
        environ = {key: value for key, value in os.environ.items() if key not in (FOLDER, "TMPDIR")}
        environ |= {"TOLD": str(told), "PYTHONPATH": str(ROOT)} | ({"WAITS": "yes"} if waits else {})
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "--rootdir", "."]
        self.outer = subprocess.Popen(
            [*command, "test_leaves.py"],
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        until(lambda: told.exists() or self.outer.poll() is not None, timeout=60)
        assert told.exists(), self.outer.communicate()[0]
        pid, inner, temporary = told.read_text().split()
        self.pytest, self.inner, self.temporary = int(pid), int(inner), Path(temporary)

    def started(self) -> list[int]:
        """The sleeping processes that its test has started."""
        found = subprocess.run(["pgrep", "-f", "^(setsid )?sleep 98765$"], capture_output=True, check=False)
        return [pid for pid in map(int, found.stdout.split()) if look(pid)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def start(**how: bool) -> Run:
        made.append(Run(tmp_path, **how))
        return made[-1]

    yield start
    for each in made:
        each.outer.kill()
        each.outer.communicate(timeout=30)


def test_what_a_green_run_leaves_behind_is_ended_and_named(run: Callable[..., Run]) -> None:
    found = run(waits=False)
    said, _ = found.outer.communicate(timeout=60)
    assert found.outer.returncode == 0, said
    assert "killed what the tests left running: " in said
    assert said.rpartition("running: ")[2].count("(") == 3
    until(lambda: not found.started())
    assert not found.temporary.exists()


ENDS: dict[str, Callable[[Run], tuple[int, int]]] = {
    "SIGTERM to what make started": lambda it: (it.outer.pid, signal.SIGTERM),
    "SIGINT to it": lambda it: (it.outer.pid, signal.SIGINT),
    "SIGKILL of it": lambda it: (it.outer.pid, signal.SIGKILL),
    "SIGKILL of the second supervisor": lambda it: (it.inner, signal.SIGKILL),
    "SIGKILL of pytest": lambda it: (it.pytest, signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_run_that_is_ended_leaves_nothing_behind(run: Callable[..., Run], how: str) -> None:
    found = run(waits=True)
    until(lambda: len(found.started()) == 3)
    os.kill(*ENDS[how](found))
    assert found.outer.wait(30) != 0
    until(lambda: not found.started())
    until(lambda: not found.temporary.exists())
    until(lambda: not look(found.pytest) and not look(found.inner))
