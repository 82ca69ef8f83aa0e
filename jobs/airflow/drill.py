"""The drill of two Airflows: two sites fire the same days, one task is killed midway, each day is produced once.

    python -m jobs.airflow.drill [--days N] [--folder out/airflow-drill]      (make airflow-drill)

Everything is real: two Airflow homes with a database each, the same DAG in both, one lease, one Delta table. The first
task to work on the second day gets SIGKILL, driver and JVM do not; its site then fires that day again, as a scheduler
that retries. The table at the end is read from Delta's own history. Exit code 0 only if every day is there, written
once, and no driver outlived its task.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from jobs.history import Commit, commits, problems
from jobs.jars import FOLDER, start_options
from spark_lease.submit.command_line import has_java, what_java_lacks
from spark_lease.system.processes import Process, kill, look, tree

ROOT = Path(__file__).parents[2]
AIRFLOW = ROOT / ".venv-airflow" / "bin"
PATIENCE = 180.0
"""Seconds without any event after which the drill gives up."""
ORPHANED = 10.0
"""Seconds within which what a killed task leaves behind has to be gone: the lease of the drill's DAG."""

_NEWS = (
    ("master", re.compile(r"acquired, epoch (\d+)")),
    ("standby", re.compile(r"flights: (\S+?:\d+):\S* is master.*deferred")),
    ("asked", re.compile(r"flights: asked for (\S+)")),
    ("written", re.compile(r"flights: (\S+) written")),
    ("done", re.compile(r"run key '\S+ ([\d-]+)T\S+' was done under epoch")),
    ("day", re.compile(r"^site: (\S+ ended: \w+)")),
)


class Site:
    """One Airflow home, and the process that fires its logical dates."""

    def __init__(self, name: str, folder: Path, days: int) -> None:
        self.name, self.days, self.home = name, days, folder / name
        self.home.mkdir(parents=True)
        self.environ = os.environ | {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.home}/airflow.db",
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "AIRFLOW_CONN_LEASE": f"sqlite:///{folder}/lease.db",
            "FLIGHTS_LAKE": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "SPARK_LEASE_HOLDER": name,
            "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", start_options()),
        }
        self.process: subprocess.Popen[str] | None = None

    def migrate(self) -> None:
        command = [str(AIRFLOW / "airflow"), "db", "migrate"]
        try:
            done = subprocess.run(
                command, env=self.environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"{self.name}: airflow db migrate did not end within {PATIENCE:.0f} s")
        if done.returncode:
            sys.exit(f"{self.name}: airflow db migrate failed: {done.stderr[-500:]}")

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [str(AIRFLOW / "python"), "-m", "jobs.airflow.site", str(self.days)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env=self.environ,
        )
        return self.process


