"""`pause`, `resume` and `transfer` as an operator meets them: real commands, a real master."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import IO

import psycopg2
import pytest

from spark_lease.cli.directives import _put
from spark_lease.election.directive import Directive, directive_of
from spark_lease.election.record import taken, with_directive
from spark_lease.testing import MemoryStore, VirtualClock
from tests.services.objects import BUCKET
from tests.services.proxy import Proxy
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import until
from tests.support.shop import Shop

KINDS = [
    pytest.param("postgresql", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
    pytest.param("postgresql, a session that locks it", marks=pytest.mark.postgres),
    pytest.param("sqlite", marks=pytest.mark.matrix),
    pytest.param("file", marks=pytest.mark.matrix),
    pytest.param("delta", marks=pytest.mark.matrix),
    "objects",
]


@pytest.fixture(params=KINDS)
def store(
    request: pytest.FixtureRequest, url_of: Callable[[str], str], table: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    if request.param == "objects":
        monkeypatch.setenv("SPARK_LEASE_STORAGE_OPTIONS", json.dumps(request.getfixturevalue("objects").options()))
        return ["--url", f"delta+s3://{BUCKET}/{table}"]
    kind, _, locks = request.param.partition(",")
    return ["--url", url_of(kind), "--table", table, "--locker", "database" if locks else "lease"]


@pytest.fixture
def run(store: list[str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a guarded command; returns once it has the lease, or stands by."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: str, until: str = "acquired", command: str = "sleep 60") -> subprocess.Popen[str]:
        settings = ["--lease", "n", "--create-table", "true", "--lease-duration", "6", "--poll-period", "0.2"]
        line = [COMMAND, "run", *settings, *store, *words, "--", "sh", "-c", command]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stderr
        said = ""
        while until not in said:
            said = process.stderr.readline()
            assert said, process.wait(10)
        return process

    yield start
    for each in started:
        if each.poll() is None:
            each.terminate()
        each.communicate(timeout=30)


def test_a_paused_lease_is_standby_with_its_reason_until_it_is_resumed(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    assert run(command="true").wait(20) == 0
    done = spark_lease("pause", "--lease", "n", *store, "--reason", "schema change", "--for", "2h")
    assert (done.returncode, done.stderr) == (0, "")
    assert "schema change; it has no master" in done.stdout
    (row,) = json.loads(spark_lease("status", "n", "--json", *store).stdout)
    assert row["state"] == "free"
    assert [row[key] for key in ("holder", "since", "protection", "in_doubt")] == [None] * 4
    assert re.search(r"paused by \S+ until \d{4}-\S+Z: schema change$", row["directive"])
    late = spark_lease("run", "--lease", "n", "--if-held", "skip", *store, "--", "true")
    assert (late.returncode, last_line(late)["outcome"]) == (99, "standby")
    assert str(last_line(late)["reason"]).endswith(": schema change")
    waiting = run(until="standby, paused by", command="true")
    assert spark_lease("resume", "n", *store).stdout.startswith("n: no longer paused by ")
    assert spark_lease("resume", "n", *store).stdout.startswith("n: there was no pause or transfer; ")
    assert waiting.wait(20) == 0


@pytest.mark.parametrize("store", [KINDS[0], "file"], indirect=True)
def test_a_pause_that_is_over_is_not_shown_any_more(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    def directive() -> str:
        (row,) = json.loads(spark_lease("status", "n", "--json", *store).stdout)
        return row["directive"] or ""

    run(command="sleep 60")
    for duration in ("60", "1"):
        assert spark_lease("pause", "n", *store, "--reason", "schema change", "--for", duration).returncode == 0
        assert duration == "1" or directive().endswith(": schema change")
    until(lambda: not directive())


@pytest.mark.parametrize("store", KINDS[:1], indirect=True)
def test_a_standby_that_is_told_of_a_release_leaves_it_to_the_preferred_site_all_the_same(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    master = run("--site", "paris")
    elsewhere = ["--site", "lyon", "--preferred-site", "paris", "--poll-period", "1"]
    standby = run(*elsewhere, until="standby, ", command="true")
    master.terminate()
    master.communicate(timeout=30)
    assert standby.wait(20) == 0
    first, second = json.loads(spark_lease("history", "n", *store, "--json").stdout)["holds"]
    free = datetime.fromisoformat(second["from"]) - datetime.fromisoformat(first["to"])
    assert free.total_seconds() > 1.2


def test_a_pause_now_ends_the_master_and_returns_once_nobody_has_it(
    store: list[str], run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    master = run(
        command=f"while :; do date +%s.%N > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/alive; sleep 0.05; done"
    )
    done = spark_lease("pause", "n", *store, "--now", "--json")
    at = time.time()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["holder"] is None
    assert float((tmp_path / "alive").read_text()) < at  # it had ended before the command returned
    assert master.wait(20) == 75
    out = str(master.stdout.read() if master.stdout else "")
    assert json.loads(out.splitlines()[-1])["outcome"] == "lost"
    assert "preempted" in out
    (lease,) = json.loads(spark_lease("status", "n", *store, "--json").stdout)
    assert lease["state"] == "free"  # and has not run out
    (hold,) = json.loads(spark_lease("history", "n", *store, "--json").stdout)["holds"]
    assert "preempted" in json.dumps(hold)


def test_a_master_that_renews_whatever_is_wanted_is_not_waited_for_without_end(tmp_path: Path) -> None:
    """As a broker does, or a release of ours before there were directives."""
    where = ["--url", f"sqlite:///{tmp_path}/leases.db", "--lease-duration", "2"]
    assert spark_lease("run", "--lease", "n", *where, "--", "true").returncode == 0
    stopped = threading.Event()

    def renew() -> None:
        with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None, timeout=10)) as connection:
            while not stopped.wait(0.1):
                row = ("broker", round(time.time() * 1000) + 2000)
                connection.execute("UPDATE spark_lease SET broker_name = ?, time = ? WHERE name = 'n'", row)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        until(lambda: "held" in spark_lease("status", "n", *where).stdout)
        done = spark_lease("pause", "n", *where, "--now", "--reason", "now")
    finally:
        stopped.set()
        thread.join()
    assert done.returncode == 99, done.stderr
    assert "broker holds it, still renewed" in done.stderr


def standbys(store: list[str]) -> list[dict[str, str]]:
    (row,) = json.loads(spark_lease("status", "n", *store, "--json").stdout)
    return list(row["standbys"])


def test_a_transferred_lease_goes_to_the_site_that_is_named(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    master = run("--site", "paris")
    run("--site", "paris", until="standby")
    lyon = run("--site", "lyon", until="standby")
    until(lambda: "lyon" in [each["site"] for each in standbys(store)])
    done = spark_lease("transfer", "n", *store, "--to", "lyon", "--within", "0s", "--wait")
    assert done.returncode == 0, done.stderr
    assert lyon.poll() is None
    assert re.match(rf"n: taken, epoch \d+; \S+:{lyon.pid}:\S+ is master$", done.stdout.strip())
    (row,) = json.loads(spark_lease("status", "n", *store, "--json").stdout)
    assert row["site"] == "lyon"
    assert master.wait(20) == 75 and master.stderr
    (at_once, _) = [line for line in master.stderr if "lease lost (preempted)" in line]
    assert "WARNING n: " in at_once and at_once.endswith(": ending the command\n")


def test_a_master_that_is_given_time_finishes_before_the_lease_is_transferred(
    store: list[str], run: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    master = run("--site", "paris", command=f"while ! test -e {tmp_path}/end; do sleep 0.05; done")
    lyon = run("--site", "lyon", "--holder", "l", until="standby")
    run("--site", "paris", until="standby")
    until(lambda: "lyon" in [each["site"] for each in standbys(store)])
    (waits,) = [each["holder"] for each in standbys(store) if each["site"] == "lyon"]
    assert spark_lease("transfer", "n", *store, "--to", waits, "--within", "60s").returncode == 0
    assert master.poll() is None
    (tmp_path / "end").touch()
    assert master.wait(20) == 0
    assert lyon.stderr
    assert "acquired" in next(each for each in lyon.stderr if "standby" not in each)


def test_a_transfer_that_nobody_took_is_99(store: list[str], run: Callable[..., subprocess.Popen[str]]) -> None:
    assert run(command="true").wait(20) == 0
    words = ["--to", "rome", "--anyway", "--within", "0s", "--for", "1s", "--wait"]
    done = spark_lease("transfer", "n", *store, *words)
    assert done.returncode == 99, done.stderr
    assert "it has no master" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("store", KINDS[:1], indirect=True)
def test_a_transfer_that_another_took_is_99(store: list[str], run: Callable[..., subprocess.Popen[str]]) -> None:
    run("--site", "paris")
    run("--site", "lyon", "--poll-period", "0.2", until="standby, ")
    order = ["--to", "nice", "--anyway", "--within", "1", "--for", "1", "--wait"]
    done = spark_lease("transfer", "n", *order, *store, timeout=60)
    assert done.returncode == 99, done.stdout
    assert "took it, not nice: the transfer had ended, or was cancelled" in done.stderr


@pytest.mark.parametrize("store", [KINDS[0]], indirect=True)
def test_what_is_ordered_tells_what_it_replaces(store: list[str], run: Callable[..., subprocess.Popen[str]]) -> None:
    assert run(command="true").wait(20) == 0
    assert spark_lease("pause", "n", *store, "--reason", "upgrade by alice").returncode == 0
    done = spark_lease("transfer", "n", *store, "--to", "lyon", "--anyway", "--json")
    assert json.loads(done.stdout)["replaced"].endswith(": upgrade by alice")
    assert re.search(r"^reserved for lyon by \S+ until \d{4}-\S+Z$", json.loads(done.stdout)["directive"])
    again = spark_lease("pause", "n", *store)
    assert "n: in place of: reserved for lyon by " in again.stderr
    assert spark_lease("resume", "n", *store).stderr == ""


@pytest.mark.parametrize("store", [KINDS[0], "file"], indirect=True)
@pytest.mark.parametrize("to", ["A", "paris"])
def test_a_transfer_to_the_one_that_is_master_is_over_at_once(
    store: list[str], run: Callable[..., subprocess.Popen[str]], to: str
) -> None:
    master = run("--site", "paris", "--holder", "A")
    words = ["transfer", "n", *store, "--to", to, "--within", "0s", "--for", "60s", "--wait"]
    done = until(lambda: (done := spark_lease(*words)).returncode == 0 and done)  # once its grant is noted
    assert done.stdout.strip().endswith(" is master already, and works on")
    assert master.poll() is None


@pytest.mark.parametrize("store", ["file"], indirect=True)
def test_without_a_clock_a_transfer_to_the_last_holder_waits_until_it_is_taken(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    """One look cannot tell whether that holder still lives."""
    master = run("--site", "paris")
    master.kill()
    words = ["--to", "paris", "--anyway", "--within", "0s", "--for", "1s", "--wait"]
    assert spark_lease("transfer", "n", *store, *words).returncode == 99


def waiting_for_lyon(store: list[str]) -> tuple[subprocess.Popen[str], IO[str]]:
    """A transfer that is ordered and not fulfilled yet, and what it says from then on."""
    words = ["transfer", "n", *store, "--to", "lyon", "--anyway", "--within", "60s", "--wait"]
    waiting = subprocess.Popen([COMMAND, *words], stderr=subprocess.PIPE, text=True)
    assert waiting.stderr and "reserved for lyon by" in waiting.stderr.readline()
    return waiting, waiting.stderr


@pytest.mark.parametrize("store", [KINDS[0]], indirect=True)
def test_a_wait_for_what_another_has_taken_back_is_over(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    run()
    waiting, _ = waiting_for_lyon(store)
    assert spark_lease("resume", "n", *store).returncode == 0
    _, err = waiting.communicate(timeout=20)
    assert waiting.returncode == 99
    assert "n: the pause or transfer was replaced or cancelled: there is no pause" in err


@pytest.mark.parametrize("store", [KINDS[0]], indirect=True)
def test_a_wait_outlasts_a_store_that_fails_for_a_moment(
    store: list[str], run: Callable[..., subprocess.Popen[str]], proxy: Proxy
) -> None:
    run()
    through = [proxy.url if before == "--url" else each for before, each in pairwise(["", *store])]
    waiting, said = waiting_for_lyon([*through, "--attempt-timeout", "1"])
    proxy.stall()
    assert "cannot look, trying again: " in said.readline()
    proxy.reopen()
    assert spark_lease("resume", "n", *store).returncode == 0
    _, err = waiting.communicate(timeout=30)
    assert (waiting.returncode, "n: the pause or transfer was replaced or cancelled: there is no pause" in err) == (
        99,
        True,
    ), err


@pytest.mark.parametrize("store", [KINDS[0]], indirect=True)
def test_ctrl_c_while_it_waits_says_that_the_order_stays(
    store: list[str], run: Callable[..., subprocess.Popen[str]]
) -> None:
    run()
    waiting, _ = waiting_for_lyon(store)
    waiting.send_signal(signal.SIGINT)
    _, err = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert err == "spark-lease: n: the pause or transfer stays in force: spark-lease resume n cancels it\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["pause", "n"], 1, "n: there is no such lease in "),
        (["resume", "n"], 1, "n: there is no such lease in "),
        (["transfer", "n", "--to", "lyon"], 1, "n: there is no such lease in "),
        (["transfer", "n"], 64, "--to"),
        (["transfer", "n", "--to", "a\nb"], 78, "is neither a holder, nor its label, nor a site"),
        (["transfer", "taken", "--to", "rome"], 78, "no holder, label or site 'rome' is known for taken. Known: "),
        (["pause", "n", "--for", "soon"], 78, "--for: 'soon' is not a time of 0 or more: 90, 15m, 2h, 30d"),
        (["pause", "taken", "--reason", "x" * 600], 78, "--reason: is too long"),
        (["pause", "taken", "--reason", "a\nb\x1b[31m"], 78, "--reason: is not a printable text"),
        (
            ["transfer", "taken", "--to", "rome", "--anyway", "--reason", "a\nb"],
            78,
            "--reason: is not a printable text",
        ),
        (["pause", "n", "--url", "postgresql://u@127.0.0.1:1/d"], 69, "lease store postgresql://"),
    ],
)
def test_an_operators_mistake_is_one_sentence_and_changes_nothing(
    words: list[str], code: int, says: str, tmp_path: Path
) -> None:
    url = [] if "--url" in words else ["--url", f"sqlite:///{tmp_path}/leases.db"]
    spark_lease("run", "--lease", "taken", *url, "--", "true", cwd=tmp_path)
    done = spark_lease(*words, *url, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr
    (row,) = json.loads(spark_lease("status", "--json", "--url", f"sqlite:///{tmp_path}/leases.db").stdout or "[{}]")
    assert not row.get("directive")


@pytest.mark.postgres
def test_a_table_without_the_column_for_directives_is_refused_with_what_to_do(pg_url: str, table: str) -> None:
    where = ["--url", pg_url, "--table", table]
    spark_lease("run", "--lease", "n", "--create-table", "true", *where, "--", "true")
    with closing(psycopg2.connect(pg_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} DROP COLUMN directive")
    done = spark_lease("pause", "n", *where)
    assert (done.returncode, "lacks directive: run spark-lease init" in done.stderr) == (78, True), done.stderr
    assert spark_lease("init", *where).returncode == 0
    assert spark_lease("pause", "n", *where).returncode == 0


def test_what_took_effect_though_the_store_said_no_is_told_as_done(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A contender took the lease right after it, and the store saw that record instead."""
    memory, order = MemoryStore(clock), Directive("alice", "schema change")
    held = memory.swap("n", None, taken(None, holder="me", duration=9.0))
    assert held and memory.swap("n", held, with_directive(held, order.text()))
    swap = memory.swap
    monkeypatch.setattr(memory, "swap", lambda *its: swap(*its) and None)
    before, seen = _put(memory, "n", lambda now: None)
    assert directive_of(before.directive) == order
    assert seen.record and seen.record.directive == ""


def test_a_write_that_the_database_drops_is_told_as_that(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    shop.release("n", shop.take("n"))
    with sqlite3.connect(shop.config.url.removeprefix("sqlite:///")) as database:
        database.execute(f"CREATE TRIGGER drops BEFORE UPDATE ON {shop.config.table} BEGIN SELECT RAISE(IGNORE); END")
    database.close()
    code, _, said = shop.command("pause", "n")
    assert code == 69 and "n cannot be written: a policy or a trigger of the database drops the write" in said
