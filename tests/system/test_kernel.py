"""Real processes, killed by the kernel alone: at an instant, and when another one ends."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_lease.clock import BootClock
from spark_lease.keeper.deadline import SharedDeadline, new_mapping
from spark_lease.system.kernel import KillPipe, why_not
from spark_lease.system.processes import look

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux's timers and signals")

SOON = 3.0
"""Seconds that a loaded machine may take to do what takes milliseconds."""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: object, **options: object) -> subprocess.Popen[str]:
        """A Python process that runs `script` and has said its first line."""
        command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process  # type: ignore[no-any-return]

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=10)


TIMER = """
    import sys, time
    from spark_lease.clock import BootClock
    from spark_lease.system.kernel import KillTimer
    timer = KillTimer()
    {}
    print("ready", flush=True)
    time.sleep(60)
"""
HOLD_THE_GIL = (
    "a = list(range(8_000_000)); a.reverse(); import random; random.shuffle(a); print('ready', flush=True); a.sort()"
)
IDLE = "import time; print('ready', flush=True); time.sleep(60)"


def test_this_machine_has_the_kernels_part() -> None:
    assert why_not() == ""


def test_a_process_ends_at_its_instant_and_not_before(start: Start) -> None:
    at = BootClock().now() + 1.0
    process = start(TIMER.format("timer.move(float(sys.argv[1]))"), at)
    assert process.wait(1 + SOON) == -signal.SIGKILL
    assert BootClock().now() >= at


def test_a_process_that_is_stopped_ends_at_its_instant(start: Start) -> None:
    process = start(TIMER.format("timer.move(BootClock().now() + 1)"))
    process.send_signal(signal.SIGSTOP)
    assert process.wait(1 + SOON) == -signal.SIGKILL


def test_an_instant_that_has_passed_is_now_and_never_is_not_zero(start: Start) -> None:
    for instant in ("1.0", "0.0", "-5.0"):
        with pytest.raises(AssertionError):  # it never gets to say that it is ready
            start(TIMER.format(f"timer.move({instant}); time.sleep(60)"))


def test_a_timer_that_is_moved_or_disarmed_does_not_kill(start: Start) -> None:
    moved = start(TIMER.format("timer.move(BootClock().now() + 0.3); timer.move(BootClock().now() + 60)"))
    disarmed = start(TIMER.format("timer.move(BootClock().now() + 0.3); timer.disarm()"))
    time.sleep(0.6)  # nothing to wait for: nothing is to happen
    assert [each.poll() for each in (moved, disarmed)] == [None, None]


HOLDER = """
    import os, socket, sys
    from spark_lease.system.kernel import KillPipe
    kill_pipe, talk = KillPipe(), socket.socket(fileno=int(sys.argv[1]))
    pipe_ends = [kill_pipe.pipe_end(int(target)) for target in sys.argv[2:]]
    socket.send_fds(talk, [b"x"], [pipe_end.fd for pipe_end in pipe_ends])
    for pipe_end in pipe_ends:
        pipe_end.close()
    print("ready", flush=True)
    if sys.stdin.readline() == "let go\\n":
        sys.exit(0)
"""


def wired(start: Start, *targets: int) -> tuple[subprocess.Popen[str], list[int]]:
    """A process whose end kills the targets, and the pipe ends, which this process holds."""
    import socket

    here, there = socket.socketpair()
    holder = start(HOLDER, there.fileno(), *targets, pass_fds=[there.fileno()])
    _, pipe_ends, _, _ = socket.recv_fds(here, 1, len(targets))
    here.close()
    there.close()
    return holder, pipe_ends


@pytest.mark.parametrize("end", ["SIGKILL", pytest.param("exits", marks=pytest.mark.slow)])
def test_a_wire_kills_when_its_holder_ends_for_whatever_reason(start: Start, end: str) -> None:
    idle, stopped, busy = start(IDLE), start(IDLE), start(HOLD_THE_GIL)
    stopped.send_signal(signal.SIGSTOP)
    holder, pipe_ends = wired(start, idle.pid, stopped.pid, busy.pid)
    assert [each.poll() for each in (idle, stopped, busy)] == [None, None, None]
    if end == "exits":
        holder.communicate("let go\n", timeout=10)
    else:
        holder.kill()
    assert [each.wait(SOON) for each in (idle, stopped, busy)] == [-signal.SIGKILL] * 3
    for fd in pipe_ends:
        os.close(fd)


def test_a_wire_kills_a_whole_group(start: Start) -> None:
    leader = start(
        """
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
        print("ready", flush=True)
        print(child.pid, flush=True)
        time.sleep(60)
        """,
        start_new_session=True,
    )
    assert leader.stdout
    child = int(leader.stdout.readline())
    holder, pipe_ends = wired(start, -leader.pid)
    holder.kill()
    assert leader.wait(SOON) == -signal.SIGKILL
    end = time.monotonic() + SOON
    while look(child):
        assert time.monotonic() < end, "the child lives"
        time.sleep(0.01)
    os.close(pipe_ends[0])


HOLDS_MANY = """
    import resource, sys, time
    from spark_lease.system.kernel import KillPipe, is_one_of_the_last
    kill_pipe, pipe_ends = KillPipe(), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while len(pipe_ends) < 1500 and not is_one_of_the_last((made := kill_pipe.pipe_end(int(sys.argv[1]))).fd):
        pipe_ends.append(made)
    for pipe_end in pipe_ends[:-1]:
        pipe_end.disarm()
    open("/dev/null").close()
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("files", [256, 4096])
def test_the_last_of_very_many_strands_kills_and_some_descriptors_stay_free(start: Start, files: int) -> None:
    for _ in range(5):
        target = start(IDLE)
        start(HOLDS_MANY, target.pid, files).kill()
        assert target.wait(SOON) == -signal.SIGKILL


