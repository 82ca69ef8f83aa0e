"""`spark-lease run` with real commands, real signals and a store that fails."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_lease.system.processes import kill, processes, tree
from tests.services.proxy import Proxy
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import until

Start = Callable[..., subprocess.Popen[str]]
ROOM_TO_SAY_SO = ("--lease-duration", "6", "--kill-budget", "0.9")
"""For work that has to be killed: half of that is left to see its end, before the kernel ends the front door."""


@pytest.fixture(autouse=True, params=["contained", "not contained"])
def contained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Every test twice: with a namespace for the command, and without."""
    is_contained: bool = request.param == "contained"
    monkeypatch.setenv("SPARK_LEASE_CONTAIN", "required" if is_contained else "off")
    return is_contained


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `spark-lease run` in the background; what is left of it ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([COMMAND, "run", "--lease", "n", *words], **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield run
    for process in started:
        kill(tree(process.pid))
        process.communicate(timeout=10)


def row(url: str) -> tuple[str | None, int, int]:
    with sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10) as connection:
        found: tuple[str | None, int, int] = connection.execute(
            "SELECT broker_name, time, epoch FROM spark_lease WHERE name = 'n'"
        ).fetchone()
    connection.close()
    return found


def alive(pid: int) -> bool:
    found = processes().get(pid)
    return bool(found and found.alive)


def outside(run: int, pid: int) -> int:
    """The number here of a process that calls itself `pid`, of those that `run` has started."""

    def found() -> int | None:  # None: it got another parent while we looked, say
        for each in tree(run):
            with contextlib.suppress(OSError):
                numbers = re.search(r"NSpid:(.*)", Path(f"/proc/{each.pid}/status").read_text())
                if numbers and int(numbers[1].split()[-1]) == pid:
                    return each.pid
        return None

    return int(until(found))


def supervisor_of(run: int) -> int:
    """The process that minds the command; contained, the init of its namespace."""
    (found,) = [each.pid for each in tree(run) if each.parent == run]
    below = [each.pid for each in tree(found) if each.parent == found]
    return below[0] if os.environ["SPARK_LEASE_CONTAIN"] == "required" else found


def test_the_command_runs_under_the_lease_and_knows_it(url: str) -> None:
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "sh", "-c", "env | grep ^SPARK_LEASE_; exit 3")
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("SPARK_LEASE_"))
    del told["SPARK_LEASE_CONTAIN"]  # this test's own
    outcome = last_line(done)
    assert done.returncode == outcome["exit_code"] == 3
    assert outcome["outcome"] == "failed"
    assert told == {
        "SPARK_LEASE_NAME": "n",
        "SPARK_LEASE_HOLDER": outcome["holder"],
        "SPARK_LEASE_EPOCH": str(outcome["epoch"]),
        "SPARK_LEASE_RUN_KEY": "",
        "SPARK_LEASE_HELD": f"n of spark_lease in {url}",
    }
    assert row(url)[0] is None


@pytest.mark.shows("P2")
def test_epochs_grow_from_run_to_run(url: str) -> None:
    epochs = [last_line(spark_lease("run", "--lease", "n", "--url", url, "--", "true"))["epoch"] for _ in "abc"]
    assert epochs == sorted(set(epochs))


@pytest.mark.shows("P6")
def test_a_standby_waits_skips_or_fails(url: str, start: Start) -> None:
    master = start("--url", url, "--", "sleep", "60")
    until(lambda: Path(url.removeprefix("sqlite:///")).exists() and row_or_none(url))
    for words, code in (
        (["--if-held", "skip"], 99),
        (["--if-held", "fail"], 1),
        (["--acquire-timeout", "0.3"], 99),
        (["--if-held", "skip", "--standby-exit-code", "7"], 7),
    ):
        done = spark_lease("run", "--lease", "n", "--url", url, *words, "--", "echo", "ran")
        assert (done.returncode, last_line(done)["outcome"]) == (code, "standby"), done.stderr
        assert "ran" not in done.stdout
    assert master.poll() is None


