"""One round: two sites start the same guarded work, faults strike, a checker judges what was seen."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from spark_lease.system.processes import Process
from spark_lease.testing.checker import judge
from spark_lease.testing.history import Did, Event
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import FREEZES, Fault, Kind
from tests.faults.campaign.stores import TABLE, Store, crash
from tests.faults.campaign.witness import now
from tests.support.drivers import command_line, until

DOORS = ("run", "hold")
CONTROLS = THREADS, NO_FENCE, ADVISORY = ("keeper = thread", "no fence", "advisory lock")
"""In which something has to be found: a checker that finds nothing there would find nothing anywhere."""
LEASE, POLL = 3.0, 0.2
TAKEOVER = LEASE + 12.0
"""Seconds after the last fault in which a master has to write: its lease, and Python's start on a busy machine."""
_LATER = 2.0
"""Seconds after the last fault in which a second master would show."""
_ENDS = 20.0
"""Seconds in which a job ends that was told to."""
_WITNESS = str(Path(__file__).with_name("witness.py"))
_AGAIN = 'while :; do "$@"; sleep 0.1; done'
"""A scheduler: whatever the end, it starts the job again."""


@dataclass
class Site:
    """A host, its scheduler, and what that started."""

    host: Host
    command: list[str]
    settings: dict[str, str]
    log: Path
    scheduler: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.scheduler is None:
            with self.host.inside(), self.log.open("ab") as log:
                self.scheduler = subprocess.Popen(
                    ["bash", "-c", _AGAIN, "scheduler", *self.command],
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=os.environ | self.settings,
                )

    def victims(self, kind: Kind) -> list[Process]:
        found = self.host.processes()
        match kind:
            case Kind.KILL_KEEPER | Kind.FREEZE_KEEPER:
                return [each for each in found if self._is_keeper(each)]
            case Kind.KILL_WORK | Kind.FREEZE_WORK:
                return [each for each in found if _is_witness(each)]
            case Kind.KILL_SITE | Kind.FREEZE_SITE:
                return found
        return [each for each in found if each.name not in ("bash", "sleep")]

    def _is_keeper(self, process: Process) -> bool:
        line = command_line(process.pid)
        return "spark-lease keeper" in line or "-m spark_lease run" in line

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

    def bury(self) -> None:
        if self.scheduler:
            self.scheduler.kill()
            self.scheduler.wait(10)
            self.scheduler = None

    def end(self) -> list[str]:
        """Tell the job to end, as an operator does; the command lines of what then is left."""
        self.bury()
        end, again = time.monotonic() + _ENDS, 0.0
        while (left := self.host.processes()) and time.monotonic() < end:
            if time.monotonic() >= again:  # the import of a C extension may swallow one
                again = time.monotonic() + _ENDS / 3
                for each in filter(self._is_front, left):
                    with suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGTERM)
            time.sleep(0.02)
        return [f"{each.pid} {each.state} {command_line(each.pid)}" for each in left]

    def _is_front(self, process: Process) -> bool:
        line = command_line(process.pid)
        return "-m spark_lease run" in line or _is_witness(process)


def _is_witness(process: Process) -> bool:
    words = command_line(process.pid).split()
    return len(words) > 1 and words[1] == _WITNESS


