"""When a process counts as dead, and what it takes to be certain of its offspring."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable

import pytest

from spark_lease.clock import BootClock
from spark_lease.keeper.death import Watched, sweep
from spark_lease.system.processes import MARK, Descendants, look, marked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfds and /proc")


def sleeper(
    *, mark: str = "", script: str = "import time; print('ready', flush=True); time.sleep(60)"
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | ({MARK: mark} if mark else {}),
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.mark.parametrize("pidfd", [True, False])
def test_an_end_is_seen_also_while_nobody_has_buried_it(pidfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    process = sleeper()
    watched = Watched(process.pid)
    assert (watched.fileno() >= 0) == pidfd
    assert not watched.ended
    watched.kill()
    until(lambda: watched.ended)  # a zombie until communicate
    process.communicate()
    assert watched.ended
    watched.kill()
    watched.close()
    with pytest.raises(ProcessLookupError):
        Watched(process.pid)


def test_a_process_that_stands_still_is_not_dead() -> None:
    process = sleeper()
    watched = Watched(process.pid)
    process.send_signal(signal.SIGSTOP)
    until(lambda: watched.stopped)
    assert not watched.ended
    process.send_signal(signal.SIGCONT)
    until(lambda: not watched.stopped)
    process.kill()
    process.communicate()
    watched.close()


def test_a_start_is_noticed_without_looking_at_everything() -> None:
    births = Descendants()
    until(lambda: not births.any())  # on a machine where others start something all the time it takes a while
    process = sleeper()
    assert births.any()
    assert births.any()  # it may not have been visible at once
    process.kill()
    process.communicate()


def test_where_the_kernel_does_not_tell_of_starts_it_looks_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Descendants, "_newest", lambda self: b"0")
    births = Descendants()
    assert all(births.any() for _ in range(30))


def test_a_sweep_finds_what_left_its_session_its_group_and_its_parent() -> None:
    mark = os.urandom(16).hex()
    script = """
        import os, subprocess, sys
        child = "import time; time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.DEVNULL)
        subprocess.Popen(["setsid", "sh", "-c", "sleep 60 & sleep 60"], stdout=subprocess.DEVNULL)
        print("ready", flush=True)
    """
    process = sleeper(mark=mark, script=script)
    process.communicate(timeout=10)
    until(lambda: len(marked(mark)) == 4)
    orphans = [each.pid for each in marked(mark)]
    clock = BootClock()
    assert sweep(mark, clock=clock, until=clock.now() + 10)
    assert marked(mark) == []
    assert [look(pid) for pid in orphans] == [None] * 4


def test_a_sweep_ends_a_group_that_carries_no_mark() -> None:
    script = "import os, time; os.setsid(); print('ready', flush=True); time.sleep(60)"
    process = sleeper(script=script)
    clock = BootClock()
    assert sweep("nobody's", groups=[process.pid], clock=clock, until=clock.now() + 10)
    assert process.wait(10) == -signal.SIGKILL
    process.communicate()


def test_a_sweep_that_has_no_time_left_proves_nothing() -> None:
    mark = os.urandom(16).hex()
    process = sleeper(mark=mark)
    clock = BootClock()
    assert not sweep(mark, clock=clock, until=clock.now())
    process.communicate(timeout=10)
    assert sweep(mark, clock=clock, until=clock.now())
