"""The command line as a user meets it: real processes, real exit codes, one sentence for a mistake."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from spark_lease import __version__
from spark_lease.cli.commands import COMMANDS
from spark_lease.cli.leases import print_leases
from spark_lease.cli.settings import GROUPS
from spark_lease.cli.table import print_table
from spark_lease.config.settings import SETTINGS
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.users import unprivileged


@pytest.mark.parametrize("command", [[], *([each] for each in COMMANDS)])
def test_help_has_examples(command: list[str]) -> None:
    done = spark_lease(*command, "--help")
    assert done.returncode == 0
    if command:
        assert "examples:" in done.stdout
    if command and command[0] not in ("demo", "class-archive"):  # which have no settings
        takes_a_lease = command[0] in ("run", "submit", "config")
        assert ("--stop-budget TIME" in done.stdout) == takes_a_lease and "--kill-budget" not in done.stdout
        assert "--kill-budget TIME" in spark_lease(*command, "--help-all").stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run"], 64, "Write -- before"),
        (["submit", "--lease", "n", "--"], 64, "Nothing follows --: write after it what to submit"),
        (["runn"], 64, "invalid choice"),
        (["run", "--lease-durration", "3", "--", "true"], 64, "See spark-lease run --help"),
        (["run", "--lease", "n", "sleep", "1"], 64, "Write -- before what to run"),
        (["run", "--", "true"], 78, "which lease? Give --lease NAME"),
        (["run", "--lease", "n", "--", "true"], 78, "each host would have a master of its own. Give --url URL"),
        (["status"], 78, "no lease store is named"),
        (["run", "--lease", "n", "--url", "postgres://db/x", "--", "true"], 78, "did you mean postgresql://?"),
        (["run", "--lease", "n", "--url", "jdbc:postgresql://db/x", "--", "true"], 78, "did you mean postgresql://?"),
        (["run", "--lease", "n", "--lease-duration", "x", "--", "true"], 78, "'x' is not a time of 0 or more: 90, 15m"),
        (["run", "--lease", "n", "--stop-budget", "20", "--", "true"], 78, "must be less than lease_duration"),
        (["run", "--lease", "n", "--config", "none.toml", "--", "true"], 78, "none.toml: cannot be read"),
        (["run", "--lease", "n", "--url", "oracle://db", "--", "true"], 78, "names no lease store; known here"),
        (["run", "--lease", "n", "--holder", "x" * 250, "--", "true"], 78, "250 fit: shorten it"),
        (["run", "--lease", "n", "--", "no-such-command"], 127, "ERROR n: no-such-command: command not found"),
        (["submit", "--lease", "n", "--", "--master", "local", "none.py"], 78, "none.py does not exist"),
        (["submit", "--lease", "n", "--", "--class", "x.Y", "app.jar"], 78, "no app.py among the arguments"),
        (["submit", "--lease", "n", "--spark-submit", "none", "--", __file__], 78, "there is no none: pip install"),
        (["run", "--lease", "n", "--ends-with", "me", "--", "true"], 78, "'me' is not the PID of the parent process"),
        (["run", "--lease", "n", "--ends-with", "999999999", "--", "true"], 78, "999999999 has ended already"),
        (["run", "--lease", "n", "--password", "hunter2", "--", "true"], 64, "unknown: --password\n"),
        (["run", "--lease", "n", "--password=hunter2", "--", "true"], 64, "unknown: --password\n"),
        (["run", "nightly", "--local", "--", "true"], 64, "unknown: nightly\nThe lease is named by --lease NAME\n"),
        (["run", "--name", "n", "--local", "--", "true"], 64, "unknown: --name\nThe lease is named by --lease NAME\n"),
        (["history", "n", "--lease", "m", "--local"], 78, "n or --lease m? Give one of them"),
        (["pause", "--local"], 78, "which lease? Give --lease NAME"),
        (["run", "--lease", "n ", "--local", "--", "true"], 78, "name: 'n ' begins or ends with a blank"),
        (["status", "--url", "sqlite:////none/x.db"], 78, "the folder /none does not exist: create it"),
        (["init", "--url", "sqlite:////none/x.db"], 78, "does not exist: create it"),
        (["run", "--lease", "n", "--url", "sqlite:////tmp", "--", "true"], 78, "/tmp is a folder: name a file in it"),
    ],
)
def test_a_users_mistake_is_one_sentence(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    done = spark_lease(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_trying_it_out_without_a_store_says_what_that_is_worth(tmp_path: Path) -> None:
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    done = spark_lease("run", "--lease", "n", "--local", "--", "true", env=environ)
    assert done.returncode == 0
    assert "it excludes no job elsewhere" in done.stderr
    assert last_line(done)["store"] == f"sqlite:///{tmp_path}/spark_lease/leases.db"
    assert spark_lease("status", "n", "-v", env=environ | {"SPARK_LEASE_URL": "local"}).returncode == 0


def test_every_setting_has_one_place_in_the_help() -> None:
    grouped = " ".join(GROUPS.values()).split()
    assert len(grouped) == len(set(grouped)) and set(grouped) < set(SETTINGS)


def test_the_version(tmp_path: Path) -> None:
    assert spark_lease("--version").stdout == f"spark-lease {__version__}\n"


@pytest.mark.parametrize("command", [["run"], ["submit"]])
def test_a_guard_inside_one_of_the_same_lease_does_not_wait_for_itself(url: str, command: list[str]) -> None:
    inner = [COMMAND, *command, "--lease", "n", "--url", url, "--", __file__]
    done = spark_lease("run", "--lease", "n", "--url", url, "--", *inner, timeout=30)
    assert done.returncode == 78, done.stderr
    assert "'n' is already held by this process or by one that started it: guard it once" in done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["lease"], each["exit_code"]) for each in told] == [("n", 78), ("n", 78)]


def test_a_guard_inside_one_of_another_lease_runs_and_one_around_both_is_refused(url: str, tmp_path: Path) -> None:
    def run(name: str, *words: str, url: str = url) -> list[str]:
        return [COMMAND, "run", "--lease", name, "--url", url, *words, "--"]

    elsewhere = run("a", url=f"sqlite:///{tmp_path}/other.db")
    done = spark_lease(*run("a")[1:], *run("b"), *elsewhere, "true")
    assert done.returncode == 0, done.stderr
    done = spark_lease(*run("a")[1:], *run("b"), *run("a"), "true", timeout=30)
    assert (done.returncode, "'a' is already held" in done.stderr) == (78, True)
    off = ["--enabled", "false"]
    done = spark_lease(*run("a", *off)[1:], *run("a", *off), "true")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["run", "submit"])
def test_a_signal_of_the_keyboard_before_anything_has_begun_is_told_as_well(command: str, url: str) -> None:
    words = f"""if True:
        import os, signal, sys
        from spark_lease.cli import {command}
        from spark_lease.cli.main import main
        {command}.begin_outcome = lambda file: os.kill(os.getpid(), signal.SIGINT)
        sys.exit(main(["{command}", "--lease", "n", "--url", "{url}", "--", "true"]))
    """
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, last_line(done)["outcome"], last_line(done)["lease"]) == (130, "interrupted", "n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--lease", "n", "--local", "--config", "c.toml", "--", "true"],
        ["run", "--lease", "n", "--local", "--outcome-file", "o.json", "--", "true"],
        ["history", "n", "--local", "--html", "h.html"],
    ],
)
def test_a_working_folder_that_is_gone_is_one_sentence(words: list[str], tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", COMMAND, *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False, env=os.environ | {"HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 78, done.stderr
    assert "is relative, and the working folder does not exist any more" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("table", ["postgresql://u:hunter2@h/t", "s3://key:hunter2@bucket/t", "http://h/t"])
def test_what_can_never_be_claimed_is_not_noted_and_no_password_is_shown(url: str, table: str) -> None:
    spark_lease("init", "--url", url)
    done = spark_lease("fence", "add", "--lease", "n", "--url", url, "--on", table)
    assert done.returncode == 78, done.stdout
    listed = spark_lease("fence", "list", "--lease", "n", "--url", url)
    said = done.stdout + done.stderr + listed.stdout + listed.stderr
    assert "hunter2" not in said and "no table is fenced" in listed.stdout
    shown = spark_lease("config", "--fence-tables", table)
    assert "hunter2" not in shown.stdout + shown.stderr


@pytest.mark.postgres
@pytest.mark.parametrize("own", ["{}", "public.{}_notes", "spark_lease_fence", '"spark_lease_fence_table"'])
def test_no_lease_is_fenced_from_its_own_tables(pg_url: str, table: str, own: str) -> None:
    words = ["--lease", "n", "--url", pg_url, "--table", table, "--on", own.format(table)]
    for more in ([], ["--print-sql"]):
        done = spark_lease("fence", "add", *words, *more)
        assert (done.returncode, "is a table of spark_lease itself" in done.stderr) == (78, True), done.stderr


def test_a_file_that_is_not_executable_is_126(url: str, tmp_path: Path) -> None:
    (tmp_path / "script").touch(0o644)
    done = spark_lease("run", "--lease", "n", "--url", url, "--", str(tmp_path / "script"))
    assert (done.returncode, last_line(done)["store"]) == (126, url)
    assert "is not executable (chmod +x)" in done.stderr


def test_the_outcome_file_is_that_of_this_run(url: str, tmp_path: Path) -> None:
    file = tmp_path / "outcome.json"
    command = ["run", "--lease", "n", "--url", url, "--outcome-file", str(file), "--"]
    done = spark_lease(*command, "sh", "-c", "exit 3")
    assert json.loads(file.read_text()) == last_line(done) and last_line(done)["exit_code"] == 3
    spark_lease(*command, sys.executable, "-c", f"import os; assert not os.path.exists({str(file)!r})")
    assert json.loads(file.read_text())["outcome"] == "finished"
    assert sorted(each.name for each in tmp_path.iterdir() if "outcome" in each.name) == ["outcome.json"]
    wrong = spark_lease(*command[:-2], f"{tmp_path}/none/x", "--", "true")
    assert (wrong.returncode, "does not exist: create it" in wrong.stderr) == (78, True)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    (tmp_path / "job.py").write_text("important = 1")
    for name, says in {"pipe": "no ordinary file", "stdout": "no ordinary file", "job.py": "something else"}.items():
        wrong = spark_lease(*command[:-2], f"{tmp_path}/{name}", "--", "true")
        assert (wrong.returncode, says in wrong.stderr) == (78, True), wrong.stderr
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "stdout").is_symlink()
    assert (tmp_path / "job.py").read_text() == "important = 1"


def test_an_outcome_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "sealed").mkdir()
    words = ["-m", "spark_lease", "run", "--lease", "n", f"--url=sqlite:///{tmp_path}/l.db"]
    words, environ = unprivileged([*words, "--outcome-file", f"{tmp_path}/sealed/o", "--", "touch", "begun"], tmp_path)
    (tmp_path / "sealed").chmod(0o555)
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, (tmp_path / "begun").exists()) == (78, False), done.stderr
    assert "sealed/o: its folder is not writable for this user" in done.stderr


def test_a_command_that_is_killed_says_so(url: str) -> None:
    done = spark_lease("run", "--lease", "n", "--url", url, "--", "sh", "-c", "kill -9 $$")
    assert (done.returncode, last_line(done)["reason"]) == (137, "the command was ended by SIGKILL")
    assert "ERROR n: the command was ended by SIGKILL" in done.stderr


def test_a_url_that_is_no_text_and_a_folder_for_a_command_are_said(url: str, tmp_path: Path) -> None:
    done = spark_lease("run", "--lease", "n", "--url", os.fsdecode(b"sqlite:////tmp/\xff.db"), "--", "true")
    assert (done.returncode, "Traceback" in done.stderr) == (78, False)
    assert "has bytes that are not UTF-8" in done.stderr
    done = spark_lease("run", "--lease", "n", "--url", url, "--", str(tmp_path))
    assert (done.returncode, last_line(done)["reason"]) == (126, f"{tmp_path}: is a folder")


def test_the_outcome_file_tells_of_wrong_settings_too_and_is_not_that_of_a_nested_command(
    url: str, tmp_path: Path
) -> None:
    file = tmp_path / "outcome.json"
    file.write_text('{"epoch": 1}')
    environ = os.environ | {"SPARK_LEASE_OUTCOME_FILE": str(file)}
    wrong = ["--lease", "n", "--url", url, "--lease-duration", "x", "--"]
    for command in ("run", "submit"):
        assert spark_lease(command, *wrong, "x.py", env=environ).returncode == 78
        assert json.loads(file.read_text())["outcome"] == "misconfigured"
        file.unlink()
    inner = f"{COMMAND} run --lease m --url {url}"
    outer = ["run", "--lease", "n", "--url", url, "--", "sh", "-c"]
    script = f"{inner} -- true; {inner} --lease-duration x -- true; test $? = 78 && test ! -e {file}"
    assert spark_lease(*outer, script, env=environ).returncode == 0
    assert json.loads(file.read_text())["lease"] == "n"


def test_the_outcome_file_tells_of_a_spark_submit_that_never_came_to_its_script(url: str, tmp_path: Path) -> None:
    file, program = tmp_path / "outcome.json", tmp_path / "spark-submit"
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    words = ["--lease", "n", "--url", url, "--outcome-file", str(file), "--spark-submit", str(program)]
    done = spark_lease("submit", "--contain", "required", *words, "--", __file__)
    assert (done.returncode, last_line(done)["outcome"]) == (7, "failed"), done.stderr
    assert json.loads(file.read_text()) == last_line(done)
    assert "before its script asked this process for the lease" in last_line(done)["reason"]


def test_a_flag_may_stand_before_the_command(url: str) -> None:
    done = spark_lease("-v", "run", "--lease", "n", "--url", url, "--", "echo", "--", "worked")
    assert (done.returncode, "-- worked" in done.stdout) == (0, True), done.stderr


def test_a_name_behind_two_dashes_is_the_name(url: str) -> None:
    for name in ("other", "nightly"):
        assert spark_lease("run", "--lease", name, "--url", url, "--", "true").returncode == 0
    environ = os.environ | {"SPARK_LEASE_NAME": "other", "SPARK_LEASE_URL": url}
    done = subprocess.run([COMMAND, "pause", "--", "nightly"], env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "nightly"), done.stderr


def test_an_epoch_of_no_calendar_is_shown_all_the_same(url: str) -> None:
    assert spark_lease("run", "--lease", "n", "--url", url, "--", "true").returncode == 0
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database, database:
        database.execute("UPDATE spark_lease SET broker_name = 'y:1:2:3', time = 1000, epoch = 999999999999999999")
    for words in (["status"], ["status", "--json"], ["history", "n"], ["history", "n", "--since", "9999999d"]):
        done = spark_lease(*words, "--url", url)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_log_lines_have_times_in_utc(url: str) -> None:
    said = spark_lease("run", "--lease", "n", "--url", url, "--", "true").stderr
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z spark-lease INFO n: acquired, .+, in sqlite:", said)


TITLES = ["LEASE", "STATE", "HOLDER", "SINCE", "LEFT"]


@pytest.mark.parametrize(("output", "code"), [("> /dev/full", 74), (">&-", 0), ("<&-", 0)])
def test_a_command_that_cannot_write_its_output_says_so(url: str, output: str, code: int) -> None:
    assert spark_lease("run", "--lease", "n", "--url", url, "--", "true").returncode == 0
    for words in ("status", "history n", "release n --force"):
        line = f"{COMMAND} {words} --url {url} {output}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert (": No space left on device" in done.stderr) == (code == 74)


def test_an_exit_code_outlives_its_reader(url: str) -> None:
    assert spark_lease("run", "--lease", "n", "--url", url, "--", "true").returncode == 0
    line = f"PYTHONUNBUFFERED= {COMMAND} status none --json --url {url} | (exec <&-; sleep 2); exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr


def test_a_wait_goes_on_without_a_reader_of_its_progress(url: str) -> None:
    """`pause --now 2>&1 | head -1`: an end with 0 would say that the lease is free."""
    assert spark_lease("run", "--lease", "n", "--url", url, "--", "true").returncode == 0
    wait = f"{COMMAND} transfer n --to mars --anyway --wait --within 1 --for 1 --url {url} 2>&1"
    done = subprocess.run(["bash", "-c", f"{wait} | (exec <&-; sleep 1); exit ${{PIPESTATUS[0]}}"])
    assert done.returncode == 99


def test_a_wide_table_is_made_to_fit_its_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["FROM", "TO", "HOLDER", "HOST"], ["2026-11-20T06:30:00.250Z", "≤ 2026-11-20T06:31:00.750Z", "h" * 60, ""]]
    print_table(rows)
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == rows[1][0], "whole, for a program that reads it"
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(rows)
    titles, cells = capsys.readouterr().out.splitlines()
    assert titles.split() == ["FROM", "TO", "HOLDER"] and len(cells) == 60
    assert cells.startswith("2026-11-20T06:30:00Z  ≤ 2026-11-20T06:31:00Z  hhh")


def test_status_fits_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"lease": "n" * 30, "state": "held", "in_doubt": False, "expires_in": 28.13, "directive": "paused by anna"}
    row |= {"holder": f"{'h' * 60}:1:2:3", "since": "2026-11-20T06:30:00Z"}
    print_leases([row])
    assert len(capsys.readouterr().out.splitlines()[1]) > 120, "whole, for a program that reads it"
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_leases([row])
    titles, cells, directive = capsys.readouterr().out.splitlines()
    assert titles.split() == TITLES and len(cells) <= 80
    assert cells.split()[1::2] == ["held", row["since"], "s"] and cells.split()[4] == "28"
    assert directive.endswith(": paused by anna")
    print_leases([row | {"lease": "n" * 90}])
    titles, cells, directive = capsys.readouterr().out.splitlines()
    assert titles.split() == ["LEASE", "STATE", "HOLDER", "LEFT"] and len(cells) <= 80


def test_status_shows_held_free_and_unknown(url: str) -> None:
    inner = [COMMAND, "status", "--url", url, "--json", "held"]
    done = spark_lease("run", "--lease", "held", "--url", url, "--", *inner)
    seen, outcome = json.loads("\n".join(done.stdout.splitlines()[:-1])), last_line(done)
    assert [row["state"] for row in seen] == ["held"]
    assert seen[0]["holder"] == outcome["holder"]
    assert 25 < seen[0]["expires_in"] <= 30
    table = spark_lease("status", "--url", url)
    assert [line.split() for line in table.stdout.splitlines()] == [TITLES, ["held", "free"]]
    assert spark_lease("status", "--wide", "--url", url).stdout.splitlines()[1].split()[2] == str(outcome["epoch"])
    details = dict(line.split(maxsplit=1) for line in spark_lease("status", "held", "--url", url).stdout.splitlines())
    assert (details["lease"], details["state"], details["epoch"]) == ("held", "free", str(outcome["epoch"]))
    unknown = spark_lease("status", "none", "--url", url)
    assert unknown.returncode == 1
    assert "none: there is no such lease" in unknown.stderr


def test_status_makes_nothing(tmp_path: Path, url: str) -> None:
    assert spark_lease("status", "--url", url).returncode == 78
    assert list(tmp_path.iterdir()) == []


def test_init_makes_the_table_once(url: str) -> None:
    assert "CREATE TABLE" in spark_lease("init", "--url", url).stdout
    assert "exists already" in spark_lease("init", "--url", url).stdout
    assert "no lease was ever taken" in spark_lease("status", "--url", url).stdout


@pytest.mark.postgres
def test_on_postgresql_the_table_is_made_by_init(pg_url: str, table: str) -> None:
    settings = ["--lease", "n", "--url", pg_url, "--table", table]
    refused = spark_lease("run", *settings, "--", "true")
    assert (refused.returncode, "run spark-lease init" in refused.stderr) == (78, True)
    sql = spark_lease("init", *settings, "--print-sql").stdout
    with psycopg2.connect(pg_url) as connection, connection.cursor() as cursor:
        cursor.execute(sql)  # as a DBA would
    connection.close()
    assert spark_lease("run", *settings, "--", "true").returncode == 0
    assert "exists already" in spark_lease("init", *settings).stdout


def test_config_says_where_each_value_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text("poll_period = 2")
    monkeypatch.setenv("SPARK_LEASE_STOP_BUDGET", "3")
    monkeypatch.setenv("SPARK_LEASE_URL", "postgresql://u:hunter2@db/x")
    done = spark_lease("config", "--lease-duration", "12", "--config", str(tmp_path / "c.toml"), "--json")
    shown = json.loads(done.stdout)
    assert shown["lease_duration"] == {"value": "12", "from": "command line"}
    assert shown["stop_budget"] == {"value": "3", "from": "environment"}
    assert shown["poll_period"]["from"] == f"file {tmp_path / 'c.toml'}"
    assert shown["renew_deadline"] == {"value": "6", "from": "default"}
    assert "hunter2" not in done.stdout
    assert "lease_duration" in spark_lease("config").stdout


@pytest.mark.shows("P10")
def test_a_store_that_is_down_is_69_and_never_99() -> None:
    for words in (["--acquire-timeout", "1.5"], ["--acquire-timeout", "1.5", "--if-held", "skip"]):
        timings = ["--lease-duration", "3", "--url", "postgresql://u@127.0.0.1:1/x", *words]
        done = spark_lease("run", "--lease", "n", *timings, "--", "true")
        assert done.returncode == 69
        assert last_line(done)["outcome"] == "unreachable"
        assert "Connection refused" in done.stderr


def test_the_outcome_of_settings_that_do_not_fit_names_the_lease() -> None:
    done = spark_lease("run", "--lease", "n", "--local", "--lease-duration", "0", "--", "true")
    assert (done.returncode, last_line(done)["lease"], last_line(done)["outcome"]) == (78, "n", "misconfigured")


def test_columns_that_do_not_fit_are_left_out_before_an_ending_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["FROM", "ENDED BY", "EPOCH", "HOLDER", "HOST"]]
    rows += [["2026-11-20T06:30:00.250Z", "taken by force", "1796067524453", "h" * 60, "x" * 30]]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns, titles in (
        (80, ["FROM", "ENDED", "BY", "EPOCH", "HOLDER", "HOST"]),
        (52, ["FROM", "ENDED", "BY", "HOLDER"]),
    ):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_table(rows, whole=("ENDED BY", "EPOCH"), spare=("EPOCH", "HOST"))
        shown = capsys.readouterr().out.splitlines()
        assert shown[0].split() == titles and "taken by force" in shown[1] and len(shown[1]) <= columns
