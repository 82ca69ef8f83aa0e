"""`spark-lease release --force`: what has run out is freed, what may not have stays nobody's until it has."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_lease.cli.main import main
from spark_lease.cli.release import Forcing, Released, Unreleased
from spark_lease.election.ports import Denied, Grant
from spark_lease.election.record import expires_in
from spark_lease.errors import LeaseLost, Loss, StoreError
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.command import COMMAND, spark_lease
from tests.support.drivers import until
from tests.support.faults import lost_answer, meanwhile
from tests.support.policy import NAME, Contender
from tests.support.shop import Shop


def nobody(words: str) -> str:
    raise AssertionError("nothing is to be confirmed")


def forcing(store: MemoryStore, clock: VirtualClock, *, given: str | None = None, ask: Any = nobody) -> Released:
    return Forcing(store.peer(), NAME, poll=1.0, clock=clock).run(given=given, ask=ask)


def test_a_master_from_whom_it_was_taken_ends_before_another_may_start(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer())
    master.lease.acquire()
    clock.advance(4)
    done = forcing(store, clock, given=NAME)
    assert (done.holder, done.epoch, done.free_in) == (master.lease.holder, master.lease.epoch, 26.0)
    clock.advance(25.9)
    assert isinstance(standby.lease.try_acquire(), Denied), "it is as good as the last renewal made it"
    with pytest.raises(LeaseLost):
        master.lease.check()
    clock.advance(0.2)
    granted = standby.lease.try_acquire()
    assert isinstance(granted, Grant) and granted.epoch > master.lease.epoch


def test_a_master_learns_at_its_next_renewal_that_it_was_taken(clock: VirtualClock, store: MemoryStore) -> None:
    master = Contender(clock, store)
    master.lease.acquire()
    forcing(store, clock, given=NAME)
    with pytest.raises(LeaseLost, match=r"\S+ took it by force; it is free once") as lost:
        master.lease.renew()
    assert lost.value.reason is Loss.TAKEN
    assert not master.lease.release(), "what was taken is not given back"


def test_what_has_run_out_is_freed_without_a_word(clock: VirtualClock, store: MemoryStore) -> None:
    master = Contender(clock, store)
    master.lease.acquire()
    clock.advance(30)
    assert forcing(store, clock) == Released(NAME, True, master.lease.holder, master.lease.epoch)
    assert store.records[NAME].holder is None
    assert forcing(store, clock) == Released(NAME, False)


def test_a_renewal_between_the_look_and_the_swap_is_not_lost(clock: VirtualClock, store: MemoryStore) -> None:
    master = Contender(clock, store)
    master.lease.acquire()
    clock.advance(5)
    command = store.peer()
    command.plan(None, meanwhile(master.lease.renew))
    done = Forcing(command, NAME, poll=1.0, clock=clock).run(given=NAME, ask=nobody)
    assert done.free_in == 30.0, "counted from the renewal that came between"


def test_what_another_took_meanwhile_is_not_touched(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer())
    master.lease.acquire()

    def answer(words: str) -> str:
        clock.advance(31)
        standby.lease.acquire()
        return NAME

    with pytest.raises(Unreleased, match="nothing was changed, check status"):
        forcing(store, clock, ask=answer)
    assert standby.lease.check()


def test_what_another_took_at_this_very_moment_is_not_freed(clock: VirtualClock, store: MemoryStore) -> None:
    master, standby = Contender(clock, store), Contender(clock, store.peer())
    master.lease.acquire()
    clock.advance(31)
    command = store.peer()
    command.plan(meanwhile(standby.lease.acquire))
    with pytest.raises(Unreleased, match="renewed or taken meanwhile: nothing was changed"):
        Forcing(command, NAME, poll=1.0, clock=clock).run(given=None, ask=nobody)
    assert standby.lease.check()


def test_an_answer_that_was_lost_is_found_by_asking_again(clock: VirtualClock, store: MemoryStore) -> None:
    Contender(clock, store).lease.acquire()
    command = store.peer()
    command.plan(None, None, lost_answer)
    with pytest.raises(StoreError):
        Forcing(command, NAME, poll=1.0, clock=clock).run(given=NAME, ask=nobody)
    assert forcing(store, clock) == Released(NAME, False, free_in=30.0)


def test_without_a_clock_it_is_watched_until_it_has_run_out_or_was_renewed(clock: VirtualClock) -> None:
    store = MemoryStore(clock, has_clock=False)
    master, standby = Contender(clock, store), Contender(clock, store.peer())
    master.lease.acquire()
    command = store.peer()
    command.plan(*[None] * 5, meanwhile(master.lease.renew))
    with pytest.raises(Unreleased, match="may still be held"):
        Forcing(command, NAME, poll=1.0, clock=clock).run(given=None, ask=lambda words: "")
    assert master.lease.check()
    began = clock.now()
    assert forcing(store, clock) == Released(NAME, True, master.lease.holder, master.lease.epoch)
    assert clock.now() - began >= 30
    standby.lease.acquire()
    assert forcing(store, clock, given=NAME).free_in == 30.0, "all of its duration once more"
    third = Contender(clock, store.peer())
    assert isinstance(third.lease.try_acquire(), Denied)
    clock.advance(29.9)
    assert isinstance(third.lease.try_acquire(), Denied)
    with pytest.raises(LeaseLost):
        standby.lease.check()


def test_a_store_whose_clock_was_set_back_is_watched_and_no_more_is_left_than_a_lease(
    clock: VirtualClock, store: MemoryStore
) -> None:
    gone, standby = Contender(clock, store), Contender(clock, store.peer())
    gone.lease.acquire()
    store.offset -= 3600
    began = clock.now()
    assert forcing(store, clock) == Released(NAME, True, gone.lease.holder, gone.lease.epoch)
    assert 30 <= clock.now() - began <= 32
    store.offset += 3600
    standby.lease.acquire()
    store.offset -= 3600
    assert forcing(store, clock, given=NAME).free_in == 30.0


def test_release_on_every_store(shop: Shop) -> None:
    mine = shop.take("n", duration=2.0)
    for words in ([], ["--yes", "m"]):
        code, _, err = shop.command("release", "n", "--force", *(words or ["--yes", ""]))
        says = "--yes m is not n: nothing was changed" if words else "may still be held"
        assert (code, says in err, "Traceback" in err) == (1, True, False)
    assert shop.record("n") == mine
    code, out, _ = shop.command("release", "n", "--force", "--yes", "n", "--json")
    told = json.loads(out)
    assert (code, told["changed"], told["holder"], told["epoch"]) == (0, True, "a:1:2:3", mine.epoch)
    assert 0 < told["free_in"] <= 2.1
    assert shop.renew("n", mine) is None, "its master has lost it"
    assert str(shop.row("n")["holder"]).startswith("released-by-force:")
    assert shop.record("n").epoch == mine.epoch
    if shop.has_clock:
        until(lambda: expires_in(shop.store.read("n"), still_for=0.0) <= 0)
        assert shop.row("n")["state"] == "free"
    next_one = shop.take("n", duration=0.2)
    assert next_one.epoch > mine.epoch
    if shop.has_clock:
        until(lambda: expires_in(shop.store.read("n"), still_for=0.0) <= 0)
    code, out, err = shop.command("release", "n", "--force", "--poll-period", "0.05")
    assert (code, "had run out and is free" in out) == (0, True), err
    assert shop.record("n").holder is None
    assert "nothing to do" in shop.command("release", "n", "--force")[1]


def test_a_lease_that_ran_out_before_it_was_freed_ran_out(tmp_path: Path) -> None:
    where = ["--url", f"sqlite:///{tmp_path}/leases.db"]
    words = ["run", "--lease", "n", "--lease-duration", "2", *where, "--", "sh", "-c", f"touch {tmp_path}/in; sleep 60"]
    with subprocess.Popen([COMMAND, *words]) as runner:
        until((tmp_path / "in").exists)
        until(lambda: json.loads(spark_lease("history", "n", "--json", *where).stdout)["holds"])
        runner.kill()
    until(lambda: "expired" in spark_lease("status", "n", *where).stdout)
    assert "had run out and is free" in spark_lease("release", "n", "--force", *where).stdout
    (held,) = json.loads(spark_lease("history", "n", "--json", *where).stdout)["holds"]
    assert (held["ended_by"], held["detail"].startswith("freed by ")) == ("ran out", True)


def test_a_name_that_does_not_exist_is_said(shop: Shop) -> None:
    shop.take("n")
    code, _, err = shop.command("release", "none", "--force", "--yes", "none")
    assert (code, "none: there is no such lease" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["n"], 64, "--force"),
        (["--force"], 78, "which lease?"),
        (["n", "--force", "--url", "postgresql://u@127.0.0.1:1/x"], 69, "Connection refused"),
    ],
)
def test_a_release_that_cannot_be_says_why(
    words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["release", *words]) == code
    assert says in capsys.readouterr().err


def test_in_a_terminal_its_name_is_asked_for(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    shop.take("n")
    for typed, code in ((b"y\n", 1), (b"n\n", 0)):
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [COMMAND, "release", "n", "--force", *shop.flags], stdin=theirs, stderr=subprocess.PIPE, text=True
        )
        os.close(theirs)
        os.write(ours, typed)
        _, err = process.communicate(timeout=30)
        os.close(ours)
        assert (process.returncode, "Type the lease name" in err) == (code, True), err


def test_a_master_at_work_is_ended_by_it(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    # There is no time to be polite with what another seems to have: enough for it to say so on a busy machine.
    timings = ["--lease-duration", "18", "--retry-period", "1", "--stop-budget", "3", "--kill-budget", "4"]
    command = [COMMAND, "run", "--lease", "n", *timings, *shop.flags, "--", "sleep", "3600"]
    master = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until(lambda: (there := shop.store.read("n").record) and there.holder)
    assert shop.command("release", "n", "--force", "--yes", "n")[0] == 0
    out, _ = master.communicate(timeout=30)
    assert (master.returncode, json.loads(out)["outcome"]) == (75, "lost")
    assert expires_in(shop.store.read("n"), still_for=0.0) > 0, "it ended before another could have started"
    (hold,) = json.loads(shop.command("history", "n", "--json")[1])["holds"]
    assert hold["ended_by"].startswith("taken by force"), hold
    assert re.search(r"taken by force: by \S+ at \S+Z$", f"{hold['ended_by']}: {hold['detail']}"), hold
    assert not hold["exact"], "no more is known than when it had ended at the latest"
    late = subprocess.run(
        [COMMAND, "run", "--lease", "n", "--if-held", "skip", *shop.flags, "--", "true"], capture_output=True, text=True
    )
    assert re.search(r"n: \S+ took it by force; it is free once", json.loads(late.stdout)["reason"])
