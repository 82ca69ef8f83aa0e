"""`spark-lease history`: its table, its JSON, its exit codes, and what it says where it cannot answer."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from spark_lease import hold_lease
from spark_lease.cli.main import main
from spark_lease.clock import BootClock, iso_text
from spark_lease.config.sources import configure
from spark_lease.election.record import taken
from spark_lease.holds import open_contender
from spark_lease.stores.registry import open_store
from tests.support.command import COMMAND


def held(url: str, table: str = "spark_lease") -> int:
    lease = open_contender(configure(name="n", url=url, table=table, create_table="true"), BootClock())
    lease.acquire()
    lease.release()
    lease.close()
    return lease.epoch


def told(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """What it printed, and the one sentence that it complained with."""
    out, err = capsys.readouterr()
    assert "Traceback" not in err and err.count("\n") <= 1
    return out, err


def test_a_table_for_people_and_json_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    epochs = [held(url) for _ in range(2)]
    assert main(["history", "n", "--url", url]) == 0
    out, _ = told(capsys)
    header, first, second, _, check = out.splitlines()
    assert header.split("  ")[0] == "FROM (UTC)" and str(epochs[0]) in first and str(epochs[1]) in second
    assert check == "check  no two of 2 held it at one time"
    assert main(["history", "n", "--url", url, "--json"]) == 0
    said = json.loads(told(capsys)[0])
    assert [each["epoch"] for each in said["holds"]] == epochs
    assert [each["from"] for each in said["holds"]] == [iso_text(each / 1000) for each in epochs]
    assert (said["overlaps"], said["not_exact"], said["holds"][0]["ended_by"]) == ([], 0, "released")


def test_since_leaves_out_what_had_ended(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    held(url)
    assert main(["history", "n", "--url", url, "--since", "1h"]) == 0
    assert "released" in told(capsys)[0]
    assert main(["history", "n", "--url", url, "--since", "2999-01-01T06:30"]) == 0
    assert told(capsys)[0] == "no contender has held n since 2999-01-01T06:30:00Z\n"


def test_two_that_held_it_at_one_time_end_it_with_2(
    url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A row was deleted under its holder."""
    config = configure(name="n", url=url)
    lease = open_contender(config, BootClock())
    lease.acquire()
    with create_engine(url).begin() as connection:
        connection.execute(text("DELETE FROM spark_lease"))
    with closing(open_store(config)) as store:
        store.swap("n", None, taken(None, holder="lyon:1", duration=30.0))
    time.sleep(0.2)
    with pytest.raises(Exception, match="taken"):
        lease.renew()
    lease.note_loss()
    lease.close()
    assert main(["history", "n", "--url", url, "--html", str(tmp_path / "n.html")]) == 2
    assert "TWO HELD IT" in told(capsys)[1]
    assert "Two held it at one time" in (tmp_path / "n.html").read_text()
    assert main(["history", "n", "--url", url, "--json"]) == 2
    assert len(json.loads(told(capsys)[0])["overlaps"]) == 1
    assert main(["history", "n", "--url", url]) == 2
    titles, first, *_ = told(capsys)[0].splitlines()
    assert titles.endswith("REASON") and first.endswith("held by lyon:1")


