"""The process that keeps a lease: how it is started, how it ends, what a fork of its driver may do. No Spark here."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

import spark_lease
from spark_lease import ConfigError, LeaseLost, hold_lease
from spark_lease.cli.history import all_holds
from spark_lease.config.sources import configure
from spark_lease.election.directive import Directive
from spark_lease.election.journal_entries import APPLICATION
from spark_lease.fencing.status import fences_of
from spark_lease.keeper import spawn
from spark_lease.keeper.channel import Channel, Closed
from spark_lease.keeper.client import KeeperHold
from spark_lease.spark.applications import Applications
from spark_lease.stores.registry import open_notes
from spark_lease.system import python as starting
from spark_lease.system.processes import look, tree
from tests.services.proxy import Proxy
from tests.support.command import COMMAND
from tests.support.drivers import Driver, keeper_of, keepers_of, row, until, want

PACKAGE = Path(spark_lease.__file__).parent
Start = Callable[..., Driver]


# Its start


PLACES = {
    "a plain folder": lambda folder: shutil.copytree(PACKAGE, folder / "spark_lease"),
    "a zip": lambda folder: zipped(folder),
}
WHERE = """
import sys
sys.path.insert(0, sys.argv[1])
import spark_lease
assert spark_lease.__file__.startswith(sys.argv[1]), spark_lease.__file__
with spark_lease.hold_lease("n", url=sys.argv[2], keeper="process") as lease:
    print(lease.protection, flush=True)
"""


def zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / "package.zip", "w") as archive:
        for file in PACKAGE.rglob("*.py"):
            archive.write(file, file.relative_to(PACKAGE.parent))


@pytest.mark.parametrize("place", PLACES)
def test_it_starts_from_wherever_the_package_is_and_needs_no_environment(place: str, tmp_path: Path, url: str) -> None:
    PLACES[place](tmp_path)
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "package.zip" if place == "a zip" else tmp_path
    command = [sys.executable, "-c", WHERE, str(path), url]
    done = subprocess.run(
        command, env={}, cwd=tmp_path / "elsewhere", capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "kernel\n", done.stderr


@pytest.mark.postgres
def test_nobody_can_read_a_password_or_an_url_off_it(start: Start, pg_url: str) -> None:
    driver = start(
        f"""
        settings = SETTINGS | {{"url": {pg_url!r}, "create_table": "true", "password": "s3cret"}}
        with hold_lease("n", **settings) as lease:
            say("held")
            time.sleep(60)
        """
    )
    driver.until("held")
    (keeper,) = keepers_of(driver.process.pid)
    for what in ("cmdline", "environ"):
        seen = Path(f"/proc/{keeper}/{what}").read_bytes()
        assert b"s3cret" not in seen
        assert what == "environ" or b"postgresql://" not in seen


@pytest.mark.postgres
def test_no_thread_of_the_driver_connects_while_the_program_may_change_its_environment(
    pg_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libpq reads the environment: beside a change of it that can be a SIGSEGV, which no exception handler sees."""
    connect, where = psycopg2.connect, list[threading.Thread]()

    def noticed(*words: Any, **keywords: Any) -> Any:
        where.append(threading.current_thread())
        return connect(*words, **keywords)

    monkeypatch.setattr(psycopg2, "connect", noticed)
    config = configure(name="n", url=pg_url, create_table="true", keeper="process")
    with hold_lease("n", url=pg_url, create_table="true", keeper="process") as lease:
        Applications(lease._hold, lease._config).note(SimpleNamespace(applicationId="app-1"))
        with closing(open_notes(config)) as notes:
            until(lambda: fences_of(notes, "n", lease.epoch))
            until(lambda: f"{lease.epoch}\napp-1" in notes.all("n", APPLICATION))
        assert lease._hold.note("kind", "key", "first") == lease._hold.note("kind", "key", "second") == "first"
        assert lease._hold.noted("kind") == {"key": "first"}
    assert set(where) == {threading.main_thread()}  # ours, here


