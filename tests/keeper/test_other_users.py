"""Work that becomes another user, which this one may not signal: sudo, and every other setuid program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_lease.system.processes import processes
from tests.support.command import spark_lease
from tests.support.drivers import command_line, row, until
from tests.support.users import unprivileged

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a setuid program")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the user without privileges, with a program that becomes root."""
    with tempfile.TemporaryDirectory(prefix="sl-user-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        become_root = folder / "become-root"
        shutil.copy(shutil.which("setpriv") or "", become_root)
        become_root.chmod(0o4755)
        yield folder
        for each in processes().values():
            if name in command_line(each.pid):
                os.kill(each.pid, signal.SIGKILL)


def beats(folder: Path) -> list[str]:
    loop = f"while :; do date +%s.%N > {folder}/beat; sleep 0.05; done"
    return [str(folder / "become-root"), "--reuid", "0", "--", "sh", "-c", f"echo $$ > {folder}/pid; {loop}"]


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    words, environ = unprivileged(list(arguments), home)
    with (home / "log").open("w") as log:
        return subprocess.Popen(words, env=environ, stdout=log, stderr=log, text=True, cwd=home)


def said(home: Path) -> str:
    return (home / "log").read_text()


def run(home: Path, *settings: str) -> subprocess.Popen[str]:
    lease = ["--lease", "n", "--url", f"sqlite:///{home}/lease.db", "--contain", "off", "--lease-duration", "5"]
    return start(home, "-m", "spark_lease", "run", *lease, *settings, "--", *beats(home))


def pid_of(home: Path) -> int:
    return int(until(lambda: (home / "pid").exists() and (home / "pid").read_text().strip()))


def test_a_command_that_becomes_another_user_is_said_not_to_be_protected(home: Path) -> None:
    process = run(home)
    pid = pid_of(home)
    until(lambda: "protection none from now on" in said(home))
    assert f"(pid {pid})" in said(home) and "runs as another user, and nothing here may end it" in said(home)
    url = f"sqlite:///{home}/lease.db"
    until(lambda: '"protection": "none"' in spark_lease("status", "n", "--url", url, "--json").stdout, timeout=10)
    os.kill(pid, signal.SIGKILL)
    process.wait(20)


def test_where_protection_is_required_it_is_ended_as_far_as_can_be_and_keeps_its_lease(home: Path) -> None:
    process = run(home, "--require-protection", "kernel", "--stop-budget", "0.5")
    pid = pid_of(home)
    time.sleep(4)  # longer than the lease: it is renewed for as long as that runs
    assert process.poll() is None
    assert row(f"sqlite:///{home}/lease.db", "spark_lease")[0] is not None
    os.kill(pid, signal.SIGKILL)
    assert process.wait(20) == 78, said(home)
    assert "require_protection: kernel is required: " in said(home)
    assert row(f"sqlite:///{home}/lease.db", "spark_lease")[0] is None


GUARDED = """
import logging, subprocess, sys, time
logging.basicConfig(level=logging.INFO)
from spark_lease import hold_lease
with hold_lease("n", url="sqlite:///lease.db", lease_duration=4, require_protection=sys.argv[1]):
    subprocess.Popen(sys.argv[2:])
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("required", ["none", "kernel"])
def test_so_is_a_child_of_a_driver_and_a_crash_hands_nothing_over_while_it_lives(home: Path, required: str) -> None:
    (home / "job.py").write_text(GUARDED.replace("sqlite:///lease.db", f"sqlite:///{home}/lease.db"))
    process = start(home, "job.py", required, *beats(home))
    pid = pid_of(home)
    until(lambda: "protection none from now on" in said(home))
    if required == "kernel":
        process.wait(20)
        assert "ConfigError: require_protection: kernel is required: " in said(home)
        os.kill(pid, signal.SIGKILL)
        return
    process.kill()
    killed = time.monotonic()
    process.wait(10)
    done = spark_lease("run", "--lease", "n", "--url", f"sqlite:///{home}/lease.db", "--", "true")
    assert done.returncode == 0
    assert time.monotonic() - killed > 2  # it ran out
    os.kill(pid, signal.SIGKILL)