def test_a_lease_that_does_not_exist(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held(url)
    assert main(["history", "nix", "--url", url, "--html", str(tmp_path / "n.html")]) == 1
    out, problem = told(capsys)
    assert not out and problem.startswith(
        f"spark-lease: nix: there is no such lease in {url}: spark-lease status lists"
    )
    assert not (tmp_path / "n.html").exists()
    assert main(["history", "n", "--url", url, "--since", "soon"]) == 64
    assert "is no time" in told(capsys)[1]
    assert main(["history", "--url", url]) == 78
    assert "which lease?" in told(capsys)[1]


def test_a_page_for_a_folder_that_does_not_exist(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    held(url)
    for file in (tmp_path / "nix" / "n.html", tmp_path, f"{tmp_path}/nix/", ""):
        assert main(["history", "n", "--url", url, "--html", str(file)]) == 78
        assert "html: " in told(capsys)[1]
    assert [each.name for each in tmp_path.iterdir()] == ["lease.db"]


def test_a_store_that_is_down_gives_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    url = "postgresql://x@127.0.0.1:9/x"
    assert main(["history", "n", "--url", url, "--attempt-timeout", "1"]) == 69
    assert "lease store" in told(capsys)[1]


@pytest.mark.postgres
def test_a_table_without_our_columns_and_one_without_notes(
    pg_url: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with create_engine(pg_url.replace("postgresql:", "postgresql+psycopg2:")).begin() as connection:
        connection.execute(text(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, time BIGINT, broker_name VARCHAR(250))"))
    assert main(["history", "n", "--url", pg_url, "--table", table]) == 78
    assert "lacks name" in (said := told(capsys)[1]) and "run spark-lease init" in said
    assert main(["history", "n", "--url", pg_url, "--table", f"{table}x"]) == 78
    assert "does not exist: if that is its name, run spark-lease init" in told(capsys)[1]
    held(pg_url, f"{table}y")
    with create_engine(pg_url.replace("postgresql:", "postgresql+psycopg2:")).begin() as connection:
        connection.execute(text(f"DROP TABLE {table}y_notes"))
    assert main(["history", "n", "--url", pg_url, "--table", f"{table}y"]) == 78
    assert f"{table}y_notes does not exist: run spark-lease init" in told(capsys)[1]


def test_a_lease_of_which_nothing_was_noted_is_there_all_the_same(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    held(url)
    with create_engine(url).begin() as connection:
        assert connection.execute(text("DELETE FROM spark_lease_notes")).rowcount > 0
    assert main(["history", "n", "--url", url, "--json"]) == 0
    assert json.loads(told(capsys)[0])["holds"] == []


@pytest.mark.parametrize(
    ("command", "how", "code"),
    [
        ("true", "finished", 0),
        ("exit 3", "failed: exit 3", 3),
        ("kill -9 $$", "failed: SIGKILL", 137),
        ("kill -TERM $PPID_OF_RUN; sleep 60", "interrupted: SIGTERM", 143),
    ],
)
def test_it_tells_how_the_work_ended(
    url: str, command: str, how: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f'PPID_OF_RUN=$(cat "$1"); {command}'
    file = Path(url.removeprefix("sqlite:///")).with_name("pid")
    words = [COMMAND, "run", "--lease", "n", "--url", url, "--contain", "off", "--run-key", "monday", "--"]
    with subprocess.Popen(
        [*words, "bash", "-c", f'until [ -s "$1" ]; do sleep 0.05; done; {script}', "x", file]
    ) as run:
        file.with_name("new").write_text(str(run.pid))
        file.with_name("new").rename(file)
        assert run.wait(30) == code
    for what in (["history", "n"], ["status", "n"]):
        assert main([*what, "--url", url]) == 0
        said = capsys.readouterr().out
        assert how.partition(":")[0] in said and how.partition(": ")[2] in said
    assert main(["runs", "n", "--url", url]) == 0
    assert how.partition(":")[0] in capsys.readouterr().out


def test_a_run_whose_end_was_not_noted_ended_as_its_hold_did(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    lease = open_contender(configure(name="n", url=url), BootClock())
    lease.acquire()
    lease.runs.begin("monday")
    assert main(["runs", "n", "--url", url]) == 0
    assert " begun " in capsys.readouterr().out
    lease.ends_as("crashed", "its driver ended")
    lease.release()
    lease.close()
    assert main(["runs", "n", "--url", url]) == 0
    assert " crashed " in capsys.readouterr().out


def test_a_command_whose_key_is_done_was_already_done(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [COMMAND, "run", "--lease", "n", "--url", url, "--run-key", "monday", "--", "true"]
    for _ in range(2):
        subprocess.run(words, check=False, capture_output=True)
    assert main(["history", "n", "--url", url, "--json"]) == 0
    holds = json.loads(capsys.readouterr().out)["holds"]
    assert [each["ended_by"] for each in holds] == ["finished", "already done"]


def test_what_a_script_says_at_its_end_is_not_noted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), hold_lease("n", url=url, keeper="thread"):
        raise SystemExit("cannot connect as u:s3cret")
    assert main(["history", "n", "--url", url]) == 0
    out = capsys.readouterr().out
    assert "s3cret" not in out and "exit 1" in out