def test_what_keeps_the_keeper_from_a_note_is_raised_in_the_driver(tmp_path: Path) -> None:
    with hold_lease("n", url=f"sqlite:///{tmp_path}/lease.db", keeper="process") as lease:
        with closing(sqlite3.connect(tmp_path / "lease.db")) as store, store:
            store.execute("DELETE FROM spark_lease")
        assert lease._hold.note("kind", "key", "text") is None
        (tmp_path / "other").write_bytes(b"no database" * 1000)
        (tmp_path / "other").replace(tmp_path / "lease.db")  # at once: an empty file is a database
        with pytest.raises(spark_lease.StoreError, match="not a database"):
            lease._hold.note("kind", "other", "text")


def test_where_none_can_be_started_threads_do_it_or_nobody(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(starting, "PYTHON", "/no/such/python")
    with hold_lease("n", url=url) as lease:
        assert lease.protection == "thread"
    assert "cannot start the keeper process, renewing from threads instead: [Errno 2]" in caplog.text
    with pytest.raises(ConfigError, match="keeper: cannot start the keeper process"):
        hold_lease("n", url=url, keeper="process").__enter__()
    monkeypatch.setattr(starting, "PYTHON", "/bin/false")
    with pytest.raises(ConfigError, match="cannot start the keeper process"):
        hold_lease("n", url=url, keeper="process").__enter__()


def test_its_last_words_are_heard_also_if_it_ends_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def answer(lease: KeeperHold, key: str, timeout: float, *others: str) -> Any:
        found = heard(lease, key, timeout if looks else 0.0, *others)
        if key == "refused" and key not in looks and found is None:
            until(lambda: lease._ended)
        looks.append(key)
        return found

    heard = KeeperHold.answer
    monkeypatch.setattr(KeeperHold, "answer", answer)
    with pytest.raises(ConfigError, match=r"url: .* names no lease store"):
        hold_lease("n", url="gopher://x").__enter__()


def test_what_it_learns_is_raised_here(url: str) -> None:
    with pytest.raises(ConfigError, match=r"url: .* names no lease store"):
        hold_lease("n", url="gopher://x").__enter__()
    with pytest.raises(spark_lease.StoreError, match=r"lease store postgresql://127\.0\.0\.1"):
        hold_lease("n", url="postgresql://127.0.0.1:1/x", acquire_timeout=0).__enter__()
    with hold_lease("n", url=url) as lease:
        environ = {**os.environ, "SPARK_LEASE_URL": url}
        words = [COMMAND, "run", "--lease", "n", "--if-held", "skip", "--", "true"]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 99
        assert lease.holder in done.stderr


def test_the_level_stands_in_the_row(url: str) -> None:
    with hold_lease("n", url=url) as lease:
        words = [COMMAND, "status", "--wide", "--url", url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
        assert lease.protection == "kernel"
        assert "PROTECTION" in done.stdout.splitlines()[0]
        assert "kernel" in done.stdout.splitlines()[1].split()
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert "kernel" not in done.stdout


def test_a_socket_of_something_else_is_no_order() -> None:
    read, write = os.pipe()
    with pytest.raises(Closed, match="is no socket"):
        Channel.inherited(read)
    os.close(read)
    os.close(write)


# Its end


# Python hears of a signal between two calls: one that comes just before a long call is heard after it.
WAITS = "while True: time.sleep(0.1)"
ENDS = {
    "the script ends": ("", 0, None, "finished"),
    "sys.exit": ("sys.exit(3)", 3, None, "failed: exit 3"),
    "an exception": ("raise ValueError('x')", 1, None, "failed: ValueError"),
    "a thread's exit": ("threading.Thread(target=sys.exit).start()", 0, None, "finished"),
    "os._exit": ("os._exit(4)", 4, None, "crashed: its driver ended"),
    "Ctrl-C": (WAITS, -signal.SIGINT, signal.SIGINT, "interrupted: SIGINT"),
    "SIGTERM": (WAITS, 128 + signal.SIGTERM, signal.SIGTERM, "interrupted: SIGTERM"),
    "SIGHUP": (WAITS, 128 + signal.SIGHUP, signal.SIGHUP, "interrupted: SIGHUP"),
    "SIGKILL": (WAITS, -signal.SIGKILL, signal.SIGKILL, "crashed: its driver ended"),
}


@pytest.mark.parametrize("end", ENDS)
def test_however_the_driver_ends_nothing_stays_and_the_lease_is_free(
    start: Start, url: str, table: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    body, code, number, how = ENDS[end]
    driver = start(f"with hold_lease('n', **SETTINGS) as lease:\n        say('held')\n        {body or 'pass'}")
    driver.until("held")
    kept = keepers_of(driver.process.pid)
    assert kept or not number
    if number:
        os.killpg(driver.process.pid, number)
    assert driver.end() == code, driver.log.read_text()
    until(lambda: row(url, table)[0] is None)
    until(lambda: not [pid for pid in kept if look(pid)], timeout=10)
    config = configure(name="n", url=url, table=table)  # the end is noted right after the release
    until(lambda: [each.ended_by for each in all_holds(config, "n") or []] == [how])
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_standby_that_is_ended_leaves_no_keeper_and_takes_nothing(
    start: Start, url: str, table: str, number: int
) -> None:
    with hold_lease("n", url=url, table=table, create_table=True, lease_duration=4, keeper="thread") as lease:
        waiting = start("with hold_lease('n', **SETTINGS) as lease:\n        say('held')")
        waiting.until("is master")
        (keeper,) = keepers_of(waiting.process.pid)
        waiting.send(number)
        assert waiting.end() == (128 + number if number == signal.SIGTERM else -number)
        until(lambda: not look(keeper), timeout=10)
        assert lease.check()
    time.sleep(0.2)  # nothing to wait for: nobody is to take it
    assert row(url, table)[0] is None


@pytest.mark.parametrize("on_lost", ["exit", "stop"])
def test_what_an_operator_takes_is_free_once_the_driver_has_ended_its_work(
    start: Start, url: str, table: str, on_lost: str
) -> None:
    driver = start(f"""
        with hold_lease("n", keeper="process", on_lost="{on_lost}", **SETTINGS):
            say("held")
            time.sleep(60)
    """)
    driver.until("held")
    want("n", Directive("anna", give_up=0.0), url=url, table=table)
    until(lambda: row(url, table)[0] is None)
    assert driver.end() in (1, 75)


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_loss_ends_what_the_block_has_started_and_nothing_from_before(
    start: Start, url: str, table: str, keeper: str
) -> None:
    driver = start(f"""
        import subprocess
        before = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with hold_lease("n", keeper="{keeper}", **SETTINGS | {{"lease_duration": 12}}):
            inside = subprocess.Popen(["sleep", "600"], start_new_session=True)
            say(f"{{before.pid}} {{inside.pid}} held")
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
    """)
    before, inside = map(int, driver.until("held").split()[-3:-1])
    want("n", Directive("anna", give_up=0.0), url=url, table=table)
    assert driver.end() == 75, driver.log.read_text()
    until(lambda: not look(inside))
    assert look(before)
    os.kill(before, signal.SIGKILL)


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_what_an_operator_takes_is_not_free_while_the_block_works_on(
    start: Start, url: str, table: str, keeper: str
) -> None:
    driver = start(f"""
        with hold_lease("n", keeper="{keeper}", on_lost="stop", **SETTINGS) as lease:
            say("held")
            end = float("inf")
            while time.monotonic() < end:
                try:
                    time.sleep(0.05)
                    end = end if lease.remaining() else min(end, time.monotonic() + 6)
                except BaseException:
                    pass
            say("still there")
    """)
    driver.until("held")
    want("n", Directive("anna", give_up=0.0), url=url, table=table)
    driver.until("still there")
    assert row(url, table)[0], "it runs out"


def test_a_driver_that_closes_all_its_files_loses_its_lease_for_certain(start: Start) -> None:
    driver = start("with hold_lease('n', **SETTINGS):\n        os.closerange(3, 1000)\n        time.sleep(60)")
    assert driver.end(15) in (1, 75, -signal.SIGKILL, -signal.SIGALRM)


def test_a_polite_signal_to_all_processes_of_a_service_does_not_end_the_keeper_first(
    start: Start, url: str, table: str
) -> None:
    driver = start(f"with hold_lease('n', **SETTINGS) as lease:\n        say('held')\n        {WAITS}")
    driver.until("held")
    (keeper,) = keepers_of(driver.process.pid)
    os.kill(keeper, signal.SIGTERM)
    os.kill(driver.process.pid, signal.SIGTERM)
    assert driver.end() == 128 + signal.SIGTERM
    assert row(url, table)[0] is None


def test_a_crash_of_the_keeper_tells_where_in_the_drivers_log(start: Start) -> None:
    driver = start('with hold_lease("n", **SETTINGS):\n    say("up")\n    time.sleep(60)')
    driver.until("up")
    os.kill(keeper_of(driver.process.pid), signal.SIGSEGV)
    driver.end(15)
    until(lambda: "Fatal Python error: Segmentation fault" in driver.log.read_text(), timeout=5)


def test_without_the_kernel_the_end_of_the_keeper_is_a_loss(start: Start) -> None:
    driver = start(
        """
        from spark_lease.keeper import spawn
        patch = "import spark_lease.keeper.enforced as it; it.why_not = lambda: 'forbidden'; from spark_lease"
        spawn._BOOT = spawn._BOOT.replace("from spark_lease", patch)
        with hold_lease("n", **SETTINGS) as lease:
            say(f"held by the {lease.protection}"); time.sleep(60)
        """
    )
    assert "protection keeper: forbidden" in driver.until("held by the keeper")
    (keeper,) = keepers_of(driver.process.pid)
    os.kill(keeper, signal.SIGKILL)
    assert driver.end() == 1
    assert "lease lost (keeper-gone)" in driver.log.read_text()


def test_a_driver_that_stands_still_is_not_renewed_for(start: Start, url: str, table: str) -> None:
    driver = start("with hold_lease('n', **SETTINGS) as lease:\n        say('held'); time.sleep(60)")
    driver.until("held")
    os.kill(driver.process.pid, signal.SIGSTOP)
    assert driver.end(8) == -signal.SIGKILL  # at its stop_by, while it stood still
    until(lambda: "lost (expired)" in driver.log.read_text())  # which another has said for it
    assert "killing the rest of the driver" in driver.log.read_text()


LOST_IN_THE_BLOCK = """
    SETTINGS |= dict(keeper="{keeper}", lease_duration=8, kill_budget=1.2)
    try:
        with hold_lease("n", **SETTINGS) as lease:
            say("held")
            while True:
                lease.check(); time.sleep(0.001)
    except LeaseLost as lost:
        say(f"caught {{lost.reason}}")
    time.sleep(30)
    say("lived on")
"""


@pytest.mark.postgres
@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_loss_that_the_block_sees_first_ends_the_process_as_any_other(
    start: Start, proxy: Proxy, keeper: str
) -> None:
    driver = start(LOST_IN_THE_BLOCK.format(keeper=keeper), store=proxy.url)
    driver.until("held")
    proxy.stall()
    assert driver.end(20) == 75, driver.log.read_text()
    assert "lived on" not in driver.log.read_text()


def test_a_loss_that_the_driver_finds_is_acted_on_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_lease.errors import Loss
    from spark_lease.keeper import client

    monkeypatch.setattr(client, "WATCH_PERIOD", 60.0)  # nor is it looked at because the deadline is near
    told: list[LeaseLost] = []
    never = threading.Event()
    with (
        pytest.raises(LeaseLost, match="fenced"),
        hold_lease("n", url=url, keeper="process", lease_duration=60, on_lost=told.append) as lease,
    ):
        never.wait(0.5)  # the look at the start is over
        lease._hold.lose(Loss.FENCED, "the store has a newer epoch")
        never.wait(20)
        told.append(LeaseLost("n", 0, Loss.EXPIRED, "not interrupted"))
    until(lambda: [each.reason for each in told] == [Loss.FENCED])


def test_a_program_that_ignores_its_children_is_protected_as_any_other(start: Start) -> None:
    driver = start(
        """
        import signal
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with hold_lease("n", **SETTINGS) as lease:
            say(lease.protection)
        """
    )
    driver.until("kernel")


def test_a_driver_without_a_spark_is_seldom_woken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark  # noqa: F401  # which alone is no sign of a Spark to come

    from spark_lease.spark.reporter import SparkReporter

    looks: list[None] = []
    monkeypatch.setattr(SparkReporter, "look", lambda self: looks.append(None))

    def looks_in_a_second() -> int:
        looks.clear()
        threading.Event().wait(1.0)
        return len(looks)

    with hold_lease("n", url=url, keeper="process", lease_duration=60):
        until(lambda: 1 <= looks_in_a_second() <= 4)  # once the messages of the start are over


@pytest.mark.postgres
def test_a_block_that_ends_well_just_before_the_deadline_is_not_killed_later(start: Start, proxy: Proxy) -> None:
    """The store hangs: the request that is under way is waited for past the deadline, with nothing left to guard."""
    driver = start(
        """
        with hold_lease("n", **SETTINGS) as lease:
            say("held")
            while lease.remaining() > 0.3:
                time.sleep(0.001)
        say("left")
        time.sleep(6)  # past the moment at which what a loss leaves would be killed
        say("lived on")
        """,
        store=proxy.url,
    )
    driver.until("held")
    proxy.stall()
    assert driver.end(30) == 0, driver.log.read_text()
    assert "lived on" in driver.log.read_text()


def test_a_second_ctrl_c_before_the_block_leaves_no_keeper_that_renews(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        import spark_lease.guard.block as it
        from spark_lease.journal.runs import Runs
        def ctrl_c(*_, **__):
            raise KeyboardInterrupt
        it.Fencing.begin = Runs.note_end = ctrl_c
        try:
            with hold_lease("n", run_key="k", **SETTINGS):
                say("never")
        except KeyboardInterrupt:
            say("interrupted")
        time.sleep(60)
        """
    )
    driver.until("interrupted")
    until(lambda: not keepers_of(driver.process.pid))
    assert row(url, table)[0] is None


# Several leases, and forks


@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_last_words_go_to_no_file_that_has_the_number_of_a_closed_stream(
    start: Start, url: str, table: str, keeper: str
) -> None:
    driver = start(
        f"""
        file = open(FOLDER / "theirs", "w")
        with hold_lease("n", keeper="{keeper}", **SETTINGS):
            say(f"number {{file.fileno()}}, held")
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
        """,
        command=["sh", "-c", 'exec "$@" 2>&-', "-", sys.executable],
    )
    assert "number 2, held" in driver.until("held")
    want("n", Directive("anna", give_up=0.0), url=url, table=table)
    assert driver.end() in (75, -signal.SIGKILL, -signal.SIGALRM)
    assert (driver.folder / "theirs").read_text() == ""


@pytest.mark.postgres
def test_a_driver_whose_threads_compute_ends_itself(start: Start, proxy: Proxy) -> None:
    """Whoever waits for the GIL gets it after 5 ms, and each look at one of very many processes waits for it."""
    driver = start(
        """
        import subprocess
        SETTINGS |= dict(lease_duration=8, kill_budget=1.2)
        def compute():
            while True:
                sum(range(1000))
        with hold_lease("n", **SETTINGS):
            children = [subprocess.Popen(["sleep", "60"]) for _ in range(200)]
            for _ in range(3):
                threading.Thread(target=compute, daemon=True).start()
            say("computing")
            while True:
                try:
                    compute()
                except KeyboardInterrupt:
                    pass
        """,
        store=proxy.url,
    )
    driver.until("computing")
    driver.tree()
    proxy.stall()
    assert driver.end() == 75
    assert "killing the remaining work" in driver.log.read_text()
    until(lambda: not driver.leftovers(), timeout=10)


def test_a_keeper_that_is_stopped_spares_nothing_that_the_driver_started(start: Start) -> None:
    """The kernel ends what is tied to the two; what the work itself has started is ended by the driver then."""
    driver = start(
        """
        import signal, subprocess
        with hold_lease("n", **SETTINGS | {"lease_duration": 12}):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # a block that cannot be interrupted
            child = subprocess.Popen(["sleep", "60"], start_new_session=True)
            say("held")
            time.sleep(60)
        """
    )
    driver.until("held")
    driver.tree()
    (keeper,) = keepers_of(driver.process.pid)
    os.kill(keeper, signal.SIGSTOP)
    driver.end()
    until(lambda: not driver.leftovers(), timeout=10)


def test_several_leases_in_one_driver_are_kept_and_lost_each_for_itself(url: str) -> None:
    with hold_lease("a", url=url) as first, hold_lease("b", url=url) as second:
        assert len(keepers_of(os.getpid())) == 2
        assert first.check()
        assert second.check()
    assert keepers_of(os.getpid()) == []


FORKS = """
with hold_lease("n", **SETTINGS) as lease:
    child = os.fork()
    if not child:
        lease.check()
        try:
            lease._hold.release()
        except Exception as error:
            say(f"refused: {{error}}")
        {}
    os.waitpid(child, 0) if {} else say("does not wait")
    time.sleep(1)
    say(f"still {{lease.check()}}")
    time.sleep({})
"""


def test_a_forked_child_is_told_that_the_lease_was_given_back(start: Start) -> None:
    driver = start(
        """
    hears, says = os.pipe()
    with hold_lease("n", **SETTINGS) as lease:
        child = os.fork()
        if not child:
            os.close(says)
            os.read(hears, 1)
            try:
                lease.check()
            except LeaseLost as lost:
                say(f"child: {lost}")
            os._exit(0)
    os.close(says)
    os.waitpid(child, 0)
    """
    )
    assert driver.end() == 0, driver.log.read_text()
    assert re.search(r"child: .*process \d+, which held it, released it or no longer renews it", driver.log.read_text())


def test_a_forked_child_can_check_and_nothing_else(start: Start, url: str, table: str) -> None:
    driver = start(FORKS.format("sys.exit(0)", True, 0))
    assert driver.end() == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "a forked child cannot renew or release it" in said
    assert f"still {driver.epoch()}" in said
    assert row(url, table)[0] is None


def test_a_forked_child_notes_what_it_writes_to_by_itself(start: Start) -> None:
    """It has no channel to the keeper, and `lease.delta_rs` needs that."""
    driver = start(
        """
        with hold_lease("n", **SETTINGS) as lease:
            if not os.fork():
                try:
                    assert lease._hold.note("kind", "key", "text") == "text"
                    assert lease._hold.noted("kind") == {"key": "text"}
                    os._exit(0)
                finally:
                    os._exit(1)
            say(f"its child ended with {os.waitstatus_to_exitcode(os.wait()[1])}.")
        """
    )
    assert driver.end() == 0
    assert "its child ended with 0." in driver.log.read_text()


def test_a_forked_child_outlives_neither_a_crash_nor_the_lease(start: Start, url: str, table: str) -> None:
    driver = start(FORKS.format("say(f'child {os.getpid()} writes'); time.sleep(60)", False, 60))
    said = driver.until("still")
    child = int(said.split("child ")[2].split()[0])
    assert look(child)
    os.kill(driver.process.pid, signal.SIGKILL)
    until(lambda: row(url, table)[0] is None)
    assert not look(child)


def test_a_child_without_the_drivers_environment_does_not_outlive_a_crash(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        import subprocess
        with hold_lease("n", **SETTINGS) as lease:
            child = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60"], env={}, start_new_session=True)
            time.sleep(1)
            say(f"child {child.pid}")
            time.sleep(60)
        """
    )
    child = int(driver.until("child ").split("child ")[1].split()[0])
    family = [each.pid for each in tree(child)]
    assert len(family) == 3
    os.kill(driver.process.pid, signal.SIGKILL)
    until(lambda: row(url, table)[0] is None)
    assert not [pid for pid in family if look(pid)]


def test_a_child_that_has_just_begun_outlives_no_keeper_that_is_killed_by_its_command_line(start: Start) -> None:
    """As by pkill -9 -f: the sweeper's line is another."""
    driver = start(
        """
        import subprocess
        def line(process):
            try:
                return (process / "cmdline").read_bytes()
            except OSError:  # it has ended
                return b""
        with hold_lease("killed-by-its-line", **SETTINGS) as lease:
            keepers = [int(each.name) for each in Path("/proc").glob("[0-9]*")
                       if f"spark-lease keeper {lease.name}".encode() in line(each)]
            child = subprocess.Popen(["sleep", "60"])
            say(f"{len(keepers)} keeper, child {child.pid} begins")
            for pid in keepers:
                os.kill(pid, 9)
            time.sleep(60)
        """
    )
    child = int(driver.until("begins").split("1 keeper, child ")[1].split()[0])
    assert driver.end() == -signal.SIGKILL
    until(lambda: not look(child), 3)


@pytest.mark.parametrize(("setting", "after"), [("'never'", 3.0), ("1.5", 1.5)])
def test_a_crash_is_handed_over_when_it_was_said(
    start: Start, url: str, table: str, setting: str, after: float
) -> None:
    driver = start(
        f"with hold_lease('n', release_on_death={setting}, **SETTINGS):\n        say('held'); time.sleep(60)"
    )
    driver.until("held")
    os.kill(driver.process.pid, signal.SIGKILL)
    killed = time.monotonic()
    with hold_lease("n", url=url, table=table, poll_period=0.05):
        assert time.monotonic() - killed > after


def test_a_driver_with_very_many_files_open_is_kept_for(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        files = [open("/dev/null") for _ in range(1500)]
        with hold_lease("n", keeper="process", **SETTINGS) as lease:
            time.sleep(3)
            say(f"checked {lease.check()}")
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    assert "checked" in driver.log.read_text()
    assert row(url, table)[0] is None


@pytest.mark.parametrize("most", [96, 4096], ids=["and may not have more", "and may have more"])
def test_a_driver_with_more_children_than_files_may_be_open_is_kept_for(start: Start, most: int) -> None:
    driver = start(
        f"""
        import resource, subprocess
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, {most}))
        with hold_lease("n", keeper="process", **SETTINGS) as lease:
            children = [subprocess.Popen(["sleep", "60"]) for _ in range(70)]
            end = time.monotonic() + 6
            while time.monotonic() < end:
                time.sleep(0.1)
                lease.check()
            say("checked")
            for each in children:
                each.kill()
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    text = driver.log.read_text()
    assert "checked" in text
    assert text.count("cannot arm the kill pipe") <= 1


def test_a_log_handler_that_blocks_does_not_hold_up_the_demotion(start: Start, url: str) -> None:
    driver = start(
        """
        class Blocking(logging.Handler):
            def emit(self, record):
                if "renewal failed" in record.getMessage():
                    time.sleep(60)
        logging.getLogger().addHandler(Blocking())
        import sqlite3
        with hold_lease("n", on_lost="stop", **SETTINGS):
            other = sqlite3.connect(SETTINGS["url"].removeprefix("sqlite:///"), isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            try:
                time.sleep(60)
            except BaseException as error:
                say(f"interrupted by {type(error).__name__}")
                other.close()
                raise
        """
    )
    driver.until("interrupted by Ended", timeout=6)  # its own exit waits for the handler: that is Python's logging


def test_ctrl_c_while_it_starts_leaves_no_ghost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spawn, "Started", interrupted)
        with pytest.raises(KeyboardInterrupt) as kept:  # as a notebook keeps it
            hold_lease("n", url=url).__enter__()
    assert keepers_of(os.getpid()) == []
    with hold_lease("n", url=url, if_held="fail") as lease:
        assert lease.check()
    assert kept


@pytest.mark.parametrize("heard", ["not heard", "heard too late"])
@pytest.mark.parametrize("on_lost", ["exit", "stop"])
def test_a_grant_that_an_interrupted_wait_did_not_hear_of_is_given_back(
    on_lost: str, heard: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, settle, given_up = KeeperHold._take, KeeperHold.settle, threading.Event()

    def take_late(lease: KeeperHold, message: Any, files: Any) -> None:
        if "granted" in message:
            os.kill(os.getpid(), signal.SIGTERM)
            given_up.wait(1 if heard == "not heard" else 10)
        take(lease, message, files)

    def settle_then_hear(lease: KeeperHold) -> None:
        if heard == "heard too late":
            assert not lease.epoch
            given_up.set()
            until(lambda: lease.epoch)
        settle(lease)

    monkeypatch.setattr(KeeperHold, "_take", take_late)
    monkeypatch.setattr(KeeperHold, "settle", settle_then_hear)
    with pytest.raises(SystemExit):
        hold_lease("n", url=url, on_lost=on_lost).__enter__()
    assert row(url, "spark_lease")[0] is None


def test_it_is_given_back_also_if_the_keeper_hears_of_that_after_the_drivers_end(
    start: Start, url: str, table: str
) -> None:
    driver = start(
        """
        import signal
        from spark_lease.clock import BootClock
        from spark_lease.config.sources import configure
        from spark_lease.keeper.client import KeeperHold
        from spark_lease.stores.registry import open_notes
        take = KeeperHold._take
        def interrupted(lease, message, files):
            if "granted" in message:
                keeper = lease._started.process.pid
                notes = open_notes(configure(name="n", **SETTINGS))
                while not notes.all("n", "grant"):  # frozen amid a write, it would keep SQLite's file locked
                    time.sleep(0.01)
                os.kill(keeper, signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)  # the driver gives up meanwhile: what it was granted stays unheard
                say(f"frozen: {keeper}.")
            take(lease, message, files)
        KeeperHold._take = interrupted
        with hold_lease("n", **SETTINGS | dict(lease_duration=30)):
            say("never")
        """
    )
    keeper = int(driver.until("frozen: ").split("frozen: ")[1].split(".")[0])
    assert driver.end() == 143
    assert row(url, table)[0]
    os.kill(keeper, signal.SIGCONT)
    until(lambda: row(url, table)[0] is None)


def test_holds_leave_no_file_and_no_thread_behind(url: str) -> None:
    def left() -> int:
        gc.collect()  # what other tests left behind goes first
        return len(os.listdir("/proc/self/fd")) + threading.active_count()

    with hold_lease("n", url=url):
        pass
    time.sleep(0.2)  # nothing to wait for: its threads end
    before = left()
    for _ in range(3):
        with hold_lease("n", url=url):
            pass
    until(lambda: left() <= before, timeout=2)


def test_check_is_a_read_of_memory(url: str) -> None:
    """Against the clock and nothing else: far cheaper than a system call that could block."""
    with hold_lease("n", url=url) as lease:
        begun = time.perf_counter()
        for _ in range(10_000):
            lease.check()
        assert (time.perf_counter() - begun) / 10_000 < 20e-6


def test_settings_of_the_keeper_are_refused_with_a_sentence(url: str) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"keeper": "butler"}, "none of auto, process, thread"),
        ({"release_on_death": "soon"}, "neither local nor never nor a number of seconds"),
        ({"kill_budget": 6}, "kill_budget 6, and 1% for clocks"),
        ({"kill_budget": 0}, "must be more than 0"),
    ]
    for settings, words in refused:
        with pytest.raises(ConfigError, match=words):
            hold_lease("n", url=url, **settings)


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_what_a_child_holds_ends_with_its_parents_lease(start: Start, tmp_path: Path, keeper: str) -> None:
    driver = start(
        f"""
        with hold_lease("n", keeper={keeper!r}, **SETTINGS) as lease:
            if not os.fork():
                lease.check()
                say("child checks")
                while not (FOLDER / "released").exists():
                    time.sleep(0.01)
                try:
                    say(f"child may write: {{lease.check()}}")
                except LeaseLost as lost:
                    say(f"child refused: {{lost.reason}}")
                os._exit(0)
            time.sleep(0.5)
        (FOLDER / "released").touch()
        os.wait()
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    assert "child checks" in driver.log.read_text()
    assert "child refused" in driver.log.read_text()


def test_a_driver_that_becomes_another_program_is_not_renewed_for(start: Start, url: str, table: str) -> None:
    """By exec it keeps its number and loses its channel: the lease runs out, and the program is ended before."""
    driver = start(
        """
        with hold_lease("n", **SETTINGS):
            say("held")
            os.execvp("sh", ["sh", "-c", "while :; do date +%s.%N > $TEST_FOLDER/beat; sleep 0.01; done"])
        """
    )
    driver.until("held")
    with hold_lease("n", url=url, table=table, poll_period=0.05, acquire_timeout=20) as lease:
        granted = lease.epoch / 1000
    assert driver.end() == -signal.SIGKILL
    assert (driver.folder / "beat").stat().st_mtime < granted


def test_files_that_come_through_the_channel_are_not_inherited() -> None:
    one, other = Channel.pair()
    read, write = os.pipe()
    one.send({"file": True}, [read])
    received = other.receive(1)
    assert received and not os.get_inheritable(received[1][0])
    for each in (read, write, *received[1]):
        os.close(each)
    one.close()
    other.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a PID namespace without one of users")
def test_a_guard_in_pid_1_says_what_is_true_and_what_to_do(url: str) -> None:
    script = f"""
import logging; logging.basicConfig(level=logging.INFO)
from spark_lease import hold_lease
with hold_lease("n", url={url!r}) as lease: print("protection", lease.protection)
"""
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", script]
    done = subprocess.run(container, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "protection thread\n"
    assert "pid 1 of its container, and pid 1 cannot be killed from inside: start it by spark-lease run" in done.stderr