def row_or_none(url: str) -> Any:
    try:
        return row(url)
    except sqlite3.Error:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_command_and_lease(url: str, start: Start, tmp_path: Path, number: int) -> None:
    trap = (
        f"trap 'echo told > {tmp_path}/told; exit 0' TERM INT HUP; echo up > {tmp_path}/up; while :; do sleep 0.1; done"
    )
    run = start("--url", url, "--", "sh", "-c", trap)
    until((tmp_path / "up").exists)
    run.send_signal(number)
    out, _ = run.communicate(timeout=20)
    assert run.returncode == 128 + number
    assert json.loads(out.splitlines()[-1])["outcome"] == "interrupted"
    assert (tmp_path / "told").exists()
    assert row(url)[0] is None


@pytest.mark.skipif(sys.platform != "linux", reason="only there a signal can be sent to a thread of another process")
def test_a_signal_that_wakes_nobody_is_heard_soon(url: str, start: Start, tmp_path: Path) -> None:
    """As one that comes just before the main thread waits."""
    run = start("--url", url, "--", "sh", "-c", f"echo up > {tmp_path}/up; exec sleep 60")
    until((tmp_path / "up").exists)
    other = max(int(thread.name) for thread in Path(f"/proc/{run.pid}/task").iterdir())
    assert other != run.pid
    assert ctypes.CDLL(None).tgkill(run.pid, other, signal.SIGTERM) == 0
    run.communicate(timeout=10)
    assert run.returncode == 143
    assert row(url)[0] is None


def test_a_warm_standby_of_a_command_is_said_to_be_a_cold_one(url: str) -> None:
    done = spark_lease("run", "--lease", "n", "--url", url, "--standby", "warm", "--", "true")
    assert done.returncode == 0
    assert "standby: run cannot keep a Spark ready, so this standby is cold" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end")
