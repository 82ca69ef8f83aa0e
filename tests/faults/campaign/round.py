"""One round: two sites start the same guarded work, faults strike, a checker judges what was seen."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jobs.jars import spark_options
from spark_lease.testing.checker import judge
from spark_lease.testing.history import Did, Event
from tests.faults.campaign.evidence import commits_in, ends_of, holds_of, judge_written, lines_of, rows_in
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import FREEZES, Fault, Kind
from tests.faults.campaign.site import Site
from tests.faults.campaign.stores import TABLE, Store, crash
from tests.faults.campaign.witness import now
from tests.support.drivers import until

DOORS, SPARK = ("run", "hold"), "submit"
CONTROLS = THREADS, NO_FENCE, ADVISORY = ("keeper = thread", "no fence", "advisory lock")
"""In which something has to be found: a checker that finds nothing there would find nothing anywhere."""
LEASE, POLL = 3.0, 0.2
_START = {SPARK: 45.0}
"""Seconds in which a job has started, on a busy machine; others have 12."""
_LATER = 2.0
"""Seconds after the last fault in which a second master would show."""
_ROOT = Path(__file__).parents[3]
_WITNESS = str(Path(__file__).with_name("witness.py"))
_SPARK_WITNESS = str(Path(__file__).with_name("spark_witness.py"))


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
        """`door` is how the work is guarded: of DOORS, SPARK, of CONTROLS; empty: of DOORS, as the seed says."""
        self.store, self.database, self.folder = store, database, folder
        self.lease = f"round-{seed}"
        door = door or random.Random(seed).choice(DOORS)
        self.verdict = Verdict(name, seed, door)
        self._takeover = LEASE + _START.get(door, 12.0)
        self._table = folder / "table"
        self._accepts = None if door == SPARK else store.engine
        self._stood = list[tuple[str, float, float]]()
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
        return {f"SPARK_LEASE_{key.upper()}": str(value) for key, value in settings.items()} | {
            "PYTHONPATH": str(_ROOT)
        }

    def _command(self, door: str, site: str) -> list[str]:
        guard, where = [sys.executable, "-m", "spark_lease"], [str(self.folder), site]
        if door == SPARK:
            spark = ["--master", "local[3]", *spark_options(), _SPARK_WITNESS]
            return [*guard, "submit", "--", *spark, *where, str(self._table)]
        how = {THREADS: "hold", NO_FENCE: "plain", ADVISORY: "advisory"}.get(door, door)
        words = [sys.executable, _WITNESS, how, *where]
        if door == "run":
            return [*guard, "run", "--", *words, *([self.store.url] if self._fences_by_itself else [])]
        return [*words, self._accepts.url.render_as_string(hide_password=False)] if self._accepts else words

    def play(self, faults: Sequence[Fault]) -> Verdict:
        try:
            for site in self.sites:
                site.start()
            until(lambda: self._last_line() > 0, 90)
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
        """When the newest line was written, by `now`; a file's time is that of the wall clock."""
        wall = max((each.stat().st_mtime for each in self._files()), default=0.0)
        return wall - time.time() + now() if wall else 0.0

    def _master(self) -> Site:
        newest = max(self._files(), key=lambda each: each.stat().st_mtime)
        return next(each for each in self.sites if newest.name.startswith(each.host.name))

    def _see_a_master(self) -> None:
        healed = now()
        time.sleep(_LATER)
        while self._last_line() < healed:
            if now() > healed + self._takeover:
                self.verdict.violations.append(f"P6: no master wrote for {self._takeover:g} s after the last fault")
                return
            time.sleep(0.02)

    def _judge(self, faults: Sequence[Fault]) -> None:
        events = list(lines_of(self._files()))
        holds = holds_of(events)
        stood = [Event(at, who, Did.FROZEN, since=since) for who, since, at in self._stood]
        written = rows_in(self._accepts) if self._accepts else commits_in(self._table)
        self.verdict.grants, self.verdict.lines, self.verdict.rows = len(holds), len(events), len(written)
        self.verdict.violations += [str(each) for each in judge([*events, *stood, *ends_of(holds)])]
        self.verdict.violations += judge_written(written, events)
        if [each.kind for each in faults] in ([Kind.KILL_ALL], [Kind.KILL_SITE]) and faults[0].on_master:
            ordered = sorted(holds.values(), key=lambda each: each[0].at)
            if len(ordered) > 1:
                self.verdict.takeover = round(ordered[1][0].at - ordered[0][-1].at, 3)


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
