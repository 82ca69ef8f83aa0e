"""The checker finds each broken promise in a history made by hand, and nothing in a good one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.contender import Contender
from spark_lease.election.locker import RecordRules
from spark_lease.election.ports import Denied
from spark_lease.testing import MemoryStore, VirtualClock
from tests.simulation.checker import judge, line
from tests.simulation.history import Did, Event, History, RecordedLocker, load
from tests.support.faults import lost_answer

A, B, C = "a.1", "b.1", "c.1"


def granted(at: float, who: str, epoch: int, *, duration: float = 10.0) -> list[Event]:
    return [
        Event(at, who, Did.GRANTED, epoch=epoch, since=at - 0.1, until=at - 0.1 + duration),
        Event(at, who, Did.BEGAN, epoch=epoch),
    ]


def may_write(who: str, since: float, at: float, epoch: int) -> Event:
    return Event(at, who, Did.MAY_WRITE, epoch=epoch, since=since)


GOOD = [
    *granted(1, A, 1),
    Event(1.5, B, Did.ASKED, since=1.4),
    may_write(A, 1, 6, 1),
    Event(4, A, Did.RENEWED, epoch=1, since=3.9, until=13.9),
    Event(6, A, Did.ATTEMPTED, epoch=1),
    Event(6, A, Did.ACCEPTED, epoch=1, detail="table"),
    Event(7, A, Did.ENDED, epoch=1),
    Event(7.2, A, Did.RELEASED, epoch=1, since=7.1),
    *granted(8, B, 2),
    may_write(B, 8, 12, 2),
    Event(12, B, Did.ACCEPTED, epoch=2, detail="table"),
    Event(13, A, Did.REFUSED, epoch=1, detail="table"),
    Event(13, B, Did.ENDED, epoch=2),
]

GONE = [each for each in GOOD if each.who == A and each.did in (Did.ENDED, Did.RELEASED)]

BAD = {
    "P1 two masters": ("P1 P3", [*GOOD, *granted(9, C, 3), may_write(C, 9, 10, 3), Event(10, C, Did.ENDED)]),
    "P1 a check that succeeds after the loss": (
        "P1",
        [*GOOD, Event(12.5, B, Did.LOST, epoch=2), may_write(B, 12.6, 12.7, 2)],
    ),
    "P1 taken from a broker": (
        "P1",
        [Event(0.5, "broker", Did.REWRITTEN, until=20.0), *granted(5, A, 1), may_write(A, 5, 6, 1)],
    ),
    "P2 the same epoch twice": ("P2", [*GOOD, *granted(30, C, 2), may_write(C, 30, 31, 2)]),
    "P2 a smaller epoch": ("P2", [*GOOD, *granted(30, C, 1), may_write(C, 30, 31, 1)]),
    "P2 an old epoch renewed": ("P2", [*GOOD, Event(9, A, Did.RENEWED, epoch=1, since=8.5, until=18.5)]),
    "P3 work that goes on": (
        "P3",
        [*(each for each in GOOD if each not in GONE), Event(9, A, Did.ENDED, epoch=1)],
    ),
    "P3 a frozen process that works on after the thaw": (
        "P3",
        [
            *(each for each in GOOD if each not in GONE),
            Event(9, A, Did.FROZEN, since=6),
            Event(11, A, Did.ENDED, epoch=1),
        ],
    ),
    "P3 work that never ends": ("P3", [each for each in GOOD if each not in GONE]),
    "P3 work that goes on after a no, the store having forgotten": (
        "P3",
        [
            *granted(1, A, 1),
            Event(2, "store", Did.DAMAGED, detail="row deleted"),
            *granted(3, B, 2),
            Event(3.5, A, Did.LOST, epoch=1, detail="taken: held by b"),
            Event(5, A, Did.ENDED, epoch=1),
            Event(9, B, Did.ENDED, epoch=2),
        ],
    ),
    "P3 a renewal after the loss": (
        "P3",
        [*GOOD, Event(12.5, B, Did.LOST, epoch=2, detail="expired"), Event(12.9, B, Did.RENEWED, epoch=2, since=12.8)],
    ),
    "P1 a store that forgot, and confirmed it again long before the next": (
        "P1 P3",
        [
            *granted(1, A, 1),
            Event(2, "store", Did.DAMAGED, detail="row deleted"),
            *(Event(at, A, Did.RENEWED, epoch=1, since=at - 0.1, until=at + 9.9) for at in (3.0, 12.0, 20.0)),
            *granted(21, B, 2),
            may_write(A, 1, 28, 1),
            may_write(B, 21, 22, 2),
            Event(28, A, Did.ENDED, epoch=1),
            Event(28, B, Did.ENDED, epoch=2),
        ],
    ),
    "P5 a release without an answer": (
        "P5",
        [*granted(1, A, 1), Event(5, A, Did.IN_DOUBT, epoch=1, since=4.9, detail="release"), Event(9, A, Did.ENDED)],
    ),
    "P6 a standby that falls asleep": (
        "P6",
        [*(each for each in GOOD if each.who == A), Event(1.5, B, Did.ASKED, since=1.4), Event(60, C, Did.ASKED)],
    ),
    "P10 a standby without an answer": (
        "P10",
        [*GOOD, Event(14, C, Did.IN_DOUBT, since=13.9), Event(14.1, C, Did.GAVE_UP, detail="standby: held by x")],
    ),
    "P1 renewed under a broker": (
        "P1",
        [
            *granted(1, A, 1),
            Event(5, "broker", Did.REWRITTEN, until=30.0),
            Event(7, A, Did.RENEWED, epoch=1, since=6.9, until=16.9),
            Event(8, A, Did.ENDED, epoch=1),
        ],
    ),
    "P4 an old epoch accepted": ("P4", [*GOOD, Event(12.1, A, Did.ACCEPTED, epoch=1, detail="table")]),
    "P5 released while it worked": ("P5", [*GOOD, Event(7.15, A, Did.ENDED, epoch=1)]),
    "P6 nobody takes a lease that was released": (
        "P6",
        [each for each in GOOD if each.who == A]
        + [Event(at, B, Did.ASKED, since=at - 0.1) for at in (1.5, 3.0, 7.9, 9.0, 10.0)],
    ),
    "P6 nobody takes a lease that ran out": (
        "P6",
        [*granted(1, A, 1), may_write(A, 1, 2, 1), Event(2, A, Did.GAVE_UP)]
        + [Event(float(at), B, Did.ASKED, since=at - 0.1) for at in range(2, 16)],
    ),
    "P6 its own lost take is not found again": (
        "P6",
        [each for each in GOOD if each.who == A]
        + [Event(2.0, B, Did.ASKED, since=1.9), Event(7.5, B, Did.IN_DOUBT, since=7.4)]
        + [Event(float(at), B, Did.ASKED, since=at - 0.1) for at in range(8, 14)],
    ),
    "P10 lost to nobody": ("P10", [*granted(1, A, 1), Event(3, A, Did.LOST, epoch=1, detail="taken: held by nobody")]),
}


def test_a_good_history_breaks_nothing() -> None:
    assert judge(GOOD) == []


@pytest.mark.parametrize("name", BAD)
def test_each_broken_promise_is_found_and_shown(name: str) -> None:
    promises, events = BAD[name]
    found = judge(events)
    assert {each.promise for each in found} == set(promises.split()), "\n".join(map(str, found))
    assert all(2 <= len(each.evidence) <= 5 for each in found)
    lines = str(found[0]).splitlines()
    assert lines[0].startswith(f"{found[0].promise}: ")
    assert [float(each.split()[0]) for each in lines[1:]] == [round(each.at, 3) for each in found[0].evidence]


EXCUSED = {
    "a store that forgot": [
        *GOOD,
        Event(8.5, "store", Did.DAMAGED, detail="row deleted"),
        *granted(9, C, 3),
        may_write(C, 9, 14, 3),
        Event(14, C, Did.ENDED),
    ],
    "a frozen process that ends when it is thawed": [
        *(each for each in GOOD if each.did not in (Did.ENDED, Did.RELEASED)),
        Event(9, A, Did.FROZEN, since=6),
        Event(9.2, A, Did.ENDED, epoch=1),
    ],
    "a loss to one who was granted": [
        *GOOD,
        Event(12.5, B, Did.LOST, epoch=2, detail="taken: held by c"),
        Event(12.4, C, Did.IN_DOUBT, since=12.3),
    ],
    "a lease that stands free while nobody waits": [each for each in GOOD if each.who == A]
    + [Event(30, B, Did.GAVE_UP)],
    "a request of the standby that hangs to the end": [each for each in GOOD if each.who == A]
    + [Event(2, B, Did.ASKED, since=1.9), Event(7.5, B, Did.ASKS), Event(30, C, Did.GAVE_UP)],
}


@pytest.mark.parametrize("name", EXCUSED)
def test_what_nobody_can_promise_is_excused(name: str) -> None:
    assert [str(each) for each in judge(EXCUSED[name])] == []


def test_two_leases_are_judged_apart() -> None:
    other = [Event(each.at, each.who + "x", each.did, "other", each.epoch, each.since, each.until) for each in GOOD]
    assert judge([*GOOD, *other]) == []


def test_an_event_reads_as_a_sentence() -> None:
    assert line(GOOD[0]).split() == ["1.000", "a.1", "granted,", "epoch", "1", "(asked", "at", "0.900)"]
    assert line(may_write(A, 1, 6, 1)).split() == ["6.000", "a.1", "may", "write,", "epoch", "1", "(from", "1.000)"]


def test_what_a_locker_answers_is_written_down(tmp_path: Path) -> None:
    clock = VirtualClock()
    store = MemoryStore(clock)
    history = History(clock.now, lease="n", file=tmp_path / "a.jsonl")
    config = configure(name="n")
    locker = RecordRules(store, config, clock, holder="me")
    lease = Contender(RecordedLocker(locker, history, A, duration=30.0), config, holder="me", clock=clock)
    lease.acquire()
    assert history.check(lease, A) == lease.epoch
    store.plan(lost_answer)
    with pytest.raises(Exception, match="the answer was lost"):
        lease.renew()
    lease.renew()
    standby = RecordedLocker(RecordRules(store.peer(), config, clock, holder="b"), history, B, duration=30.0)
    assert isinstance(standby.try_acquire(), Denied)
    lease.release()
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"at": 12')  # what a kill cuts off
    events = load([tmp_path / "a.jsonl"])
    answers = [each.did for each in events if each.did != Did.ASKS]
    assert answers == ["granted", "may write", "in doubt", "renewed", "asked", "released"]
    assert {each.epoch for each in events if each.who == A and each.did != Did.ASKS} == {lease.epoch}
    assert judge(events) == []


CONTENDER = """
    import sys, time
    from functools import partial
    from pathlib import Path
    from spark_lease.clock import BootClock
    from spark_lease.config.sources import configure
    from spark_lease.election.keepalive import Keepalive
    from spark_lease.election.contender import Contender
    from spark_lease.election.locker import RecordRules
    from spark_lease.stores.registry import open_store
    from spark_lease.election.record import new_holder
    from tests.simulation.history import Did, History, RecordedLocker, lost

    who, url, file, work = sys.argv[1], sys.argv[2], Path(sys.argv[3]), float(sys.argv[4])
    clock, config = BootClock(), configure(name="n", url=url, lease_duration=4, poll_period=0.2)
    history, holder = History(clock.now, lease="n", file=file), new_holder(who)
    inner = RecordRules(open_store(config), config, clock, holder=holder)
    lease = Contender(RecordedLocker(inner, history, who, duration=4.0), config, holder=holder, clock=clock)
    lease.acquire()
    keepalive = Keepalive(lease, config, clock=clock, on_lost=partial(lost, history, who))
    keepalive.start()
    history.add(who, Did.BEGAN, epoch=lease.epoch)
    end = time.monotonic() + work
    while time.monotonic() < end:
        history.check(lease, who)
        history.add(who, Did.ATTEMPTED, epoch=lease.epoch)
        time.sleep(0.01)
    history.add(who, Did.ENDED, epoch=lease.epoch)
    keepalive.stop()
    lease.release()