def test_a_run_ends_with_the_process_that_started_it(url: str, tmp_path: Path) -> None:
    """As a task of Airflow that got SIGKILL: nobody is left to end its command."""
    run = f"{COMMAND} run --lease n --url {url} --ends-with $$ -- sh -c 'echo $$ > {tmp_path}/pid; exec sleep 60'"
    parent = subprocess.Popen(["sh", "-c", f"{run} & wait"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    command = outside(parent.pid, int((tmp_path / "pid").read_text()))
    parent.kill()
    parent.wait()
    until(lambda: not alive(command))
    until(lambda: row(url)[0] is None)


def test_a_client_whose_driver_runs_elsewhere_is_warned_about(url: str, tmp_path: Path) -> None:
    command = tmp_path / "spark-submit"
    command.symlink_to("/bin/echo")
    for words, says in (
        ([command, "--deploy-mode", "cluster"], True),
        ([command], False),
        (["echo", "cluster"], False),
    ):
        done = spark_lease("run", "--lease", "n", "--url", url, "--", *map(str, words), "app.jar")
        assert (done.returncode, "use spark-lease submit" in done.stderr) == (0, says), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end")
@pytest.mark.parametrize("pid", ["$PPID", "$$"])
def test_in_a_pipeline_the_shell_is_what_it_ends_with(url: str, pid: str) -> None:
    """A pipeline succeeds whatever becomes of its first command: at least it is said."""
    line = f"{COMMAND} run --lease n --url {url} --ends-with {pid} -- echo worked | cat"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert ("worked" in done.stdout) == (pid == "$$"), done.stderr
    assert ("the parent of this process is" in done.stderr) == (pid == "$PPID"), done.stderr
    if pid == "$PPID":
        assert json.loads(done.stdout)["exit_code"] == 78


def test_a_signal_while_waiting_ends_the_wait(url: str, start: Start) -> None:
    start("--url", url, "--", "sleep", "60")
    until(lambda: Path(url.removeprefix("sqlite:///")).exists() and row_or_none(url))
    standby = start("--url", url, "--", "true")
    assert standby.stderr is not None
    assert "is master" in standby.stderr.readline()
    standby.send_signal(signal.SIGTERM)
    standby.communicate(timeout=10)
    assert standby.returncode == 143


@pytest.mark.shows("P5")
def test_nothing_is_released_while_anything_of_the_command_lives(url: str, start: Start, tmp_path: Path) -> None:
    """The command ends at once and leaves a stubborn process behind, in a session of its own."""
    script = textwrap.dedent(f"""
        import os, signal, sys, time
        if os.fork():
            os._exit(0)
        os.setsid()
        signal.signal(signal.SIGTERM, lambda *_: open({str(tmp_path / "told")!r}, "w").close())
        with open({str(tmp_path / "pid")!r}, "w") as file:
            file.write(str(os.getpid()))
        os.rename({str(tmp_path / "pid")!r}, {str(tmp_path / "left")!r})
        while True:
            time.sleep(0.01)
    """)
    timings = ["--lease-duration", "6", "--stop-budget", "1"]
    run = start("--url", url, *timings, "--", sys.executable, "-c", script)
    pid = outside(run.pid, int(until(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text())))
    until((tmp_path / "told").exists)
    assert row(url)[0] is not None
    assert alive(pid)
    run.communicate(timeout=20)
    assert run.returncode == 0
    assert row(url)[0] is None
    assert not alive(pid)


def test_the_command_dies_with_the_runner(url: str, start: Start, tmp_path: Path) -> None:
    run = start("--url", url, "--", "sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    pid = outside(run.pid, int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())))
    run.kill()
    run.communicate(timeout=10)
    until(lambda: not alive(pid), timeout=10)
    assert row(url)[0] is not None  # nobody could release it: it runs out


ESCAPES = """
import os, subprocess, sys, time
folder = sys.argv[1]
if not os.fork():
    os.setsid()
    if not os.fork():
        with open(folder + "/pids", "a") as file:
            file.write(f"{os.getpid()} ")
        os.rename(folder + "/pids", folder + "/all")
        while True:
            open(folder + "/writes", "a").write(f"{time.time()} ")
            time.sleep(0.005)
    time.sleep(60)
with open(folder + "/pids", "a") as file:
    file.write(f"{os.getpid()} ")
time.sleep(60)
"""


def escaped(run: subprocess.Popen[str], folder: Path) -> list[int]:
    told = until(lambda: (folder / "all").exists() and (folder / "all").read_text())
    return [outside(run.pid, int(pid)) for pid in told.split()]


def test_nothing_of_the_command_survives_a_sigkill_of_the_runner(url: str, start: Start, tmp_path: Path) -> None:
    """Neither the command, nor what called setsid and was forked twice."""
    run = start("--url", url, "--", sys.executable, "-c", ESCAPES, str(tmp_path))
    pids = escaped(run, tmp_path)
    everything = [each.pid for each in tree(run.pid)]
    assert set(pids) < set(everything)
    run.kill()
    run.communicate(timeout=10)
    until(lambda: not any(alive(pid) for pid in everything), timeout=10)


@pytest.mark.shows("P1", "P3")
@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that ends a frozen process")
@pytest.mark.parametrize("frozen", ["run alone", "everything"])
def test_a_frozen_runner_is_dead_with_its_command_before_another_starts(
    url: str, start: Start, tmp_path: Path, frozen: str
) -> None:
    script = f"touch {tmp_path}/up; while :; do date +%s.%N > {tmp_path}/write; done"
    run = start("--url", url, "--lease-duration", "4", "--", "sh", "-c", script)
    until((tmp_path / "write").exists)
    everything = [run.pid] if frozen == "run alone" else [each.pid for each in tree(run.pid)]
    for pid in everything:
        with contextlib.suppress(ProcessLookupError):  # its `date` is a short one
            os.kill(pid, signal.SIGSTOP)
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "true")
    assert run.poll() == -signal.SIGKILL
    assert done.returncode == 0
    granted = last_line(done)["epoch"] / 1000
    assert (tmp_path / "write").stat().st_mtime < granted
    if frozen == "everything":
        for pid in [pid for pid in everything if alive(pid)]:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not any(alive(pid) for pid in everything))
        assert (tmp_path / "write").stat().st_mtime < granted


SIGNAL_IN_A_FINALIZER = """
import os, signal, sys
from spark_lease.guard import command as runner
from spark_lease.config.sources import configure

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

claim = runner._Run._claim
def claim_later(self):
    Finalized()
    claim(self)
runner._Run._claim = claim_later
config = configure(name="n", url=sys.argv[1], contain=os.environ["SPARK_LEASE_CONTAIN"])
sys.exit(runner.run(config, ["sleep", "60"]).exit_code)
"""


def test_a_signal_whose_interrupt_python_drops_starts_nothing(url: str) -> None:
    """An exception that is raised in a finalizer is printed and dropped."""
    command = [sys.executable, "-c", SIGNAL_IN_A_FINALIZER, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "Exception ignored in" in done.stderr
    assert row(url)[0] is None


SUPERVISOR_STANDS_STILL = """
import os, sys, time
from spark_lease.keeper import supervisor, supervisor_process
from spark_lease.config.sources import configure
from spark_lease.guard.command import run

supervisor.START_TIMEOUT = supervisor_process.START_TIMEOUT = 1.0
me, write = os.getpid(), os.write
def stands_still_once_it_lets_go(fd, data):
    done = write(fd, data)
    while data == b"x" and os.getpid() != me and not os.path.exists(sys.argv[2] + ".go"):
        time.sleep(0.01)
    return done
os.write = stands_still_once_it_lets_go
command = f"while :; do date > {sys.argv[2]}; sleep 0.02; done"
config = configure(name="n", url=sys.argv[1], lease_duration=20.0, contain=os.environ["SPARK_LEASE_CONTAIN"])
sys.exit(run(config, ["sh", "-c", command]).exit_code)
"""


def test_a_supervisor_that_stands_still_as_the_command_starts_frees_no_lease(url: str, tmp_path: Path) -> None:
    """Nobody says any more whether the command could be started: then it may run."""
    beat = tmp_path / "beat"
    run = subprocess.Popen([sys.executable, "-c", SUPERVISOR_STANDS_STILL, url, str(beat)])
    try:
        until(beat.exists)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(3)
        assert row(url)[0] is not None
        seen = beat.stat().st_mtime_ns
        until(lambda: beat.stat().st_mtime_ns != seen)
        beat.with_suffix(".go").touch()
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 128 + signal.SIGTERM
        assert row(url)[0] is None
    finally:
        kill(tree(run.pid))
        run.wait()


def test_a_command_whose_supervisor_is_killed_ends_and_the_lease_is_free(
    url: str, start: Start, tmp_path: Path
) -> None:
    run = start("--url", url, "--", sys.executable, "-c", ESCAPES, str(tmp_path))
    pids = escaped(run, tmp_path)
    os.kill(supervisor_of(run.pid), signal.SIGKILL)
    run.communicate(timeout=20)
    assert run.returncode == 128 + signal.SIGKILL
    assert not any(alive(pid) for pid in pids)
    assert row(url)[0] is None


def test_the_next_takes_over_when_the_lease_runs_out(url: str, start: Start, tmp_path: Path) -> None:
    first = start("--url", url, "--lease-duration", "2", "--", "sh", "-c", f"touch {tmp_path}/up; exec sleep 60")
    until((tmp_path / "up").exists)
    epoch = row(url)[2]
    first.kill()
    killed = time.monotonic()
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "true")
    assert last_line(done)["epoch"] > epoch
    assert time.monotonic() - killed < 20


@pytest.mark.shows("P1", "P3")
@pytest.mark.postgres
@pytest.mark.parametrize("stubborn", [False, True])
def test_loss_ends_the_whole_group_before_another_may_start(
    proxy: Proxy, pg_url: str, table: str, start: Start, tmp_path: Path, stubborn: bool
) -> None:
    """The store hangs; the command writes every 10 ms; a standby with another way to the store waits for its turn."""
    writes = tmp_path / "writes"
    trap = "trap '' TERM; " if stubborn else ""
    command = f"{trap}(while :; do date +%s.%N >> {writes}; sleep 0.01; done) & while :; do sleep 0.1; done"
    settings = ["--table", table, "--create-table", "true", *ROOM_TO_SAY_SO]
    run = start("--url", proxy.url, *settings, "--", "sh", "-c", command)
    until(writes.exists)
    proxy.stall()
    done = spark_lease("run", "--lease", "n", "--url", pg_url, *settings, "--", "date", "+%s.%N")
    taken_at = float(done.stdout.splitlines()[0])
    out, err = run.communicate(timeout=20)
    assert run.returncode == 75, err
    assert json.loads(out.splitlines()[-1])["outcome"] == "lost"
    assert "lease lost (expired)" in err
    assert float(writes.read_text().split()[-1]) < taken_at
    assert last_line(done)["epoch"] > json.loads(out.splitlines()[-1])["epoch"]


def test_ctrl_z_does_not_suspend_the_guard_of_a_command_that_goes_on(url: str, start: Start, tmp_path: Path) -> None:
    run = start("--url", url, "--lease-duration", "6", "--", "sh", "-c", f"touch {tmp_path}/up; exec sleep 60")
    until((tmp_path / "up").exists)
    run.send_signal(signal.SIGTSTP)
    assert run.stderr is not None
    assert any("cannot be suspended" in line for line in run.stderr)
    found = processes()[run.pid]
    assert found.state not in "Tt"


def test_a_command_that_was_stopped_is_not_renewed_for(url: str, start: Start) -> None:
    words = ["--url", url, *ROOM_TO_SAY_SO, "--", "sh", "-c", "echo $$; kill -STOP $$; sleep 60"]
    process = start(*words)
    assert process.stdout
    pid = outside(process.pid, int(process.stdout.readline()))
    assert process.wait(20) == 75
    assert not alive(pid)
    assert process.stderr
    said = process.stderr.read()
    assert f"not renewed, because the command (pid {pid}) was stopped" in said
    assert "lease lost" in said


@pytest.mark.parametrize("stdout", [">&-", "> /dev/full", "| true"])
def test_a_broken_output_does_not_change_the_exit_code(url: str, stdout: str) -> None:
    line = f"set -o pipefail; {COMMAND} run --lease n --url {url} -- sh -c 'sleep 0.3; exit 3' {stdout}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_cannot_be_run_is_a_sentence(url: str, tmp_path: Path) -> None:
    (tmp_path / "script").write_text("#!/no/such/interpreter\n")
    (tmp_path / "script").chmod(0o755)
    done = spark_lease("run", "--lease", "n", "--url", url, "--", str(tmp_path / "script"))
    assert done.returncode == 126
    assert "cannot be run: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert row(url)[0] is None


def test_many_orphans_leave_no_zombie(url: str) -> None:
    orphans = "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done; sleep 0.5; ps -o stat= --ppid $PPID | grep -c Z"
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "sh", "-c", orphans)
    assert done.stdout.splitlines()[0] == "0"


