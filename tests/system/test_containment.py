"""What the kernel ends and proves ended, with children that hide, as root and as a user without privileges."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_lease.system.processes import kill, tree
from tests.faults.contained import play
from tests.services.postgres import own_postgres
from tests.support.command import COMMAND, spark_lease
from tests.support.drivers import Driver, row, until
from tests.support.tiers import once_more

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="PID namespaces are Linux's")

USERS = ["root", "nobody"] if os.geteuid() == 0 else ["nobody"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A PostgreSQL that every user can reach."""
    with own_postgres() as found:
        yield found.url


@pytest.mark.shows("P3", "P5")
@pytest.mark.postgres
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("fault", ["kill keeper", "kill init", "kill all", "freeze keeper", "freeze all"])
def test_nothing_of_a_command_writes_after_the_next_grant(server: str, user: str, fault: str) -> None:
    """Not its session leaders, orphans, children without environment, of another user, that ignore SIGTERM, or fork."""
    found = play(server, door="run", privileged=user == "root", contain="required", fault=fault)
    assert (found.late, found.left, found.neighbours) == (0, 0, 0)
    if fault == "kill init":
        assert found.waits[0] < 1.5  # handed over, of a lease of two seconds


@pytest.mark.postgres
def test_without_a_namespace_something_does(server: str) -> None:
    """Most often: what is searched for is sometimes found in time."""
    tries = (play(server, door="run", privileged=os.geteuid() == 0, contain="off", fault="kill all") for _ in range(5))
    assert any(found.late or found.left for found in tries)


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.parametrize("user", ["nobody", *map(once_more, USERS[:-1])])
@pytest.mark.parametrize("fault", ["kill driver", "kill jvm", "freeze all"])
def test_nothing_of_a_submission_writes_after_the_next_grant(server: str, user: str, fault: str) -> None:
    found = play(server, door="submit", privileged=user == "root", contain="required", fault=fault)
    assert (found.late, found.left, found.neighbours) == (0, 0, 0)
    if fault.startswith("kill"):
        assert found.waits[0] < 3  # handed over, of a lease of five seconds


def without(limit: str, command: list[str]) -> list[str]:
    """The command where the kernel makes no namespace of that kind."""
    user = ["unshare", "--user", "--map-root-user"]
    return [*user, "sh", "-c", f'echo 0 > /proc/sys/user/max_{limit}_namespaces; exec "$@"', "sh", *command]


