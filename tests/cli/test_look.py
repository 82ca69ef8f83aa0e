"""What `status` says of a lease by its record alone: by pure rules, and of each store."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from spark_lease.cli.look import cell, described, for_programs
from spark_lease.cli.status import Lines, Watched
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.record import LeaseRecord, Snapshot, forced
from spark_lease.errors import ConfigError
from spark_lease.holds import open_contender
from spark_lease.journal.standbys import Presence
from spark_lease.monitoring.observer import LeaseObserver
from spark_lease.stores.registry import open_notes, open_store
from spark_lease.testing import MemoryStore, VirtualClock
from tests.support.command import COMMAND
from tests.support.drivers import until, wait_until_noted
from tests.support.faults import lost_request
from tests.support.shop import Shop

EPOCH = 1_763_776_800_000
CONFIG = configure()


def told(record: LeaseRecord | None, left: float | None = None, **how: Any) -> dict[str, Any]:
    return described("the store", "n", Snapshot(record, left), CONFIG, **how)


def held(epoch: int = EPOCH, duration: float = 30.0, left: float = 28.0) -> LeaseRecord:
    return LeaseRecord("a:1:2:3", epoch, duration, stamp=EPOCH + 60_000 + round(left * 1000))


def test_the_epoch_is_the_time_of_the_grant_if_it_is_a_time() -> None:
    assert told(held(), 28.0)["since"] == "2025-11-22T02:00:00Z"
    assert told(held(epoch=7), 28.0)["since"] == ""
    assert told(held(epoch=EPOCH + 10_000_000), 28.0)["since"] == "", "an epoch of the future was counted"
    assert told(held(), None)["since"] == "2025-11-22T02:00:00Z", "by the wall clock where the store has none"


def test_of_a_store_whose_clock_was_set_back_no_number_is_believed() -> None:
    record = replace(held(), holder="a:1:2:0123abcd")
    row = told(record, 3579.0)
    assert (row["state"], row["expires_in"]) == ("held", None)
    assert "the store: the store's clock was set back: n is expired if it stays unchanged for 30 s" in row["note"]
    assert told(record, 3579.0, still_for=10.0)["expires_in"] == 20.0
    assert told(record, 3569.0, still_for=30.0)["state"] == "expired"
    assert told(replace(record, holder="broker"), 3579.0)["expires_in"] == 3579.0, (
        "a broker's own duration is not known"
    )


def test_a_lease_is_in_doubt_from_outside_when_its_renewals_stay_away() -> None:
    assert told(held(), 23.0)["in_doubt"] is False, "renewed 7 s ago, which is done every 5 s"
    row = told(held(left=22.0), 22.0)
    assert row["in_doubt"] is True
    assert row["note"] == "n: in doubt, last renewed 8.0 s ago, expected every 5.0 s"
    assert told(held(duration=60.0), 48.0)["in_doubt"] is False, "in proportion to the duration that is stored"
    assert told(held(duration=0.0), 22.0)["in_doubt"] is None, "a broker does not say how often it renews"
    assert told(held(), -1.0)["state"] == "expired"


def test_a_store_without_a_clock_tells_only_whoever_watches_it() -> None:
    once = told(held())
    assert (once["state"], once["expires_in"], once["in_doubt"]) == ("held", None, None)
    assert "is expired if it stays unchanged for" in once["note"]
    assert told(held(), still_for=3.0)["in_doubt"] is False
    assert told(held(), still_for=3.0)["expires_in"] == 27.0
    assert told(held(), still_for=9.0)["in_doubt"] is True
    assert told(held(), still_for=30.0)["state"] == "expired"


def test_what_was_taken_by_force_is_nobodys_when_it_has_run_out() -> None:
    record = forced(held(), by="released-by-force:me", left=9.0)
    assert "taken from its holder by force" in told(record, 9.0)["note"]
    assert told(record, -0.1)["state"] == "free"
    once = told(record)
    assert (once["expires_in"], "stays unchanged for 9 s" in once["note"]) == (None, True)
    assert "taken from its holder by force" in told(record, still_for=2.0)["note"]


@pytest.mark.parametrize("scheme", ["file", "delta"])
def test_a_lookout_takes_a_lease_whose_folder_nobody_has_made_yet_for_free(scheme: str, tmp_path: Path) -> None:
    config = configure(name="n", url=f"{scheme}://{tmp_path}/leases")
    assert LeaseObserver(config).look().state == "free"
    with pytest.raises(ConfigError, match="is it mounted"):
        LeaseObserver(replace(config, create_table="false")).look()


def test_watch_goes_on_while_its_share_is_not_mounted(tmp_path: Path) -> None:
    config = configure(url=f"file://{tmp_path}/share", create_table="false")
    with closing(open_store(replace(config, create_table="true"))) as writer, closing(open_store(config)) as store:
        assert writer.swap("n", None, LeaseRecord("a:1:2:3", 1, 30.0))
        watched = Watched(store, [], config, BootClock())
        assert [each["state"] for each in watched.look()] == ["held"]
        (tmp_path / "share").rename(tmp_path / "elsewhere")
        (row,) = watched.try_look()
        assert (row["state"], "is it mounted?" in row["problem"]) == ("unreachable", True)
        (tmp_path / "elsewhere").rename(tmp_path / "share")
        assert [each["state"] for each in watched.try_look()] == ["held"]


def test_watch_without_any_lease_says_that_its_store_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "share").mkdir()
    config = configure(url=f"file://{tmp_path}/share", create_table="false")
    with closing(open_store(config)) as store:
        watched, show = Watched(store, [], config, BootClock()), Lines(as_json=False)
        for there in (True, False, False, True, False):
            if there != (tmp_path / "share").exists():
                (tmp_path / ("elsewhere" if there else "share")).rename(tmp_path / ("share" if there else "elsewhere"))
            show(watched.try_look())
    said = [line.partition("  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [each.startswith("all leases: unreachable: ") for each in said] == [True, True], said


def test_watch_says_what_changes_and_nothing_else(
    clock: VirtualClock, store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    watched, show = Watched(store, ["n"], CONFIG, clock), Lines(as_json=True)

    def look() -> list[tuple[str, bool, str | None]]:
        show(watched.try_look())
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [(line["state"], bool(line["in_doubt"]), line["was"]) for line in lines]

    mine = store.swap("n", None, LeaseRecord("a:1:2:3", 1, 30.0))
    assert mine
    assert look() == [("held", False, None)]
    clock.advance(5)
    assert look() == []
    clock.advance(3)
    assert look() == [("held", True, "held")]
    assert store.swap("n", mine, mine)
    assert look() == [("held", False, "held")]
    store.plan(lost_request, lost_request)
    assert look() == [("unreachable", False, "held")]
    assert look() == []
    assert look() == [("held", False, "unreachable")]
    clock.advance(31)
    assert look() == [("expired", False, "held")]


def test_status_shows_since_and_doubt_on_every_store(shop: Shop) -> None:
    mine = shop.take("n")
    row = shop.row("n")
    assert (row["state"], row["holder"], row["protection"]) == ("held", "a:1:2:3", "kernel")
    assert str(row["since"]).startswith("20") and row["epoch"] == mine.epoch
    assert row["in_doubt"] is (False if shop.has_clock else None)
    shop.release("n", mine)
    assert (shop.row("n")["state"], shop.row("n")["since"]) == ("free", None)


@pytest.mark.parametrize("command", [["status"], ["status", "--watch"]], ids=" ".join)
def test_a_name_that_does_not_exist_is_said(shop: Shop, command: list[str]) -> None:
    shop.take("n")
    code, _, err = shop.command(*command, "none")
    assert (code, "none: there is no such lease" in err) == (1, True)


@pytest.mark.parametrize("command", [["status"], ["status", "--watch"]], ids=" ".join)
def test_a_store_that_is_down_is_69(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from spark_lease.cli.main import main

    assert main([*command, "n", "--url", "postgresql://u@127.0.0.1:1/x"]) == 69
    assert "Connection refused" in capsys.readouterr().err


def test_a_standby_whose_spark_is_ready_is_called_warm() -> None:
    cold = {"holder": "a:1:2:3", "state": "cold", "since": "2026-11-26T11:00:00Z"}
    assert cell([cold, cold | {"holder": "b:1:2:3", "state": "warm"}]) == "a, b (warm since 2026-11-26T11:00:00Z)"


@pytest.mark.postgres
def test_notes_that_are_locked_are_waited_for_once_and_not_for_each_lease(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("postgresql")
    with closing(open_notes(replace(shop.config, create_table="true"))) as notes:
        notes.append("n", "x", "y", "z")
    for number in range(8):
        shop.take(f"lease{number}")
    admin = psycopg2.connect(shop.config.url)
    with closing(admin), admin.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {shop.config.notes_table} IN ACCESS EXCLUSIVE MODE")
        begun = time.monotonic()
        code, out, _ = shop.command("status", "--wide", "--attempt-timeout", "1")
        assert time.monotonic() - begun < 6
    assert code == 0 and all(f"lease{number}" in out for number in range(8))


def test_a_master_stands_by_no_more_while_its_note_as_a_standby_is_still_there(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    with closing(open_contender(replace(shop.config, name="n", create_table="true"), BootClock())) as hold:
        hold.acquire()
        wait_until_noted(hold)
        for holder in (hold.holder, "b:1:2:3"):
            Presence(hold._config, BootClock(), holder=holder)._note()
        assert cell(shop.row("n")["standbys"]) == "b"
        hold.release()
        assert cell(shop.row("n")["standbys"]) == "b"


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgres), "sqlite", "file", "delta"])
def test_watch_tells_site_and_standbys_and_how_it_ended(
    kind: str, shop_of: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    shop = shop_of(kind)
    shop.release("n", shop.take("n", holder="z:1:2:3"))
    line = [COMMAND, "run", "--lease=n", *shop.flags, "--create-table=true", "--poll-period=0.2"]
    seen: list[str] = []
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> None:
        started.append(subprocess.Popen([*line, *words, "--", "sleep", "60"], stderr=subprocess.PIPE, text=True))

    def end(process: subprocess.Popen[str]) -> None:
        """Not before it knows itself that it is master."""
        assert process.stderr and any("acquired" in each for each in process.stderr)
        process.terminate()

    with closing(open_notes(shop.config)) as notes:
        watched, show = Watched(shop.store, ["n"], shop.config, BootClock(), notes), Lines(as_json=False)

        def look(words: str) -> bool:
            show(watched.look())
            seen.extend(capsys.readouterr().out.splitlines())
            return any(re.search(words, each) for each in seen)

        try:
            run("--holder=a", "--site=paris")
            until(lambda: look("held, by a:.*, site paris"), 60)
            run("--holder=b")
            until(lambda: look("held, by a:.*standing by: b"), 60)
            assert "certain" not in seen[-1], "nobody had a doubt"
            end(started[0])
            until(lambda: look("last change (≤ )?20.*Z: interrupted: SIGTERM, a:"), 60)
            until(lambda: look("held, by b:"), 60)
            assert "site" not in seen[-1]
            end(started[1])
            until(
                lambda: look("free, last change (≤ )?20.*Z: interrupted: SIGTERM, b:"),
                timeout=60,
                instead=lambda: "\n".join([*seen[-3:], started[1].communicate()[1]]),
            )
        finally:
            for each in started:
                each.terminate()
                each.communicate(timeout=20)


@pytest.fixture
def watching(shop_of: Callable[..., Shop]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(shop: Shop, words: Sequence[str], **how: Any) -> subprocess.Popen[str]:
        command = [COMMAND, "status", "--watch", *words, *shop.flags]
        started.append(subprocess.Popen(command, text=True, **({"stdout": subprocess.PIPE} | how)))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait(10)
        if each.stdout:
            each.stdout.close()


@pytest.mark.postgres
def test_watch_is_told_of_a_release_and_ends_by_ctrl_c(
    shop_of: Callable[..., Shop], watching: Callable[..., subprocess.Popen[str]]
) -> None:
    shop = shop_of("postgresql")
    mine = shop.take("n")
    process = watching(shop, ["n", "--json", "--poll-period", "3600"])
    lines: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: lines.extend(map(json.loads, process.stdout or [])), daemon=True)
    reader.start()
    until(lambda: lines)
    shop.release("n", mine)  # maybe before it listens: it looks again then
    until(lambda: len(lines) == 2)
    again = shop.take("n")  # of which nobody is told, and it looks in an hour
    shop.release("n", again)
    until(lambda: len(lines) == 3)
    assert [line["state"] for line in lines] == ["held", "free", "free"]
    assert lines[2]["epoch"] == again.epoch
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


@pytest.mark.parametrize(
    ("words", "shows"),
    [([], rb"n +(held|IN DOUBT) +a  "), (["n"], rb"(?s)holder +a\S+\s.*epoch +\d+\s.*protection +kernel")],
)
def test_watch_is_live_in_a_terminal(
    shop_of: Callable[..., Shop], watching: Callable[..., subprocess.Popen[str]], words: list[str], shows: bytes
) -> None:
    shop = shop_of("sqlite")
    shop.take("n")
    terminal, theirs = pty.openpty()
    watching(shop, [*words, "--poll-period", "0.1"], stdout=theirs)
    os.close(theirs)
    seen = b""
    while seen.count(b"\x1b[H\x1b[J") < 3:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    assert re.search(shows, seen)


def test_status_says_how_the_last_hold_ended(tmp_path: Path) -> None:
    where = ["--url", f"sqlite:///{tmp_path}/leases.db"]
    for _ in range(2):
        subprocess.run([COMMAND, "run", "--lease", "n", *where, "--", "true"], check=True, capture_output=True)
    done = subprocess.run([COMMAND, "status", "n", *where], check=True, capture_output=True, text=True)
    assert "last change  20" in done.stdout and "Z: finished, " in done.stdout


def test_programs_see_null_where_there_is_nothing() -> None:
    row = {"lease": "n", "holder": "", "fences": {}, "left": 0, "standbys": [{"site": "", "state": "cold"}]}
    nothing = {"holder": None, "fences": None, "standbys": [{"site": None, "state": "cold"}]}
    assert for_programs([row]) == [row | nothing]
