"""One round: two sites start the same guarded work, faults strike, a checker judges what was seen."""

from __future__ import annotations

import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jobs.jars import spark_options, start_options
from tests.faults.campaign.airflow_home import AIRFLOW_HOME, AIRFLOW_PYTHON, DAGS, airflow_settings
from tests.faults.campaign.evidence import (
    Written,
    commits_in,
    done_in,
    ends_of,
    holds_of,
    judge_runs,
    judge_written,
    lines_of,
    rows_in,
)
from tests.faults.campaign.machine import NO_TIMERS, Clock, Disk, Group
from tests.faults.campaign.network import Host
from tests.faults.campaign.schedule import Fault, Kind
from tests.faults.campaign.site import Site
from tests.faults.campaign.stores import TABLE, Store
from tests.faults.campaign.strike import Centre, Striker
from tests.faults.campaign.witness import now
from tests.simulation.checker import judge
from tests.simulation.history import Did, Event
from tests.support.drivers import until

DOORS, ONCE, SPARK, AIRFLOW = ("run", "hold", "once"), "once", "submit", "airflow"
THREADS, NO_KERNEL, NO_FENCE, LACKING, ADVISORY = CONTROLS = (
    "keeper = thread",
    "kernel's part off",
    "no fence",
    "replica lacks a second",
    "advisory lock",
)
"""In which something has to be found: a checker that finds nothing there would find nothing anywhere."""
LEASE, POLL = 3.0, 0.2
_START = {SPARK: 45.0, AIRFLOW: 45.0}
"""Seconds in which a job has started, on a busy machine; others have 12."""
_BEGINS = 180.0
"""Seconds until the first master works, on a machine that has just begun with some data centres."""
_LATER = 2.0
"""Seconds after the last fault in which a second master would show."""
_ROOT = Path(__file__).parents[3]
_MEGABYTES = {SPARK: 1000}
"""Of a site's disk; others have 50."""
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
    def __init__(self, name: str, seed: int, door: str, store: Store, centre: Centre, folder: Path) -> None:
        """`door` is how the work is guarded: of DOORS, SPARK, of CONTROLS; empty: of DOORS, as the seed says."""
        self.store, self.folder, self._centre = store, folder, centre.name
        self.lease = f"round-{seed}"
        door = door or random.Random(seed).choice(DOORS)
        self.verdict = Verdict(name, seed, door)
        lease = float(store.settings.get("lease_duration", LEASE))
        self._takeover = lease + _START.get(door, 12.0)
        self._table = folder / "table"
        self._accepts = store.engine
        self._striker = Striker(centre, store, folder, lacking=1.0 if door == LACKING else 0.0)
        self._make_table()
        self.sites = [self._site(door, host) for host in centre.sites]
        self._heals: list[tuple[float, Callable[[], None]]] = []

    def _make_table(self) -> None:
        if self._accepts is None:
            return
        with self._accepts.begin() as connection:
            connection.exec_driver_sql("DROP TABLE IF EXISTS witness")
            key = TABLE[self._accepts.dialect.name]
            connection.exec_driver_sql(f"CREATE TABLE witness ({key}, epoch BIGINT, run VARCHAR(20))")
        if self._fences_by_itself:
            words = [sys.executable, "-m", "spark_lease", "fence", "add", "--on", "witness"]
            settings = os.environ | self._settings(self.verdict.door)
            # The server of the round before may just be coming back.
            until(
                lambda: subprocess.run(words, env=settings, stdout=subprocess.DEVNULL, check=False).returncode == 0, 30
            )

    @property
    def _fences_by_itself(self) -> bool:
        return self.verdict.door in ("run", AIRFLOW) and bool(self.store.past_the_library)

    def _settings(self, door: str) -> dict[str, str]:
        """The environment of what is guarded."""
        settings = {"name": self.lease, "url": self.store.url, "lease_duration": LEASE, "poll_period": POLL}
        settings |= {"create_table": "true"} | self.store.settings | ({"keeper": "thread"} if door == THREADS else {})
        variables = {f"SPARK_LEASE_{key.upper()}": str(value) for key, value in settings.items()}
        return variables | {"PYTHONPATH": str(_ROOT)} | (NO_TIMERS if door == NO_KERNEL else {})

    def _site(self, door: str, host: Host) -> Site:
        disk = self.folder / f"{host.name}.disk"
        settings, command = self._settings(door) | {"TMPDIR": str(disk)}, self._command(door, host.name)
        settings |= {"SPARK_SUBMIT_OPTS": f"-XX:TieredStopAtLevel=1 {start_options()}"} if door == SPARK else {}
        if door == AIRFLOW:
            home, python = self.folder / f"{host.name}.airflow", str(AIRFLOW_PYTHON)
            shutil.copytree(AIRFLOW_HOME, home)
            words = " ".join([*command[:4], "--ends-with $PPID", shlex.join(command[4:])])
            settings |= airflow_settings(home) | {"CAMPAIGN_COMMAND": words}
            command = [python, str(DAGS / "guarded.py")]
        size = _MEGABYTES.get(door, 50)
        log, clock = self.folder / f"{host.name}.log", Clock(self.folder / f"{host.name}.clock")
        return Site(host, command, settings, log, Disk(disk, size), clock)

    def _command(self, door: str, site: str) -> list[str]:
        guard, where = [sys.executable, "-m", "spark_lease"], [str(self.folder), site]
        if door == SPARK:
            spark = ["--master", "local[3]", *spark_options(), _SPARK_WITNESS]
            return [*guard, "submit", "--", *spark, *where, str(self._table), *self._url]
        how = {"run": "run", AIRFLOW: "run", ONCE: ONCE, NO_FENCE: "plain", ADVISORY: "advisory"}.get(door, "hold")
        words = [sys.executable, _WITNESS, how, *where]
        if door in ("run", AIRFLOW):
            return [*guard, "run", "--", *words, *([self.store.past_the_library] if self._fences_by_itself else [])]
        return [*words, *self._url]

    @property
    def _url(self) -> list[str]:
        """Of the database with fenced rows, if the store is one."""
        return [self._accepts.url.render_as_string(hide_password=False)] if self._accepts else []

    def play(self, faults: Sequence[Fault]) -> Verdict:
        try:
            kinds = {each.kind for each in faults}
            for site in self.sites:
                if Kind.CLOCK in kinds:
                    site.settings |= site.clock.environment
                if Kind.MEMORY in kinds:
                    site.memory = Group("memory", f"{self._centre}-{site.host.name}")
                site.start()
            until(self._works, _BEGINS)
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
                site.disk.close()
                if site.memory:
                    site.memory.remove()

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
        heal = self._striker.strike(fault, site)
        self.verdict.faults.append(
            asdict(fault) | {"site": site.host.name, "struck": round(struck - begun, 3), "hit": heal is not None}
        )
        if heal:
            self._heals.append((struck + fault.seconds, heal))

    def _files(self) -> list[Path]:
        return [each for site in self.sites for each in self.folder.glob(f"{site.host.name}-*")]

    def _last_line(self) -> float:
        """When the newest line was written, by `now`; a file's time is that of the wall clock."""
        wall = max((each.stat().st_mtime for each in self._files()), default=0.0)
        return wall - time.time() + now() if wall else 0.0

    def _works(self) -> bool:
        """Spark takes its time until its first commit, in which there would be nothing to go wrong."""
        is_late = self.verdict.door == SPARK
        return any(not is_late or b"write accepted" in each.read_bytes() for each in self._files())

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

    def _written(self) -> list[Written]:
        """Of each place where it was committed."""
        rows = rows_in(self._accepts) if self._accepts else []
        if self.verdict.door != SPARK:
            return [[(n, epoch) for n, epoch, _ in rows]]
        by_its_number = [(int(run), epoch) for _, epoch, run in rows]
        return [commits_in(self._table), *([by_its_number] if self._accepts else [])]

    def _judge(self, faults: Sequence[Fault]) -> None:
        events = list(lines_of(self._files()))
        holds = holds_of(events)
        stood = [Event(at, who, Did.FROZEN, since=since) for who, since, at in self._striker.stood]
        written = self._written()
        self.verdict.grants, self.verdict.lines = len(holds), len(events)
        self.verdict.rows = sum(n > 0 for each in written for n, _ in each)
        self.verdict.violations += [str(each) for each in judge([*events, *stood, *ends_of(holds)])]
        self.verdict.violations += [text for each in written for text in judge_written(each, events)]
        if self.verdict.door == ONCE:
            completed = [run for *_, run in rows_in(self._accepts) if run] if self._accepts else []
            self.verdict.violations += judge_runs(done_in(self.folder), completed, events)
        if (
            [each.kind for each in faults] in ([Kind.KILL_ALL], [Kind.KILL_SITE])
            and faults[0].on_master
            and self.verdict.door != ONCE
        ):
            ordered = sorted(holds.values(), key=lambda each: each[0].at)
            if len(ordered) > 1:
                self.verdict.takeover = round(ordered[1][0].at - ordered[0][-1].at, 3)