"""


def test_real_processes_are_judged_by_the_files_that_they_leave(tmp_path: Path) -> None:
    """One is killed, one frozen past its lease and thawed, one finishes: three files, one judgement."""
    url = f"sqlite:///{tmp_path}/lease.db"
    script = tmp_path / "contender.py"
    script.write_text(textwrap.dedent(CONTENDER))

    def start(who: str, work: float) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(script), who, url, str(tmp_path / f"{who}.jsonl"), str(work)]
        environ = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.Popen(command, env=environ)

    def until_master(who: str) -> None:
        file, end = tmp_path / f"{who}.jsonl", time.monotonic() + 30
        while not (file.exists() and '"work began"' in file.read_text()):
            assert time.monotonic() < end
            time.sleep(0.01)

    killed = start("killed", 60)
    until_master("killed")
    frozen = start("frozen", 60)
    killed.kill()
    killed.wait(10)
    gone = {"killed": BootClock().now()}
    until_master("frozen")
    since = BootClock().now()
    frozen.send_signal(signal.SIGSTOP)
    last = start("last", 1)
    assert last.wait(30) == 0
    frozen.send_signal(signal.SIGCONT)
    assert frozen.wait(30) == 1  # check() raised
    gone["frozen"] = BootClock().now()
    events = load([tmp_path / f"{who}.jsonl" for who in ("killed", "frozen", "last")])
    events.append(Event(BootClock().now(), "frozen", Did.FROZEN, "n", since=since))
    events += [Event(when, who, Did.GAVE_UP, "n") for who, when in gone.items()]
    assert [str(each) for each in judge(events)] == []
    assert {each.who for each in events if each.did == Did.MAY_WRITE} == {"killed", "frozen", "last"}
    lie = next(each for each in events if each.did == Did.MAY_WRITE and each.who == "last")
    twice = json.loads(json.dumps({"at": lie.at + 0.5, "since": lie.at, "who": "frozen", "lease": "n"}))
    assert "P1" in {each.promise for each in judge([*events, Event(did=Did.MAY_WRITE, **twice)])}