@pytest.mark.parametrize("door", ["run", "submit"])
def test_what_is_required_and_cannot_be_had_is_refused_before_anything_starts(
    url: str, tmp_path: Path, door: str
) -> None:
    (tmp_path / "app.py").touch()
    guarded = ["touch", str(tmp_path / "ran")] if door == "run" else [str(tmp_path / "app.py")]
    command = [COMMAND, door, "--lease", "n", "--url", url, "--contain", "required", "--", *guarded]
    done = subprocess.run(without("pid", command), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    assert "contain: is required, and this machine does not allow it: unshare(CLONE_NEWPID): a limit in" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert not Path(url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("limit", ["pid", "mnt"])
def test_where_none_can_be_had_a_command_runs_at_the_level_that_is_true(url: str, limit: str) -> None:
    command = [COMMAND, "run", "--lease", "n", "--url", url, "--", "sh", "-c", "exit 3"]
    done = subprocess.run(without(limit, command), capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3, done.stderr
    assert "protection kernel" in done.stderr


SETTINGS = [
    (["--keeper", "thread"], "does not go with keeper = thread"),
    (["--on-lost", "stop"], "does not go with on_lost = stop"),
]


@pytest.mark.parametrize(("settings", "words"), SETTINGS)
def test_settings_that_do_not_go_with_it_are_refused(url: str, tmp_path: Path, settings: list[str], words: str) -> None:
    (tmp_path / "app.py").touch()
    required = ["--contain", "required", *settings, "--", str(tmp_path / "app.py")]
    done = spark_lease("submit", "--lease", "n", "--url", url, *required)
    assert (done.returncode, words in done.stderr) == (78, True), done.stderr


def test_a_guard_inside_a_driver_cannot_be_contained(url: str) -> None:
    script = f"from spark_lease import hold_lease\nwith hold_lease('n', url={url!r}, contain='required'): pass"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert "contain: is required, but works only under spark-lease run and" in done.stderr


def test_setuid_programs_in_a_user_namespace_are_told_of(url: str, tmp_path: Path) -> None:
    """As root without CAP_SYS_ADMIN, or as any user: sudo would fail at night."""
    weaker = ["setpriv", "--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
    command = [*weaker, COMMAND, "run", "--lease", "n", "--url", url, "--contain", "required", "--"]
    done = subprocess.run([*command, "su", "-c", "true"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 78
    assert "takes a user namespace here, and su does not work in it" in done.stderr
    done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert "sudo and every other setuid program does not work in it" in done.stderr


def test_status_and_outcome_name_the_front_door_as_it_is_called_outside(url: str, tmp_path: Path) -> None:
    words = ["--url", url, "--contain", "required", "--", "sh", "-c", f"echo $$ > {tmp_path}/up; exec sleep 60"]
    with subprocess.Popen([COMMAND, "run", "--lease", "n", *words], stdout=subprocess.PIPE, text=True) as run:
        until(lambda: (tmp_path / "up").exists() and (tmp_path / "up").read_text())
        assert int((tmp_path / "up").read_text()) < 10  # inside
        (found,) = json.loads(spark_lease("status", "n", "--url", url, "--json").stdout)
        assert f":{run.pid}:" in found["holder"]
        assert found["protection"] == "contained"
        run.terminate()
        out, _ = run.communicate(timeout=20)
    assert json.loads(out.splitlines()[-1])["holder"] == found["holder"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_mounts_come_in_and_do_not_go_out(url: str, tmp_path: Path) -> None:
    subprocess.run(["mount", "--bind", "--make-shared", tmp_path, tmp_path], check=True)  # as systemd makes all of them
    try:
        come_in_and_do_not_go_out(url, tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def come_in_and_do_not_go_out(url: str, tmp_path: Path) -> None:
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    script = f"""
        mount -t tmpfs none {tmp_path}/out; touch {tmp_path}/out/inside {tmp_path}/up
        while ! [ -e {tmp_path}/in/outside ]; do sleep 0.05; done
    """
    words = ["--url", url, "--contain", "required", "--", "sh", "-c", textwrap.dedent(script)]
    with subprocess.Popen([COMMAND, "run", "--lease", "n", *words], stdout=subprocess.PIPE, text=True) as run:
        until((tmp_path / "up").exists)
        assert list((tmp_path / "out").iterdir()) == []
        subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "in"], check=True)
        try:
            (tmp_path / "in" / "outside").touch()
            run.communicate(timeout=20)
        finally:
            subprocess.run(["umount", tmp_path / "in"], check=True)
    assert run.returncode == 0


def test_pipes_and_standard_input_are_the_commands(url: str) -> None:
    words = [COMMAND, "run", "--lease", "n", "--url", url, "--contain", "required", "--", "cat"]
    done = subprocess.run(words, input="a line\n", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("a line\n{")


def test_nohup_is_inherited(url: str, tmp_path: Path) -> None:
    command = f"touch {tmp_path}/up; grep SigIgn /proc/self/status; sleep 1"
    words = ["nohup", COMMAND, "run", "--lease", "n", "--url", url, "--contain", "required", "--", "sh", "-c", command]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as run:
        until((tmp_path / "up").exists)
        os.kill(run.pid, signal.SIGHUP)
        out, _ = run.communicate(timeout=20)
    assert run.returncode == 0
    assert int(out.split()[1], 16) & 1 << (signal.SIGHUP - 1)


# A driver, contained


Submit = Callable[..., Driver]
SPARK = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF"]


@pytest.fixture
def submit(tmp_path: Path, url: str) -> Iterator[Submit]:
    started: list[Driver] = []

    def run(script: str, *settings: str, prefix: list[str] | None = None) -> Driver:
        lease = ["--lease", "n", "--url", url, "--contain", "required", *settings]
        command = [*(prefix or []), COMMAND, "submit", *lease, "--", *SPARK]
        started.append(Driver(script, tmp_path, url, "spark_lease", command=command))
        return started[-1]

    yield run
    for each in started:
        each.close()


INSIDE = """
    import socket, subprocess
    from spark_lease.guard.held import current_lease
    spark = session()
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    say(f"protection {current_lease().protection}, holder {current_lease().holder}")
    import getpass
    say(f"performance data {os.listdir(f'/tmp/hsperfdata_{getpass.getuser()}')} of {jvm}")
    say(f"front door {[key for key in os.environ if 'FRONT_DOOR' in key]}")
    say(f"processes {sorted(int(each) for each in os.listdir('/proc') if each.isdigit())[:2]}")
    subprocess.Popen(["sh", "-c", f"while :; do date +%s.%N > {FOLDER}/beat; sleep 0.01; done"])
"""


@pytest.mark.spark
def test_a_driver_inside_sees_itself_alone_and_what_it_leaves_behind_ends_before_the_release(
    submit: Submit, tmp_path: Path
) -> None:
    driver = submit(INSIDE)
    assert driver.end(60) == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert f"protection contained, holder {os.uname().nodename}:{driver.process.pid}:" in said
    data, jvm = re.findall(r"performance data \['(\d+)'\] of (\d+)", said)[0]
    assert data == jvm
    assert "front door []" in said
    assert "processes [1, 2]" in said
    assert "spark-submit has ended and left processes behind" in said
    outcome = json.loads(said.splitlines()[-1])
    released = outcome["released"]
    assert outcome["outcome"] == "finished" and released
    wall = datetime.fromisoformat(released).replace(tzinfo=UTC).timestamp()
    assert (tmp_path / "beat").stat().st_mtime < wall


@pytest.mark.spark
@pytest.mark.parametrize("contain", ["required", "off"])
def test_a_terminal_reaches_a_submission(tmp_path: Path, url: str, contain: str) -> None:
    """Ctrl-Z stops all of it, and it goes on in the foreground; Ctrl-C ends it and gives the lease back."""
    app = tmp_path / "app.py"
    app.write_text("import time\nprint('it is up', flush=True)\nwhile True: time.sleep(0.1)\n")
    submit = [COMMAND, "submit", "--lease", "n", "--url", url, "--contain", contain, "--", *SPARK, str(app)]
    with Terminal() as terminal:
        terminal.type(f"{shlex.join(submit)}\n")
        terminal.until("\nit is up", timeout=60)
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.type("fg\n")
        until(lambda: not any(each.state == "T" for each in tree(terminal.shell.pid)))
        terminal.type("\x03")
        until(lambda: row(url, "spark_lease")[0] is None)
        terminal.type("echo code $?\n")
        terminal.until("code 130")


class Terminal:
    """An interactive shell at a terminal."""

    def __init__(self) -> None:
        self._ours, terminal = pty.openpty()
        shell = ["setsid", "--ctty", "--wait", "bash", "--norc", "-i"]
        self.shell = subprocess.Popen(shell, stdin=terminal, stdout=terminal, stderr=terminal)
        os.close(terminal)
        self._said = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        kill(tree(self.shell.pid))
        self.shell.wait()
        os.close(self._ours)

    def type(self, words: str) -> None:
        os.write(self._ours, words.encode())

    def until(self, words: str, timeout: float = 30) -> None:
        """Wait until it shows `words`, after what it was last waited for."""
        end = time.monotonic() + timeout
        while words not in self._said:
            assert time.monotonic() < end, self._said
            if select.select([self._ours], [], [], 0.1)[0]:
                self._said += os.read(self._ours, 65536).decode(errors="replace")
        self._said = self._said.partition(words)[2]
