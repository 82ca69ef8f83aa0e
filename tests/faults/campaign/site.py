"""A site: a host, the scheduler on it, and the guarded job that it starts again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spark_lease.system.processes import Process, look
from tests.faults.campaign.machine import Clock, Disk, Group
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import Kind
from tests.support.drivers import command_line

_ENDS = 20.0
"""Seconds in which a job ends that was told to."""
_WITNESS = "campaign/witness.py"
_WORK = (_WITNESS, "campaign/spark_witness.py")
_FRONT_DOORS = ("-m spark_lease run", "-m spark_lease submit")
_AIRFLOW = "campaign/dags/guarded.py"
_KEEPERS = ("spark-lease keeper", *_FRONT_DOORS)
_GUARD = ("spark-lease sweeper", *_KEEPERS)
_AGAIN = 'echo $$ > "$CAMPAIGN_GROUP"; while :; do "$@"; sleep 0.5; done'
"""A scheduler: whatever the end, it starts the job again."""
_HOG = 'echo $$ > "$CAMPAIGN_GROUP"; while :; do tail /dev/zero; done'
"""Takes memory until the kernel kills, again and again."""


@dataclass
class Site:
    """A host, its disk, its wall clock, its scheduler, and what that started."""

    host: Host
    command: list[str]
    settings: dict[str, str]
    log: Path
    disk: Disk
    clock: Clock
    memory: Group | None = None
    """If there is a fault for it: all that runs here."""
    scheduler: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.scheduler is None:
            self.scheduler = self._bash(_AGAIN, "scheduler", *self.command)

    def hog(self) -> subprocess.Popen[bytes]:
        """Takes what memory is left here, until its process group is killed."""
        return self._bash(_HOG)

    def _bash(self, *words: str) -> subprocess.Popen[bytes]:
        group = str(self.memory.entrance) if self.memory else os.devnull
        environment = os.environ | self.settings | {"CAMPAIGN_GROUP": group}
        with self.host.inside(), self.log.open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", *words], stdout=log, stderr=log, start_new_session=True, env=environment
            )

    def victims(self, kind: Kind) -> list[Process]:
        found = self.host.processes()
        match kind:
            case Kind.KILL_KEEPER | Kind.FREEZE_KEEPER:
                return [each for each in found if _line_has(each, _KEEPERS)]
            case Kind.KILL_WORK | Kind.FREEZE_WORK:
                return [each for each in found if each.name == "java"] or [each for each in found if _is_witness(each)]
            case Kind.KILL_DRIVER | Kind.FREEZE_DRIVER:
                return [each for each in found if _is_driver(each)]
            case Kind.FREEZE_GUARD:
                return [each for each in found if _is_driver(each) or _line_has(each, _GUARD)]
            case Kind.KILL_SITE | Kind.FREEZE_SITE:
                return found
        return [each for each in found if each.name not in ("bash", "sleep")]

    def kill(self, kind: Kind) -> None:
        for each in self.victims(kind):
            with suppress(ProcessLookupError):
                os.kill(each.pid, signal.SIGKILL)
        if kind is Kind.KILL_SITE:
            self.host.kill_all()
            self.bury()

    def freeze(self, kind: Kind) -> list[int]:
        frozen: list[int] = []
        while fresh := [each.pid for each in self.victims(kind) if each.pid not in frozen]:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            frozen += fresh
        return frozen

    def put_into(self, group: Group) -> None:
        """All that runs here, and so what that starts."""
        while fresh := [each.pid for each in self.host.processes() if each.pid not in group.members()]:
            for pid in fresh:
                group.add(pid)

    def bury(self) -> None:
        """And not wait for one that its control group has frozen."""
        if self.scheduler:
            self.scheduler.kill()
            found = look(self.scheduler.pid)
            if not found or found.state != "D":
                self.scheduler.wait(10)
            self.scheduler = None

    def end(self) -> list[str]:
        """Tell the job to end, as an operator does; the command lines of what then is left."""
        self.bury()
        end, again = time.monotonic() + _ENDS, 0.0
        while (left := self.host.processes()) and time.monotonic() < end:
            if time.monotonic() >= again:  # the import of a C extension may swallow one
                again = time.monotonic() + _ENDS / 3
                for each in filter(_is_front, left):
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGTERM)
            time.sleep(0.02)
        return [f"{each.pid} {each.state} {command_line(each.pid)}" for each in left]


def _line_has(process: Process, words: Sequence[str]) -> bool:
    line = command_line(process.pid)
    return any(word in line for word in words)


def _is_front(process: Process) -> bool:
    return _line_has(process, (*_FRONT_DOORS, _AIRFLOW)) or _is_witness(process)


def _is_witness(process: Process) -> bool:
    words = command_line(process.pid).split()
    return len(words) > 1 and words[1].endswith(_WITNESS)


def _is_driver(process: Process) -> bool:
    is_work = process.name.startswith("python") and _line_has(process, _WORK)
    return is_work and not _line_has(process, (" child ", *_FRONT_DOORS))
