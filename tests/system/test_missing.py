"""Sandboxes, containers and systems in which something is missing: work goes on at the level that is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_lease.system.processes import look, processes, tree
from tests.support.command import COMMAND, last_line
from tests.support.drivers import command_line, row, until
from tests.support.sandbox import CALLS
from tests.support.users import ROOT, unprivileged

GUARD = textwrap.dedent("""
    import logging, subprocess, sys, time
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    from spark_lease import hold_lease
    with hold_lease("n", url=sys.argv[1], lease_duration=4) as lease:
        child = subprocess.Popen(["sleep", "60"])
        time.sleep(1)
        print(f"protection {lease.protection}, child {child.pid}.", flush=True)
        if len(sys.argv) > 2:
            time.sleep(60)
        child.kill()
""")
PLACES = {call: [sys.executable, "-m", "tests.support.sandbox", call, "EPERM"] for call in CALLS}
PLACES |= {f"{call}, not known": [*PLACES[call][:-1], "ENOSYS"] for call in ("pidfd_open", "memfd_create")}
MOUNTS = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
PLACES |= {
    "no /proc": [*MOUNTS, 'umount --lazy /proc && exec "$@"', "sh"],
    "a read-only /proc": [*MOUNTS, 'mount -o remount,ro,bind /proc && exec "$@"', "sh"],
}
LEVELS = {"timer_create": "keeper", "F_SETSIG": "keeper", "no /proc": "keeper"}
OF_RUN = LEVELS | {"prctl": "keeper"}


def started(place: str, *words: str) -> subprocess.Popen[str]:
    command = [*PLACES[place], *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


@pytest.mark.parametrize("contain", ["off", "auto"])
@pytest.mark.parametrize("place", PLACES)
def test_a_command_runs_at_the_level_that_is_true_and_ends_with_its_lease(url: str, place: str, contain: str) -> None:
    orphan = "exit 3" if (place, contain) == ("no /proc", "off") else "(setsid sleep 60 &); exit 3"
    words = ["--lease", "n", "--url", url, "--contain", contain, "--stop-budget", "1", "--", "sh", "-c", orphan]
    out, _ = started(place, COMMAND, "run", *words).communicate(timeout=30)
    assert "Traceback" not in out
    outcome = last_line(subprocess.CompletedProcess([], 0, out, ""))
    assert (outcome["exit_code"], bool(outcome["released"])) == (3, True), out
    assert any(f"protection {level}" in out for level in (OF_RUN.get(place, "kernel"), "contained")), out
    if contain == "off":
        assert f"protection {OF_RUN.get(place, 'kernel')}, in sqlite" in out
    assert row(url, "spark_lease")[0] is None


@pytest.mark.parametrize("place", PLACES)
def test_a_guard_says_once_what_is_missing_and_its_children_end_with_a_crash(url: str, place: str) -> None:
    process = started(place, sys.executable, "-c", GUARD, url)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0, out
    assert f"protection {LEVELS.get(place, 'kernel')}, child" in out, out
    assert "Traceback" not in out
    warnings = [each for each in out.splitlines() if "WARNING" in each and "in doubt" not in each]
    assert len(warnings) == (place in LEVELS) + (place == "no /proc"), out
    process = started(place, sys.executable, "-c", GUARD, url, "stay")
    assert process.stdout
    told = ""
    while "child " not in told:
        told = process.stdout.readline()
    child = int(told.split("child ")[1].split(".")[0])
    driver = next(each.pid for each in tree(process.pid) if each.pid == look(child).parent)  # type: ignore[union-attr]
    os.kill(driver, signal.SIGKILL)
    process.wait(10)
    if place == "no /proc":
        os.kill(child, signal.SIGKILL)
    else:
        until(lambda: not look(child), timeout=10)
        until(lambda: row(url, "spark_lease")[0] is None)
    process.communicate()


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sl-missing-") as name:
        yield Path(name)
        for each in processes().values():
            if name in command_line(each.pid):
                os.kill(each.pid, signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a /proc that hides others")
def test_where_proc_hides_others_a_crash_hands_nothing_over(home: Path) -> None:
    words, environ = unprivileged(["-c", GUARD, f"sqlite:///{home}/lease.db", "stay"], home)
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh", *words]
    process = subprocess.Popen(hidden, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout
    out = ""
    while "child " not in out:
        out += process.stdout.readline()
    assert "processes (hidepid): after a crash a standby has to wait until the lease runs out" in out
    process.kill()
    process.wait(10)
    assert row(f"sqlite:///{home}/lease.db", "spark_lease")[0] is not None
    process.stdout.close()


def test_elsewhere_than_on_linux_a_guard_refuses_in_one_sentence(url: str) -> None:
    script = "import sys; sys.platform = 'darwin'; from spark_lease.cli.main import main; sys.exit(main(sys.argv[1:]))"
    for door in ("run", "submit"):
        words = [door, "--lease", "n", "--url", url, "--", __file__]
        done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 78
        assert "system: is darwin, and guarded work is ended for certain on Linux alone" in done.stderr
        assert "Traceback" not in done.stderr
    block = f"from spark_lease import hold_lease\nwith hold_lease('n', url={url!r}, enabled=ENABLED): print('ran')"
    for enabled, ran in (("True", False), ("False", True)):
        code = "import sys; sys.platform = 'darwin'\n" + block.replace("ENABLED", enabled)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert ("ran" in done.stdout) == ran, done.stderr