@dataclass
class Verdict:
    """What a round came to, as it is written down."""

    store: str
    seed: int
    door: str
    faults: list[dict[str, object]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    grants: int = 0
    lines: int = 0
    rows: int = 0
    takeover: float | None = None
    """Seconds from the last line of a master whose job was killed, by the only fault, to the first line of the next."""


class Round:
    def __init__(
        self, name: str, seed: int, door: str, store: Store, database: Host, sites: Sequence[Host], folder: Path
    ) -> None:
        """`door` is how the work is guarded, one of DOORS or CONTROLS; empty: one of DOORS, as the seed says."""
        self.store, self.database, self.folder = store, database, folder
        self.lease = f"round-{seed}"
        door = door or random.Random(seed).choice(DOORS)
        self.verdict = Verdict(name, seed, door)
        self._accepts, self._stood = store.engine, []  # type: ignore[var-annotated]
        self._make_table()
        self.sites = [
            Site(host, self._command(door, host.name), self._settings(door), folder / f"{host.name}.log")
            for host in sites
        ]
        self._heals: list[tuple[float, Callable[[], None]]] = []

    def _make_table(self) -> None:
        if self._accepts is None:
            return
        with self._accepts.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS witness")
            key = TABLE[self._accepts.dialect.name]
            connection.exec_driver_sql(f"CREATE TABLE witness ({key}, epoch BIGINT, site VARCHAR(20))")
        if self._fences_by_itself:
            subprocess.run(
                [sys.executable, "-m", "spark_lease", "fence", "add", "--on", "witness"],
                env=os.environ | self._settings(self.verdict.door),
                check=True,
                capture_output=True,
            )

    @property
    def _fences_by_itself(self) -> bool:
        return self.verdict.door == "run" and self.store.url.startswith("postgresql")

    def _settings(self, door: str) -> dict[str, str]:
        """The environment of what is guarded."""
        settings = {"name": self.lease, "url": self.store.url, "lease_duration": LEASE, "poll_period": POLL}
        settings |= {"create_table": "true"} | self.store.settings | ({"keeper": "thread"} if door == THREADS else {})
        return {f"SPARK_LEASE_{key.upper()}": str(value) for key, value in settings.items()}

    def _command(self, door: str, site: str) -> list[str]:
        how = {THREADS: "hold", NO_FENCE: "plain", ADVISORY: "advisory"}.get(door, door)
        words = [sys.executable, _WITNESS, how, str(self.folder), site]
        if door == "run":
            rows = [self.store.url] if self._fences_by_itself else []
            return [sys.executable, "-m", "spark_lease", "run", "--", *words, *rows]
        return [*words, self._accepts.url.render_as_string(hide_password=False)] if self._accepts else words

    def play(self, faults: Sequence[Fault]) -> Verdict:
        try:
            for site in self.sites:
                site.start()
            until(lambda: self._last_line() > 0, 60)
            begun = now()
            for fault in faults:
                self._wait_until(begun + fault.at)
                self._strike(fault, begun)
            while self._heals:
                self._wait_until(max(each for each, _ in self._heals))
            self._see_a_master()
            self.verdict.violations += [f"left: {each}" for site in self.sites for each in site.end()]
            self._judge(faults)
            return self.verdict
        finally:
            for site in self.sites:
                site.bury()
                site.host.kill_all()

    def _wait_until(self, instant: float) -> None:
        """And end the faults that are over meanwhile."""
        while True:
            due = sorted((each for each in self._heals if each[0] <= instant), key=lambda each: each[0])
            following = due[0][0] if due else instant
            time.sleep(max(0.0, following - now()))
            if not due:
                return
            self._heals.remove(due[0])
            due[0][1]()

    def _strike(self, fault: Fault, begun: float) -> None:
        master = self._master()
        site = master if fault.on_master else next(each for each in self.sites if each is not master)
        struck = now()
        heal = self._effect(fault.kind, site)
        self.verdict.faults.append(
            asdict(fault) | {"site": site.host.name, "struck": round(struck - begun, 3), "hit": heal is not None}
        )
        if heal:
            self._heals.append((struck + fault.seconds, heal))

    def _effect(self, kind: Kind, site: Site) -> Callable[[], None] | None:
        """How it is ended; None if there was nothing to strike."""
        server, host = self.store.server, site.host
        match kind:
            case Kind.CUT:
                host.cut()
            case Kind.DEAF:
                host.be_deaf()
            case Kind.MUTE:
                host.be_mute()
            case Kind.SLOW:
                host.slow_down()
            case Kind.SERVER_CUT:
                self.database.cut()
                return self.database.heal
            case Kind.SERVER_FROZEN:
                pids = [each.pid for each in self.database.processes()]
                return _frozen(pids)
            case Kind.SERVER_RESTARTED | Kind.SERVER_CRASHED:
                assert server
                _thaw([each.pid for each in self.database.processes()])()
                crash(server) if kind is Kind.SERVER_CRASHED else server.stop()
                return self._start_server
            case _ if kind in FREEZES:
                since, pids = now(), site.freeze(kind)
                stands = kind is not Kind.FREEZE_KEEPER
                whose = [each.name for each in self.folder.glob(f"{site.host.name}-*")]
                thaw = _thaw(pids)

                def end() -> None:
                    self._stood += [(who, since, now()) for who in whose if stands]
                    thaw()

                return end if pids else None
            case _:
                is_there = bool(site.victims(kind))
                site.kill(kind)
                return site.start if is_there else None
        return host.heal

    def _start_server(self) -> None:
        with self.database.inside():
            assert self.store.server
            if self.store.server.process.poll() is not None:
                self.store.server.start()

    def _files(self) -> list[Path]:
        return [each for site in self.sites for each in self.folder.glob(f"{site.host.name}-*")]

    def _last_line(self) -> float:
        """When the newest line was written."""
        wall = max((each.stat().st_mtime for each in self._files()), default=0.0)
        return wall - time.time() + now() if wall else 0.0

    def _master(self) -> Site:
        newest = max(self._files(), key=lambda each: each.stat().st_mtime)
        return next(each for each in self.sites if newest.name.startswith(each.host.name))

    def _see_a_master(self) -> None:
        healed = now()
        time.sleep(_LATER)
        while self._last_line() < healed:
            if now() > healed + TAKEOVER:
                self.verdict.violations.append(f"P6: no master wrote for {TAKEOVER:g} s after the last fault")
                return
            time.sleep(0.02)

    def _judge(self, faults: Sequence[Fault]) -> None:
        events = list(self._events())
        holds = self._holds(events)
        self.verdict.grants, self.verdict.lines = len(holds), len(events)
        self.verdict.violations += [str(each) for each in judge([*events, *_edges(holds)])]
        self.verdict.violations += self._rows_against(events)
        if [each.kind for each in faults] in ([Kind.KILL_ALL], [Kind.KILL_SITE]) and faults[0].on_master:
            ordered = sorted(holds.values(), key=lambda each: each[0].at)
            if len(ordered) > 1:
                self.verdict.takeover = round(ordered[1][0].at - ordered[0][-1].at, 3)

    def _events(self) -> Iterator[Event]:
        for file in self._files():
            for line in file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    fields = json.loads(line)
                    yield Event(**fields | {"did": Did(fields["did"])})
        for who, since, at in self._stood:
            yield Event(at, who, Did.FROZEN, since=since)

    def _holds(self, events: Sequence[Event]) -> dict[str, list[Event]]:
        holds = defaultdict(list)
        for each in sorted(events, key=lambda each: each.at):
            if each.did is not Did.FROZEN:
                holds[each.who].append(each)
        return holds

    def _rows_against(self, events: Sequence[Event]) -> Iterator[str]:
        """Rows that were reported and are not there; rows of an earlier epoch behind those of a later one."""
        if self._accepts is None:
            return
        with self._accepts.connect() as connection:
            rows = connection.exec_driver_sql("SELECT n, epoch FROM witness ORDER BY n").all()
        self.verdict.rows = len(rows)
        there = {n for n, _ in rows}
        lost = [each for each in events if each.did is Did.ACCEPTED and int(each.detail) not in there]
        if lost:
            yield f"lost: {len(lost)} rows that were reported as committed, {lost[0].detail} the first"
        newest = 0
        for n, epoch in rows:
            if epoch < newest:
                yield f"P4: row {n} of epoch {epoch} was written after one of {newest}"
                return
            newest = epoch


def _edges(holds: dict[str, list[Event]]) -> Iterator[Event]:
    """The work of each hold ended with its last line."""
    for who, mine in holds.items():
        yield Event(mine[-1].at, who, Did.ENDED, epoch=mine[0].epoch)


def _frozen(pids: Sequence[int]) -> Callable[[], None]:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    return _thaw(pids)


def _thaw(pids: Sequence[int]) -> Callable[[], None]:
    def thaw() -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    return thaw
