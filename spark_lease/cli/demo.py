"""`spark-lease demo`: two submissions of one job on this machine. One master is killed, the next is frozen."""

import argparse
import json
import os
import queue
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..clock import BootClock
from ..config.settings import ENV
from ..demo.picture import ENDED, FROZEN, KILLED, MASTER, STANDBY, WROTE, Event, picture
from ..errors import ConfigError, SparkLeaseError
from ..logs import say
from ..submit.command_line import find_spark_submit
from ..system.processes import Process, is_alive, kill, need_linux, shell_code, tree
from .table import print_table

LEASE = 6.0
"""Seconds: long enough for a busy machine, and short enough to wait for."""
_STEPS, _LAST_STEPS = 6, 3
"""Steps that a master writes before the demo strikes it, and before the demo lets a frozen one go on."""
_PATIENCE, _LIMIT = 120.0, 600.0
"""Seconds without any news, and for the whole demo."""
_JOB = Path(__file__).parents[1] / "demo" / "job.py"
_NEWS = {
    MASTER: re.compile(r"acquired, epoch (\d+)"),
    STANDBY: re.compile(r"standby, (.+) is master"),
    WROTE: re.compile(r"demo: wrote step (\d+)"),
}


def demo(arguments: argparse.Namespace) -> int:
    """Run the demo; exit code 1 if it did not end as it must."""
    need_linux()
    find_spark_submit()  # it reports what is missing
    folder = Path(arguments.folder or tempfile.mkdtemp(prefix="spark-lease-demo-")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError("folder", f"{folder} is not empty: name a new one")
    stream, is_kept = sys.stderr if arguments.json else sys.stdout, bool(arguments.folder)
    try:
        found = _Demo(folder, say=lambda message: print(message, file=stream, flush=True)).run()
        is_kept |= bool(found["problems"])
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            _show(found)
        return int(bool(found["problems"]))
    except _Stuck as stuck:
        is_kept = True
        say(str(stuck))
        return 1
    finally:
        if is_kept:
            print(f"What the two have said is in {folder}", file=stream)
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Stuck(SparkLeaseError):
    """The demo does not go on as it must."""


class _Site:
    """One submission: its processes, and its last reported state."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.state, self.wrote = name, "", 0
        self.log = folder / f"{name}.log"
        lease = ["--lease", "demo", "--url", f"sqlite:///{folder}/lease.db", "--lease-duration", f"{LEASE:g}"]
        spark = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=1"]
        job = [str(_JOB), f"{folder}/written.db", f"{folder}/enough"]
        command = [sys.executable, "-m", "spark_lease", "submit", *lease, "--holder", name, "--poll-period", "0.1"]
        self.process = subprocess.Popen(
            [*command, "--", *spark, *job],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=folder,  # a folder without settings of the user's
            env={key: value for key, value in os.environ.items() if not key.startswith(ENV)} | _our_path(),
        )

    def tree(self) -> list[Process]:
        return tree(self.process.pid)

    def driver(self) -> list[Process]:
        """The Python that spark-submit has started: the first Python child of its JVM."""
        everything = self.tree()
        jvms = {each.pid for each in everything if each.name == "java"}
        children = [each for each in everything if each.parent in jvms and each.name.startswith("python")]
        return sorted(children, key=lambda each: each.started)[:1]


class _Demo:
    """Follows what the two sites print, kills the first master and freezes the next one."""

    def __init__(self, folder: Path, *, say: Callable[[str], None]) -> None:
        self._folder, self._say, self._clock = folder, say, BootClock()
        self._begun = self._clock.now()
        self._news: queue.SimpleQueue[tuple[_Site, str, str]] = queue.SimpleQueue()
        self._sites: dict[str, _Site] = {}
        self._events: list[Event] = []
        self._struck, self._took = dict[str, float](), dict[str, float]()
        self._frozen: list[Process] = []
        self._victims = set[str]()
        with closing(sqlite3.connect(folder / "written.db")) as connection, connection:
            connection.execute("CREATE TABLE written (step INT, total INT, epoch INT, holder TEXT, at REAL)")

    def run(self) -> dict[str, Any]:
        self._say(f"Two submissions of one job, one lease of {LEASE:g} s. Takes about a minute and a half.\n")
        try:
            for name in ("paris", "lyon"):
                self._start(name)
            for site, what, detail in self._all_news():
                self._note(site, what, detail)
                if what == WROTE:
                    site.wrote += 1
                    self._act(site)
        finally:
            for site in self._sites.values():
                kill(site.tree())
        return self._found()

    def _start(self, name: str) -> None:
        site = self._sites[name] = _Site(name, self._folder)
        threading.Thread(target=self._listen, args=(site,), daemon=True).start()

    def _listen(self, site: _Site) -> None:
        assert site.process.stdout
        with site.log.open("a") as log:
            for line in site.process.stdout:
                log.write(line)
                for what, pattern in _NEWS.items():
                    if found := pattern.search(line):
                        self._news.put((site, what, found[1]))
        code = site.process.wait()
        self._news.put((site, ENDED, str(shell_code(code))))

    def _all_news(self) -> Iterator[tuple[_Site, str, str]]:
        """Yield all news until the last master has ended."""
        while True:
            try:
                yield (news := self._news.get(timeout=_PATIENCE))
            except queue.Empty:
                raise _Stuck(f"nothing has happened for {_PATIENCE:g} s") from None
            site, what, _ = news
            if what == ENDED and "freeze" in self._took and site is self._master():
                return

    def _note(self, site: _Site, what: str, detail: str) -> None:
        messages = {
            MASTER: f"is master, epoch {detail}",
            STANDBY: f"is standby: {detail.partition(':')[0]} is master",
            WROTE: f"wrote step {detail}",
            ENDED: f"has ended, exit code {detail}",
        }
        site.state = what if what != WROTE else MASTER
        self._events.append(Event(self._now(), site.name, what))
        if what != WROTE or site.wrote % _STEPS == 0:
            self._tell(site, messages[what])
        if what == MASTER and self._struck:
            deed = list(self._struck)[-1]
            self._took.setdefault(deed, self._now() - self._struck[deed])
        if self._now() > _LIMIT:
            raise _Stuck(f"after {_LIMIT:g} s it is not over")
        is_last = (self._folder / "enough").exists()
        if what == ENDED and not is_last and site.name not in self._victims:
            raise _Stuck(f"{site.name} has ended by itself, exit code {detail}")
        if what == ENDED and KILLED in [each.what for each in self._events] and len(self._struck) == 1:
            self._tell(site, "is started again, as its scheduler would")
            self._start(site.name)

    def _act(self, master: _Site) -> None:
        other = next((each for each in self._sites.values() if each is not master), master)
        if not self._struck and master.wrote >= _STEPS and other.state == STANDBY:
            self._strike(master, "kill", KILLED, "*** SIGKILL to its driver ***")
            kill(master.driver())
        elif "kill" in self._took and len(self._struck) == 1 and master.wrote >= _STEPS and other.state == STANDBY:
            known = {each.pid for each in self._frozen}
            while fresh := [each for each in master.tree() if each.pid not in known]:
                self._frozen += fresh
                known |= {each.pid for each in fresh}
                kill(fresh, signal.SIGSTOP)
            self._strike(master, "freeze", FROZEN, f"*** SIGSTOP to all of its {len(self._frozen)} processes ***")
        elif self._frozen and "freeze" in self._took and master.wrote == _LAST_STEPS:
            left = [each for each in self._frozen if is_alive(each.identity)]
            kill(left, signal.SIGCONT)
            self._tell(other, f"*** thawed: of its {len(self._frozen)} processes {len(left) or 'none'} lived on ***")
        elif self._frozen and master.wrote == 2 * _LAST_STEPS:
            (self._folder / "enough").touch()

    def _strike(self, site: _Site, deed: str, what: str, message: str) -> None:
        self._struck[deed] = self._now()
        self._victims = {site.name}
        self._events.append(Event(self._now(), site.name, what))
        self._tell(site, message)

    def _master(self) -> _Site:
        return self._sites[[each.who for each in self._events if each.what == MASTER][-1]]

    def _now(self) -> float:
        return self._clock.now() - self._begun

    def _tell(self, site: _Site, message: str) -> None:
        self._say(f"{self._now():6.1f} s  {site.name:<6} {message}")

    def _found(self) -> dict[str, Any]:
        with closing(sqlite3.connect(self._folder / "written.db")) as connection:
            rows = connection.execute("SELECT step, epoch, holder FROM written ORDER BY rowid").fetchall()
        return {
            "steps": len(rows),
            "masters": _masters(rows),
            "took_over": {deed: round(took, 2) for deed, took in self._took.items()},
            "problems": _problems(rows),
            "events": [[round(each.at, 2), each.who, each.what] for each in self._events],
        }


def _our_path() -> dict[str, str]:
    """A PYTHONPATH with this package, because it may not be installed."""
    before = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *before])}


def _masters(rows: Sequence[tuple[int, int, str]]) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for step, epoch, holder in rows:
        mine = found.setdefault(epoch, {"epoch": epoch, "holder": holder.partition(":")[0], "first": step})
        mine["last"] = step
    return list(found.values())


def _problems(rows: Sequence[tuple[int, int, str]]) -> list[str]:
    """What is wrong with the table; nothing if each step was written once, and by one master after the other."""
    times = Counter(step for step, _, _ in rows)
    found = [f"step {step} was written {count} times" for step, count in times.items() if count > 1]
    found += [f"step {step} is missing" for step in range(1, max(times, default=0)) if step not in times]
    for (_, earlier, _), (step, later, _) in pairwise(rows):
        if later < earlier:
            found.append(f"step {step} was written under epoch {later}, after one of epoch {earlier}")
    return found if rows else ["nothing was written"]


def _show(found: dict[str, Any]) -> None:
    events = [Event(*each) for each in found["events"]]
    width = min(shutil.get_terminal_size().columns, 100)
    print("", *picture(events, width=width, encoding=sys.stdout.encoding or "ascii"), "", sep="\n")
    steps = [[str(each["epoch"]), each["holder"], f"{each['first']} to {each['last']}"] for each in found["masters"]]
    print_table([["EPOCH", "MASTER", "STEPS"], *steps])
    print()
    for deed, took in found["took_over"].items():
        print(f"{took:5.2f} s  from the {deed} to the next master")
    for each in found["problems"]:
        print(f"WRONG: {each}")
    if not found["problems"]:
        print(f"All {found['steps']} steps are there, each once, and no master wrote after the next one had begun.")
