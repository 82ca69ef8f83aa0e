"""Run keys: what two schedulers both start is done once."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from spark_lease import AlreadyDone, Lease, LeaseLost, hold_lease, leased
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.errors import ConfigError, RecordUnreadable, StoreError
from spark_lease.holds import open_contender
from spark_lease.journal.runs import Run, runs_of
from spark_lease.stores.registry import open_notes


def runs(url: str) -> list[Run]:
    with closing(open_notes(configure(name="n", url=url))) as notes:
        return runs_of(notes, "n")


def spark_lease(*words: str, url: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).with_name("spark-lease")), *words]
    environ = os.environ | {"SPARK_LEASE_URL": url, "SPARK_LEASE_POLL_PERIOD": "0.05"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


def ends(process: subprocess.Popen[str]) -> tuple[int, dict[str, object]]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, json.loads(said.splitlines()[-1])


def test_a_finished_key_is_not_run_again_and_another_is(url: str) -> None:
    with hold_lease("n", url=url, run_key="2026-11-20") as lease:
        epoch = lease.epoch
    with pytest.raises(AlreadyDone, match=rf"'2026-11-20' was done under epoch {epoch}"):
        hold_lease("n", url=url, run_key="2026-11-20").__enter__()
    with hold_lease("n", url=url, run_key="2026-11-21"):
        pass
    assert [(run.key, run.outcome) for run in runs(url)] == [("2026-11-20", "finished"), ("2026-11-21", "finished")]


@pytest.mark.parametrize(
    ("code", "outcome"), [(None, "finished"), (0, "finished"), (3, "failed"), ("no data", "failed"), ("", "failed")]
)
def test_a_run_that_exits_has_the_outcome_of_its_exit_code(url: str, code: object, outcome: str) -> None:
    with pytest.raises(SystemExit), hold_lease("n", url=url, run_key="k"):
        sys.exit(code)
    assert [run.outcome for run in runs(url)] == [outcome]


def test_a_run_that_failed_is_run_again_under_a_new_epoch(url: str) -> None:
    with pytest.raises(ZeroDivisionError), hold_lease("n", url=url, run_key="k"):
        1 / 0  # noqa: B018
    with hold_lease("n", url=url, run_key="k"):
        pass
    failed, finished = runs(url)
    assert (failed.outcome, finished.outcome) == ("failed", "finished")
    assert failed.epoch < finished.epoch
    assert failed.started <= failed.finished <= finished.started


def test_a_run_that_never_ended_is_run_again(url: str) -> None:
    killed = spark_lease("run", "--lease", "n", "--run-key", "k", "--lease-duration", "1", "--", "sleep", "60", url=url)
    while not any(run.outcome == "begun" for run in runs(url)):
        assert killed.poll() is None
    killed.kill()
    killed.communicate()
    code, outcome = ends(spark_lease("run", "--lease", "n", "--run-key", "k", "--", "true", url=url))
    assert (code, outcome["outcome"], outcome["run_key"]) == (0, "finished", "k")
    assert [run.outcome for run in runs(url)] == ["begun", "finished"]


@pytest.mark.shows("P8")
@pytest.mark.parametrize(("if_done", "exit_code"), [("done", 0), ("skip", 99)])
def test_two_schedulers_fire_one_day_and_it_is_produced_once(
    url: str, tmp_path: Path, if_done: str, exit_code: int
) -> None:
    settings = ["--lease", "n", "--run-key", "2026-11-20", "--if-done", if_done]
    produce = ["sh", "-c", f"echo produced >> {tmp_path}/days; sleep 0.3"]
    both = [spark_lease("run", *settings, "--", *produce, url=url) for _ in range(2)]
    ended = sorted((ends(each) for each in both), key=lambda each: str(each[1]["outcome"]))
    assert [(code, outcome["outcome"]) for code, outcome in ended] == [(exit_code, "already done"), (0, "finished")]
    assert (tmp_path / "days").read_text() == "produced\n"


def test_an_interrupted_command_is_noted_as_such(url: str) -> None:
    process = spark_lease("run", "--lease", "n", "--run-key", "k", "--", "sleep", "60", url=url)
    while not runs(url):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert ends(process)[0] == 143
    assert [run.outcome for run in runs(url)] == ["interrupted"]


def test_a_block_completes_keys_of_its_own_with_numbers(url: str) -> None:
    with hold_lease("n", url=url) as lease:
        for day in ("a", "b"):
            lease.complete(day, rows=7)
            lease.complete(day, rows=7)
    assert [(run.key, dict(run.counts)) for run in runs(url)] == [("a", {"rows": 7}), ("b", {"rows": 7})]


def test_a_former_master_cannot_finish_a_key_and_learns_that_it_is_none(url: str) -> None:
    """Frozen past its lease before it could say that it was done: its own deadline is not what holds it back here."""
    config = configure(name="n", url=url, lease_duration=1)
    zombie, successor = (open_contender(config, BootClock()) for _ in range(2))
    with closing(zombie), closing(successor):
        zombie.acquire()
        successor.acquire()
        zombie._deadline.publish(BootClock().now() + 60, BootClock().ahead())
        with pytest.raises(LeaseLost, match="taken"):
            zombie.runs.complete("k", counts={})
        assert runs(url) == []
        successor.runs.complete("k", counts={})
        assert [run.epoch for run in runs(url)] == [successor.epoch]


def test_two_masters_in_turn_cannot_both_finish_one_key(url: str) -> None:
    config = configure(name="n", url=url)
    first, second = (open_contender(config, BootClock()) for _ in range(2))
    with closing(first), closing(second):
        first.acquire()
        first.runs.complete("k", counts={})
        first.release()
        second.acquire()
        assert second.runs.is_done("k")
        with pytest.raises(AlreadyDone, match=f"'k' was done under epoch {first.epoch}"):
            second.runs.complete("k", counts={})


def test_what_cannot_be_noted_as_done_is_said_by_the_exit_code(url: str) -> None:
    """It would be run again, and whoever started it has to know."""
    spoil = f"from pathlib import Path; p = Path({url.removeprefix('sqlite:///')!r}); p.unlink(); p.mkdir()"
    settings = ["--lease", "n", "--run-key", "k", "--lease-duration", "3"]
    code, outcome = ends(spark_lease("run", *settings, "--", sys.executable, "-c", spoil, url=url))
    assert code in (69, 75)
    assert outcome["outcome"] in ("unreachable", "lost")


def test_a_decorated_main_is_left_out_when_its_key_is_done(url: str) -> None:
    ran: list[str] = []

    @leased("n", url=url, run_key="k")
    def main() -> None:
        ran.append("once")

    main()
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ran, ended.value.code) == (["once"], 0)


def test_a_decorated_main_of_many_days_fails_where_one_of_them_is_done_already(url: str) -> None:
    @leased("n", url=url, run_key="week", keeper="thread")
    def main(lease: Lease) -> None:
        raise AlreadyDone(lease.name, "monday", 1)

    with pytest.raises(AlreadyDone):
        main()
    assert [(run.key, run.outcome) for run in runs(url)] == [("week", "failed")]


def test_old_runs_are_forgotten(url: str) -> None:
    with hold_lease("n", url=url, run_key="old"):
        pass
    time.sleep(0.2)  # so that it is older than is remembered
    with hold_lease("n", url=url, run_key="new", run_retention=0.2):
        pass
    assert [run.key for run in runs(url)] == ["new"]


def test_keys_of_a_blocks_own_are_forgotten_too(url: str) -> None:
    with hold_lease("n", url=url) as lease:
        lease.complete("old")
    time.sleep(0.2)  # so that it is older than is remembered
    with hold_lease("n", url=url, run_retention=0.2) as lease:
        lease.complete("new")
    assert [run.key for run in runs(url)] == ["new"]


@pytest.mark.parametrize("key", ["x" * 251, "a\nb"])
def test_a_key_that_is_none_is_refused(url: str, key: str) -> None:
    with pytest.raises(ConfigError, match=r"run_key: .* is not a printable text"):
        hold_lease("n", url=url, run_key=key)


@pytest.mark.parametrize("key", [None, "", " a", "a\x1b[31m", "x" * 251, 20261120])
def test_a_key_of_a_blocks_own_that_is_none_is_refused(url: str, key: Any) -> None:
    with hold_lease("n", url=url, keeper="thread") as lease:
        lease.complete("another")
        for ask in (lease.is_done, lease.complete):
            with pytest.raises(ConfigError, match=r"run_key: .* is not a printable text"):
                ask(key)


def test_a_count_may_be_a_number_of_numpy(url: str) -> None:
    class Count:
        def __int__(self) -> int:
            return 3

    with hold_lease("n", url=url, keeper="thread") as lease:
        lease.complete("k", rows=Count())  # type: ignore[arg-type]
    assert [run.counts for run in runs(url)] == [{"rows": 3}]


def test_a_notes_table_that_is_locked_for_a_while_delays_a_run_and_fails_none(pg_url: str, table: str) -> None:
    settings: Any = {"url": pg_url, "table": table, "create_table": True, "keeper": "thread", "attempt_timeout": 1.0}
    with hold_lease("n", **settings):
        pass
    config = configure(name="n", **settings)
    engine = create_engine(usable_url(config))
    with engine.connect() as other:
        other.execute(text(f"LOCK TABLE {config.notes_table}"))
        unlocked = threading.Timer(2.5, other.rollback)  # more than one request waits
        unlocked.start()
        with hold_lease("n", run_key="k", **settings):
            assert unlocked.finished.is_set()
        unlocked.join()
    engine.dispose()
    with closing(open_notes(config)) as notes:
        assert [(run.key, run.outcome) for run in runs_of(notes, "n")] == [("k", "finished")]


def test_a_notes_table_that_is_gone_at_the_end_is_no_wrong_setting(url: str) -> None:
    with hold_lease("n", url=url, keeper="thread", create_table=True):
        pass
    with pytest.raises(StoreError, match="does not exist") as raised:
        with hold_lease("n", url=url, run_key="k", keeper="thread", create_table=False) as lease:
            assert lease.epoch
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
                database.execute("DROP TABLE spark_lease_notes")
    assert raised.value.exit_code == 69


def test_the_command_line_lists_them(url: str) -> None:
    with hold_lease("n", url=url, run_key="2026-11-20"):
        pass
    process = spark_lease("runs", "n", url=url)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert said.splitlines()[0].split()[:3] == ["KEY", "OUTCOME", "EPOCH"]
    assert said.splitlines()[1].split()[:2] == ["2026-11-20", "finished"]
    process = spark_lease("runs", "m", url=url)
    _, problem = process.communicate(timeout=30)
    assert process.returncode == 1 and problem.startswith("spark-lease: m: there is no such lease in ")


def test_a_run_key_is_told_to_the_work_and_is_no_setting_of_what_that_guards(url: str, tmp_path: Path) -> None:
    inner = [
        str(Path(sys.executable).with_name("spark-lease")),
        "run",
        "--lease",
        "m",
        "--",
        "sh",
        "-c",
        "echo inner $SPARK_LEASE_RUN_KEY.",
    ]
    command = ["sh", "-c", f"echo outer $SPARK_LEASE_RUN_KEY.; {shlex.join(inner)}"]
    said, _ = spark_lease("run", "--lease", "n", "--run-key", "k", "--", *command, url=url).communicate(timeout=30)
    assert "outer k." in said
    assert "inner ." in said


def test_a_key_is_not_done_when_work_that_was_left_behind_had_to_be_ended(url: str) -> None:
    command = ["sh", "-c", "(sleep 60) & exit 0"]
    code, outcome = ends(spark_lease("run", "--lease", "n", "--run-key", "k", "--", *command, url=url))
    assert (code, outcome["outcome"]) == (1, "failed")
    assert "left processes running, which were ended: its run key 'k' is not marked as done" in str(outcome["reason"])
    assert [run.outcome for run in runs(url)] == ["interrupted"]


def test_without_a_key_work_that_was_left_behind_is_told_as_well(url: str) -> None:
    process = spark_lease("run", "--lease", "n", "--", "sh", "-c", "(sleep 60) & exit 0", url=url)
    said, log = process.communicate(timeout=60)
    outcome = json.loads(said.splitlines()[-1])
    assert (process.returncode, outcome["outcome"]) == (0, "finished")
    assert outcome["reason"] == "the command left processes running, which were ended"
    assert "WARNING n: the command left processes running, which were ended" in log


def test_where_nothing_is_noted_work_that_was_left_behind_is_no_failure(url: str) -> None:
    command = ["sh", "-c", "(sleep 60) & exit 0"]
    words = ["run", "--lease", "n", "--run-key", "k", "--enabled", "false", "--", *command]
    code, outcome = ends(spark_lease(*words, url=url))
    assert (code, outcome["outcome"]) == (0, "finished")


def test_a_key_is_not_done_when_a_signal_ended_the_block_that_swallowed_it(url: str) -> None:
    with pytest.raises(SystemExit), hold_lease("n", url=url, run_key="k"):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
    assert [run.outcome for run in runs(url)] == ["interrupted"]


def test_a_lease_inside_another_does_not_inherit_its_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LEASE_RUN_KEY", "k")
    with hold_lease("n", url=url) as outer:
        for _ in range(2):
            with hold_lease("inner", url=url) as inner:
                assert (outer.run_key, inner.run_key) == ("k", "")


def test_a_switched_off_lease_notes_nothing(url: str) -> None:
    for _ in range(2):
        with hold_lease("n", url=url, run_key="k", enabled=False) as lease:
            lease.complete("another")
    assert runs(url) == []


def test_a_note_of_a_run_that_holds_garbage_is_refused_and_left_alone(url: str) -> None:
    with hold_lease("n", url=url, run_key="k") as lease:
        lease.complete("k")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as store:
        store.execute("UPDATE spark_lease_notes SET content = 'done, I think' WHERE kind = 'run-done'")
    store.close()
    with pytest.raises(RecordUnreadable, match="cannot read a note of a run: 'done, I think'"):
        hold_lease("n", url=url, run_key="k").__enter__()
    listed = spark_lease("runs", "n", url=url)
    _, said = listed.communicate(timeout=60)
    assert (listed.returncode, "Traceback" in said) == (69, False)
