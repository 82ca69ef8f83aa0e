"""What the keeper knows of a driver and its children. Children are real processes; no Spark here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.keeper.channel import Channel, Closed
from spark_lease.keeper.driver import Driver
from spark_lease.keeper.keeper import Keeper
from spark_lease.system.kernel import KillPipe
from spark_lease.system.processes import kill, look, tree
from tests.support.drivers import until

# Stands for the JVM: starts one child in a group of its own, as pyspark.daemon is, and says its pid.
PARENT = """
import os, signal, subprocess
child = subprocess.Popen(["sleep", "60"], process_group=0, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
child.wait()
signal.pause()
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    yield process
    kill(tree(process.pid))
    process.communicate()


def child_of(parent: subprocess.Popen[str]) -> int:
    assert parent.stdout
    return int(parent.stdout.readline())


def test_a_group_whose_last_member_has_ended_is_forgotten(parent: subprocess.Popen[str]) -> None:
    """Its number may be a stranger's from then on, who must not be killed with the driver."""
    kill_pipe = KillPipe()
    driver = Driver(os.getpid(), configure(name="n"), mark="m", mapped="m", kill_pipe=kill_pipe, clock=BootClock())
    child = child_of(parent)
    driver.attach_jvm(parent.pid, marked=True)
    until(lambda: -child in driver.look_around()[0])  # orphans of other tests may come to this process meanwhile
    assert driver.pipe_end_to(-child) is not None
    os.kill(child, signal.SIGKILL)
    until(lambda: look(child) is None)
    until(lambda: -child in driver.look_around()[1])  # once its parent has buried it
    assert driver._groups == set()
    assert list(driver._pipe_ends) == []
    driver.disarm()
    kill_pipe.close()


def test_once_disarmed_nothing_is_tied_any_more(parent: subprocess.Popen[str]) -> None:
    """A child that is found as its block ends lives on: also where its pipe end is on its way just then."""
    child = child_of(parent)
    kill_pipe, pythons = KillPipe(), KillPipe()
    driver = Driver(os.getpid(), configure(name="n"), mark="m", mapped="m", kill_pipe=kill_pipe, clock=BootClock())
    driver.disarm()
    with closing(pythons.pipe_end(child)) as pipe_end:
        driver.hold(child, os.dup(pipe_end.fd))
        assert driver.pipe_end_to(child) is None
        kill_pipe.close()
        pythons.close()
    time.sleep(0.2)  # for a kill that must not come
    assert look(child)


def test_a_strand_that_could_not_be_handed_over_is_handed_over_later(url: str, parent: subprocess.Popen[str]) -> None:
    child_of(parent)
    config = configure(name="n", url=url)
    theirs, ours = Channel.pair()
    order = {"config": asdict(config), "driver": os.getpid(), "mark": "m", "holder": "h", "log_level": 30}
    keeper = Keeper(theirs, order, pid=os.getpid())
    with pytest.raises(Closed):
        while True:  # as if the driver had not listened for a long time
            theirs.send({"filler": "x" * 1000})
    ours.send({"jvm": parent.pid, "marked": True})

    def heard() -> list[str]:
        keeper._attend(BootClock().now() + 0.1)
        said = []
        while received := ours.receive(0.0):
            said += list(received[0])
        return said

    assert "hold" not in heard()
    until(lambda: "hold" in heard())
    keeper._talk.stop_guarding()
    ours.close()
    theirs.close()