HOLDS_ALL = """
    import sys, time
    from spark_lease.system.kernel import KillPipe
    kill_pipes = [KillPipe() for _ in range(2)]
    pipe_ends = [kill_pipe.pipe_end(int(target)) for kill_pipe in kill_pipes for target in sys.argv[1:]]
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("files", [None, 256, 4096, 100])
def test_a_wire_kills_though_nobody_else_holds_its_strands(start: Start, files: int | None) -> None:
    """A keeper and its driver, who holds them as well, may be killed in one instant."""
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))} if files else {}
    for _ in range(10):
        targets = [start(IDLE) for _ in range(2)]
        start(HOLDS_ALL, *(each.pid for each in targets), **limited).kill()
        assert [each.wait(SOON) for each in targets] == [-signal.SIGKILL] * 2


def test_a_disarmed_strand_kills_nobody(start: Start) -> None:
    from spark_lease.system.kernel import PipeEnd

    spared, other = start(IDLE), start(IDLE)
    holder, pipe_ends = wired(start, spared.pid, other.pid)
    PipeEnd(pipe_ends[0]).disarm()
    holder.kill()
    assert other.wait(SOON) == -signal.SIGKILL
    assert spared.poll() is None
    for fd in pipe_ends:
        os.close(fd)


def test_a_strand_that_nobody_holds_kills_nobody(start: Start) -> None:
    """Not the holder of the kill pipe either, which closed its own."""
    target, control = start(IDLE), start(IDLE)
    holder, pipe_ends = wired(start, target.pid, control.pid)
    os.close(pipe_ends[0])
    holder.kill()
    assert control.wait(SOON) == -signal.SIGKILL
    assert target.poll() is None
    os.close(pipe_ends[1])


def test_there_is_no_strand_to_a_process_that_is_gone(start: Start) -> None:
    gone = start(IDLE)
    gone.kill()
    gone.wait()
    kill_pipe = KillPipe()
    with pytest.raises(OSError, match="No such process"):
        kill_pipe.pipe_end(gone.pid)
    kill_pipe.close()


# The published deadline


def test_a_deadline_is_read_where_it_was_handed_to(start: Start) -> None:
    fd = new_mapping("test")
    mine = SharedDeadline(fd, writable=True)
    assert mine.instant == 0
    mine.publish(12.5)
    reader = start(
        """
        import sys
        from spark_lease.keeper.deadline import SharedDeadline
        theirs = SharedDeadline(int(sys.argv[1]))
        print("ready", flush=True)
        for _ in sys.stdin:
            print(theirs.instant, flush=True)
        """,
        fd,
        pass_fds=[fd],
    )
    os.close(fd)

    def seen() -> float:
        assert reader.stdin
        assert reader.stdout
        reader.stdin.write("?\n")
        reader.stdin.flush()
        return float(reader.stdout.readline())

    assert seen() == 12.5
    mine.publish(0.0)
    assert 0 < seen() < 1e-8  # long past, and not the same as lost
    mine.publish(float("inf"))
    assert seen() > 9e9
    mine.lose()
    assert seen() == 0
    mine.close()


def test_a_deadline_can_only_be_moved_by_its_keeper() -> None:
    fd = new_mapping("test")
    reader = SharedDeadline(fd)
    with pytest.raises(TypeError, match="read-only"):
        reader.publish(1.0)
    reader.close()
    os.close(fd)


def test_what_is_no_deadline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("hello")
    with (tmp_path / "other").open("rb") as file, pytest.raises(ValueError, match="not a mapping"):
        SharedDeadline(file.fileno())
