"""Hosts on one machine: network namespaces, each joined by a cable (veth) to a switch (bridge) in our own namespace.

The caller runs in a namespace of its own (`unshare --net`): when the last of its processes ends, the kernel removes all
of this, however it ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from spark_lease.system.processes import Process, processes

SWITCH, OBSERVER = "switch", "10.0.0.254"
_NOTHING = "rate 8bit burst 1 limit 1"
"""No frame fits into this bucket, so each of them is dropped."""
_NEWNET = 0x40000000  # linux/sched.h, CLONE_NEWNET
_SLOW = "rate 48kbit burst 1600 limit 6000"
"""A second for each 6 kB; what does not fit into the queue of 6 kB is lost (tc-tbf(8))."""


class Host:
    """One of them. Its namespace lives as long as its first process, which does nothing."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.address = name, f"10.0.0.{number}"
        self._first = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
        end = time.monotonic() + 10
        while (found := _namespace(self._first.pid)) in (None, _namespace(os.getpid())):
            assert self._first.poll() is None and time.monotonic() < end, "unshare --net gave no namespace"
            time.sleep(0.005)
        self._namespace = found
        _do("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(self._first.pid))
        _do("ip", "link", "set", "dev", name, "master", SWITCH, "up")
        with self.inside():
            _do("ip", "link", "set", "lo", "up")
            _do("ip", "link", "set", "eth0", "up")
            _do("ip", "address", "add", f"{self.address}/24", "dev", "eth0")

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What this thread starts within the block, runs on this host."""
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{self._first.pid}/ns/net") as here:
            _enter(here)
            try:
                yield
            finally:
                _enter(before)

    def processes(self) -> list[Process]:
        """All that runs on this host, in whatever PID namespace."""
        found = (each for each in processes().values() if each.alive and each.pid != self._first.pid)
        return [each for each in found if _namespace(each.pid) == self._namespace]

    def cut(self) -> None:
        """Pull the cable out of the switch: nothing arrives, and no side is told."""
        _do("ip", "link", "set", "dev", self.name, "nomaster")

    def be_deaf(self) -> None:
        """What it sends arrives; what is sent to it does not."""
        _do("tc", "qdisc", "replace", "dev", self.name, "root", "tbf", *_NOTHING.split())

    def be_mute(self) -> None:
        """What is sent to it arrives; what it sends does not."""
        with self.inside():
            _do("tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *_NOTHING.split())

    def slow_down(self) -> None:
        """What is sent to it is late, and much of it lost."""
        _do("tc", "qdisc", "replace", "dev", self.name, "root", "tbf", *_SLOW.split())

    def reset(self) -> None:
        """Each connection to it ends with an RST; the next one is accepted."""
        with self.inside():
            _do("ss", "--kill", "state", "established", check=False)

    def heal(self) -> None:
        _do("ip", "link", "set", "dev", self.name, "master", SWITCH)
        _do("tc", "qdisc", "del", "dev", self.name, "root", check=False)
        with self.inside():
            _do("tc", "qdisc", "del", "dev", "eth0", "root", check=False)

    def kill_all(self) -> None:
        """What its control group has frozen ends when that is thawed, and is not waited for."""
        killed: set[int] = set()
        while left := [each for each in self.processes() if each.pid not in killed or each.state != "D"]:
            for each in left:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGKILL)
            killed |= {each.pid for each in left}
            time.sleep(0.01)

    def close(self) -> None:
        self.kill_all()
        self._first.kill()
        self._first.wait(10)


def switch_on() -> None:
    """The switch, in a namespace that has nothing yet, and our own cable to it."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", SWITCH, "type", "bridge")
    _do("ip", "address", "add", f"{OBSERVER}/24", "dev", SWITCH)
    _do("ip", "link", "set", SWITCH, "up")


def _do(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=not check)


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:  # it has ended
        return None


def _enter(namespace: IO[str]) -> None:
    """setns(2), of this thread alone; Python has it from 3.12 on."""
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
