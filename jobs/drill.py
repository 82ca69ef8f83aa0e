"""The failover drill: the same job is submitted twice, as two schedulers would; one writes, the other takes over.

    python -m jobs.drill                the master's driver gets SIGKILL: its keeper hands over
    python -m jobs.drill --everything   so does all of it, keeper included: the lease runs out
    python -m jobs.drill --warm         the standby has its Spark ready: the first commit comes sooner
    python -m jobs.drill --pause        all of it is frozen past its lease and thawed: it must not write again
    python -m jobs.drill --zombie       likewise without a keeper, so that it is thawed alive: the table refuses it

Everything is real: two spark-submits, one lease in SQLite, or where SPARK_LEASE_URL says (and SPARK_LEASE_LOCKER, see
`make run URL=… LOCKER=…`), one Delta table. Who wrote what is read back from the
table's own history. Exit code 0 only if every day was written, under one epoch each, and no old epoch wrote after a
newer one.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from jobs.history import Commit, commits, problems, table_of_epochs
from jobs.jars import FOLDER, spark_options, start_options
from spark_lease.submit.command_line import has_java, what_java_lacks
from spark_lease.system.processes import Process, kill, look, processes, tree

ROOT = Path(__file__).parents[1]
PATIENCE = 120.0
"""Seconds without any event after which the drill gives up."""

_NEWS = (
    ("master", re.compile(r"acquired, (epoch \d+, .+)")),
    ("standby", re.compile(r"standby, (.+) is master")),
    ("warm", re.compile(r"standby \(warm\): (.+)")),
    ("written", re.compile(r"flights: (\S+) written")),
    ("resuming", re.compile(r"flights: resuming at (\S+)")),
    ("lost", re.compile(r"lease lost \((.*?)\)")),
    ("released", re.compile(r"released, epoch (\d+)")),
)

_REFUSED = re.compile(r"Fenced: |MetadataChangedException|lease lost")


class Site:
    """One scheduler's submission: its process, and its role as far as it has said."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> None:
        self.name, self.role, self.days, self.log = name, "starting", 0, log
        self.process = subprocess.Popen(
            [*command[:3], "--holder", name, *command[3:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=ROOT,
            env=environ,
        )

    def tree(self) -> list[Process]:
        return tree(self.process.pid)

    def driver(self) -> list[Process]:
        """The Python that spark-submit started: the first child of its JVM."""
        jvms = {each.pid for each in self.tree() if each.name == "java"}
        children = [each for each in self.tree() if each.parent in jvms and each.name.startswith("python")]
        return sorted(children, key=lambda each: each.started)[:1]


class Drill:
    """Two sites, what they say, and what is done to the one that is master."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments, self.folder = arguments, Path(arguments.folder).absolute()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.table = self.folder / "flights_daily"
        self.start = time.monotonic()
        self.news: queue.SimpleQueue[tuple[Site, str, str]] = queue.SimpleQueue()
        self.sites: list[Site] = []
        self.struck_at = self.thawed_at = self.taken_at = self.resumed_at = 0.0
        self.victim: Site | None = None
        self.frozen: list[Process] = []
        self.protection: dict[int, str] = {}

    def run(self) -> bool:
        try:
            for name in ("site-a", "site-b"):
                self.sites.append(Site(name, self._command(), self.folder / f"{name}.log", self._environ()))
            for site in self.sites:
                threading.Thread(target=self._listen, args=(site,), daemon=True).start()
            self._until_all_ended()
        finally:
            for site in self.sites:
                kill(site.tree())
        self._show_line("", end="\r")
        return self._report()

    def _command(self) -> list[str]:
        submit = [str(Path(sys.executable).with_name("spark-lease")), "submit", "--lease=flights"]
        lease = ["--lease-duration", str(self.arguments.lease_duration), "--poll-period", "0.1"]
        lease += ["--keeper", "thread"] if self.arguments.zombie else []
        lease += ["--standby", "warm"] if self.arguments.warm else []
        job = ["jobs/flights_daily.py", "--table", str(self.table), "--input", str(self.folder / "input")]
        spark = ["--master", "local[2]", *spark_options()]
        return [*submit, *lease, "--", *spark, *job, "--days", str(self.arguments.days)]

    def _environ(self) -> dict[str, str]:
        # Not on the command line, where all users could read a password.
        url = os.environ.get("SPARK_LEASE_URL") or f"sqlite:///{self.folder}/lease.db"
        faster = os.environ.get("SPARK_SUBMIT_OPTS", start_options())
        told = {"SPARK_LEASE_URL": url, "SPARK_LEASE_CREATE_TABLE": "true", "SPARK_SUBMIT_OPTS": faster}
        return os.environ | told

    def _listen(self, site: Site) -> None:
        assert site.process.stdout is not None
        with site.log.open("w") as log:
            for line in site.process.stdout:
                log.write(line)
                for word, pattern in _NEWS:
                    if found := pattern.search(line):
                        self.news.put((site, word, found[1]))
        self.news.put((site, "ended", str(site.process.wait())))

    def _until_all_ended(self) -> None:
        running = len(self.sites)
        while running:
            try:
                site, word, detail = self.news.get(timeout=PATIENCE)
            except queue.Empty:
                raise SystemExit(f"nothing happened for {PATIENCE:.0f} s; see {self.folder}/site-*.log") from None
            running -= word == "ended"
            self._take_note(site, word, detail)
            self._act(site, word)

    def _take_note(self, site: Site, word: str, detail: str) -> None:
        says = {
            "master": f"MASTER, {detail}",
            "standby": f"standby, waiting for {detail}, "
            + ("and warms up" if self.arguments.warm else "without a SparkSession"),
            "warm": f"warm standby: {detail}",
            "resuming": f"resumes at {detail}",
            "lost": f"lost the lease ({detail})",
            "released": f"released epoch {detail}",
            "ended": "ended, " + _words_for(int(detail) if word == "ended" else 0),
        }
        if word == "master" and (told := re.match(r"epoch (\d+), as .+, protection (\w+)", detail)):
            self.protection[int(told[1])] = told[2]
        if word == "written":
            site.days += 1
            site.role = f"master, {detail} written"
            if not sys.stdout.isatty():
                self._say(site, f"wrote {detail}")
        else:
            site.role = says[word]
            self._say(site, says[word])
        self._show_line(" | ".join(f"{each.name}: {each.role}" for each in self.sites))

    def _act(self, site: Site, word: str) -> None:
        others = [each.role for each in self.sites if each is not site]
        are_ready = all(each.startswith("warm" if self.arguments.warm else "standby") for each in others)
        if self.victim is None and word == "written" and site.days >= self.arguments.after and are_ready:
            self._strike(site)
        elif self.victim and site is not self.victim:
            if word == "master":
                self.taken_at = time.monotonic()
            if word == "written" and site.days == 1:
                self.resumed_at = time.monotonic()
            if word == "written" and site.days == 2 and self.frozen:
                self._thaw()

    def _strike(self, site: Site) -> None:
        self.victim, self.struck_at = site, time.monotonic()
        if not self.arguments.pause:
            kill(site.tree() if self.arguments.everything else site.driver())
            what = "its whole process tree, keeper included" if self.arguments.everything else "its driver"
            self._say(site, f"*** SIGKILL to {what} ***")
            return
        while fresh := [each for each in site.tree() if each.pid not in {known.pid for known in self.frozen}]:
            self.frozen += fresh
            _send(fresh, signal.SIGSTOP)
        keeper = "without a keeper" if self.arguments.zombie else "keeper included"
        self._say(site, f"*** SIGSTOP to its whole process tree ({len(self.frozen)} processes, {keeper}) ***")

    def _thaw(self) -> None:
        assert self.victim is not None
        self.thawed_at = time.monotonic()
        left = [each for each in self.frozen if look(each.pid)]
        _send(left, signal.SIGCONT)
        self._say(self.victim, f"*** SIGCONT to the {len(left)} that are left of {len(self.frozen)} ***")
        self.frozen = []

    def _say(self, site: Site, words: str) -> None:
        print(f"\r\033[K{self._now()}" if sys.stdout.isatty() else self._now(), f" {site.name}  {words}", flush=True)

    def _now(self) -> str:
        return f"{time.monotonic() - self.start:6.1f} s"

    def _show_line(self, words: str, end: str = "") -> None:
        if sys.stdout.isatty():
            print("\r\033[K" + words[: shutil.get_terminal_size().columns - 1], end=end, flush=True)

    def _report(self) -> bool:
        wrong = []
        history: list[Commit] = commits(self.table) if self.table.exists() else []
        if self.victim is None:
            wrong.append("no site was struck: no site wrote enough days while the other stood by")
        else:
            wrong += self._judge_ends(self.victim)
        wrong += problems(self.table, history, self.arguments.days)
        print(f"\n{table_of_epochs(history, self.protection)}\n")
        if self.victim:
            was = "frozen" if self.arguments.pause else "killed"
            print(f"{was:11} {self.struck_at - self.start:.2f} s after the start: {self.victim.name}")
        if self.taken_at:
            since = f"s after the {'freeze' if self.arguments.pause else 'kill'}"
            took = self.taken_at - self.struck_at
            print(f"take-over   {took:.2f} {since}, of a lease of {self.arguments.lease_duration:g} s")
        if self.resumed_at:
            kind = "warm" if self.arguments.warm else "cold"
            print(f"first day   {self.resumed_at - self.struck_at:.2f} {since}, by a {kind} standby")
        if self.arguments.zombie and self.victim:
            print(_fence(history, self.victim))
        for problem in wrong:
            print(f"WRONG       {problem}")
        if not wrong:
            print("check       every day is there, each under one epoch, and no epoch wrote after a newer one")
        return not wrong

    def _judge_ends(self, victim: Site) -> list[str]:
        wrong = []
        other = next(site for site in self.sites if site is not victim)
        if other.process.returncode != 0:
            wrong.append(f"{other.name} did not finish, {_words_for(other.process.returncode)}: see {other.log}")
        if self.arguments.pause and not self.thawed_at:
            wrong.append(f"{other.name} wrote too little for {victim.name} to be thawed")
        if self.arguments.pause and victim.process.returncode not in (
            75,
            -signal.SIGKILL,
            -signal.SIGTERM,
            128 + signal.SIGALRM,
        ):
            wrong.append(f"{victim.name} should have ended by 75 or a signal: {_words_for(victim.process.returncode)}")
        return wrong


def _fence(history: Sequence[Commit], zombie: Site) -> str:
    """How the table was claimed, and what became of what the former master still wanted to write."""
    newest = history[-1].epoch if history else 0
    claim = next((each.version for each in history if each.epoch == newest and not each.day), None)
    said = [line for line in zombie.log.read_text().splitlines() if _REFUSED.search(line)]
    became = f"{zombie.name} wrote nothing after it: {_words_for(zombie.process.returncode)}"
    return f"fence       version {claim} claims the table under epoch {newest}; {became}\n" + "".join(
        f"            {line[:160]}\n" for line in said[-2:]
    ).rstrip("\n")


def _send(victims: Sequence[Process], number: int) -> None:
    for victim in victims:
        with suppress(ProcessLookupError):
            os.kill(victim.pid, number)


def _words_for(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m jobs.drill", description="The failover drill: docs/howto/drill.md")
    parser.add_argument("--days", type=int, default=75, metavar="N", help="days of 2013 to write, 365 at most [75]")
    words = "strike when the master wrote so many [12, or half of the days]"
    parser.add_argument("--after", type=int, metavar="N", help=words)
    parser.add_argument("--pause", action="store_true", help="freeze the master past its lease instead of killing it")
    parser.add_argument("--warm", action="store_true", help="the standby's Spark is ready before it is master")
    parser.add_argument("--zombie", action="store_true", help="--pause without a keeper: it is the fence that holds")
    parser.add_argument("--everything", action="store_true", help="kill all of the master, keeper included")
    parser.add_argument("--lease-duration", type=float, default=10.0, metavar="S", help="seconds [10]")
    parser.add_argument("--folder", default="out/drill", help="where table, lease and logs go; emptied first")
    arguments = parser.parse_args()
    arguments.pause |= arguments.zombie
    if arguments.after is None:
        arguments.after = min(12, arguments.days // 2)
    if not 0 < arguments.after < arguments.days <= 365:
        parser.error("0 < --after < --days <= 365")
    if not has_java():
        sys.exit(what_java_lacks())
    if not list(FOLDER.glob("*.jar")):
        sys.exit("Delta's jars are missing: make jars")
    if not processes():
        sys.exit("this machine does not show its processes")
    try:
        return 0 if Drill(arguments).run() else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