class Drill:
    """Two sites, what they say, and the one whose task is killed."""

    def __init__(self, folder: Path, days: int) -> None:
        self.days, self.table, self.start = days, folder / "flights_daily", time.monotonic()
        self.sites = [Site(name, folder, days) for name in ("site-a", "site-b")]
        self.news: queue.SimpleQueue[tuple[Site, str, str]] = queue.SimpleQueue()
        self.victim: Site | None = None
        self.struck_at = self.taken_at = 0.0
        self.wrong: list[str] = []
        self.orphans: list[Process] = []

    def run(self) -> bool:
        self._prepare()
        try:
            for site in self.sites:
                self._fire(site)
            self._until_all_ended()
        finally:
            for site in self.sites:
                if site.process:
                    kill(tree(site.process.pid))
            kill([each for each in self.orphans if look(each.pid) == each])
        return self._report()

    def _prepare(self) -> None:
        first, second = self.sites
        first.migrate()
        shutil.copy(first.home / "airflow.db", second.home / "airflow.db")

    def _fire(self, site: Site) -> None:
        process = site.start()
        threading.Thread(target=self._listen, args=(site, process), daemon=True).start()

    def _listen(self, site: Site, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with (site.home / "site.log").open("a") as log:
            for line in process.stdout:
                log.write(line)
                for word, pattern in _NEWS:
                    if found := pattern.search(line):
                        self.news.put((site, word, found[1]))
        self.news.put((site, "ended", str(process.wait())))

    def _until_all_ended(self) -> None:
        running, end = len(self.sites), time.monotonic() + PATIENCE * (self.days + 2)
        while running:
            try:
                site, word, detail = self.news.get(timeout=max(min(PATIENCE, end - time.monotonic()), 0))
            except queue.Empty:
                sys.exit(f"nothing happened any more, or too much; see {self.table.parent}/site-*/site.log")
            self._say(site, _SAYS[word].format(detail))
            if word == "asked" and self.victim is None and detail != "2013-01-01":
                self._strike(site)
            elif word == "master" and self.victim and not self.taken_at:
                self.taken_at = time.monotonic()
            elif word == "ended" and site is self.victim and detail == str(-signal.SIGKILL):
                self._fire(site)  # as a scheduler that retries
            elif word == "ended":
                running -= 1
                self.wrong += [f"{site.name} ended with {detail}"] if detail != "0" else []

    def _strike(self, site: Site) -> None:
        assert site.process is not None
        self.orphans = [each for each in tree(site.process.pid) if each.pid != site.process.pid]
        self.victim, self.struck_at = site, time.monotonic()
        site.process.kill()
        self._say(site, f"*** SIGKILL to its task; {len(self.orphans)} processes of its job are left ***")
        while left := [each for each in self.orphans if (now := look(each.pid)) and now.alive and now == each]:
            if time.monotonic() > self.struck_at + ORPHANED:
                self.wrong.append(f"{len(left)} processes outlived the task that was killed: {left}")
                return
            time.sleep(0.01)
        self._say(site, f"they were gone {time.monotonic() - self.struck_at:.2f} s after their task")

    def _say(self, site: Site, words: str) -> None:
        print(f"{time.monotonic() - self.start:6.1f} s  {site.name}  {words}", flush=True)

    def _report(self) -> bool:
        history = commits(self.table) if self.table.exists() else []
        wrong = [*self.wrong, *problems(self.table, history, self.days), *_written_twice(history)]
        wrong += [] if self.victim else ["no task was killed"]
        print(f"\n{table_of_days(history)}\n")
        if self.taken_at:
            print(f"take-over   {self.taken_at - self.struck_at:.1f} s after the kill, a JVM's start included")
        for problem in wrong:
            print(f"WRONG       {problem}")
        if not wrong:
            print("check       two Airflows fired every day, and every day was written once")
        return not wrong


_SAYS = {
    "master": "MASTER, epoch {}",
    "standby": "standby to {}: deferred, without a JVM",
    "asked": "works on {}",
    "written": "wrote {}",
    "done": "finds {} done already",
    "day": "{}",
    "ended": "has no more days, exit code {}",
}


def _written_twice(history: Sequence[Commit]) -> list[str]:
    days = [commit.day for commit in history if commit.day]
    return [f"{day} was written {days.count(day)} times" for day in sorted(set(days)) if days.count(day) > 1]


def table_of_days(history: Sequence[Commit]) -> str:
    """Which site produced which day."""
    rows = [(each.day, each.holder.rsplit(":", 3)[0], str(each.epoch)) for each in history if each.day]
    return "\n".join(f"{day:<12}{site:<12}{epoch}" for day, site, epoch in [("DAY", "SITE", "EPOCH"), *rows])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.airflow.drill", description="Two Airflows, one lease.")
    parser.add_argument("--days", type=int, default=4, metavar="N", help="logical dates, from 2013-01-01 on [4]")
    parser.add_argument("--folder", default="out/airflow-drill", help="where homes, table and lease go; emptied first")
    arguments = parser.parse_args()
    if not 2 <= arguments.days <= 365:
        parser.error("2 <= --days <= 365")
    if not has_java():
        sys.exit(what_java_lacks())
    if not list(FOLDER.glob("*.jar")):
        sys.exit("Delta's jars are missing: make jars")
    if not (AIRFLOW / "airflow").exists():
        sys.exit("Airflow's environment is missing: make airflow")
    folder = Path(arguments.folder).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return 0 if Drill(folder, arguments.days).run() else 1


if __name__ == "__main__":
    sys.exit(main())