def test_a_terminal_is_not_read_from_the_background(url: str) -> None:
    import pty

    main, terminal = pty.openpty()
    words = [COMMAND, "run", "--lease", "n", "--url", url, "--", "cat"]
    done = subprocess.run(words, stdin=terminal, capture_output=True, text=True, timeout=30, check=False)
    os.close(main)
    os.close(terminal)
    assert done.returncode == 0


def test_a_lease_that_the_parent_holds_is_not_waited_for(url: str) -> None:
    script = f"from spark_lease import hold_lease\nwith hold_lease('n', url={url!r}): pass"
    done = spark_lease("run", "--lease", "n", "--url", url, "--", sys.executable, "-c", script)
    assert done.returncode == 1
    assert "is already held by this process or by one that started it: guard it once" in done.stderr


BLOCK = """
import os, subprocess, sys
from spark_lease import hold_lease
run = [sys.argv[1], "run", "--lease", "n", "--", "true"]
with hold_lease("n", contain="off"):
    inside = subprocess.run(run, capture_output=True, text=True)
    environ = dict(os.environ)
print(inside.returncode, inside.stderr)
print([subprocess.run(run, env=each, stdout=subprocess.DEVNULL).returncode for each in (None, environ)])
"""


def test_what_a_block_starts_does_not_wait_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the block has it, and no longer."""
    monkeypatch.setenv("SPARK_LEASE_URL", url)
    done = subprocess.run([sys.executable, "-c", BLOCK, COMMAND], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("78 "), done.stderr
    assert "is already held by this process or by one that started it: guard it once" in done.stdout
    assert done.stdout.endswith("[0, 0]\n")


@pytest.mark.parametrize("contain", ["auto", "off"])
def test_it_hears_its_command_end_under_a_parent_that_ignores_its_children(url: str, contain: str) -> None:
    words = [
        "run",
        "--lease",
        "n",
        "--url",
        url,
        "--create-table",
        "true",
        "--contain",
        contain,
        "--",
        "sh",
        "-c",
        "exit 5",
    ]
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", ignoring, COMMAND, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 5, done.stderr
