"""What every command that asks the lease store has in common: a store that is down, a table that is not ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy import create_engine, text

from spark_lease.cli.main import main
from spark_lease.database.dialects import usable_url
from tests.support.command import COMMAND
from tests.support.shop import Shop

COMMANDS = [
    ["status"],
    ["status", "n"],
    ["status", "n", "--watch"],
    ["history", "n"],
    ["runs", "n"],
    ["pause", "n", "--reason", "x"],
    ["pause", "n", "--now"],
    ["resume", "n"],
    ["transfer", "n", "--to", "lyon"],
    ["release", "n", "--force", "--yes", "n"],
]
EACH = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


@EACH
def test_a_store_that_is_down_is_69(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--url", "postgresql://u:hunter22@127.0.0.1:1/x", "--attempt-timeout", "1"]) == 69
    said = capsys.readouterr().err
    assert "lease store postgresql://" in said and "Connection refused" in said
    assert "hunter22" not in said and "Traceback" not in said


@pytest.fixture(scope="module")
def brokers(pg_url: str) -> Any:
    """A table as ActiveMQ makes it, with its broker's row."""
    with closing(psycopg2.connect(pg_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE brokers_alone (id BIGINT PRIMARY KEY, time BIGINT, broker_name VARCHAR(250))")
        cursor.execute("INSERT INTO brokers_alone VALUES (1, 99, 'amq')")
    yield pg_url, "brokers_alone"
    with closing(psycopg2.connect(pg_url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE brokers_alone")


@pytest.mark.postgres
@EACH
def test_a_table_without_our_columns_is_left_alone(
    words: list[str], brokers: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    url, table = brokers
    code = main([*words, "--url", url, "--table", table])
    said = capsys.readouterr().err
    assert (code, "run spark-lease init" in said) == (78, True), said
    assert "Traceback" not in said
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        assert cursor.fetchall() == [(1, 99, "amq")]
        cursor.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE %s", [f"{table}%"])
        assert cursor.fetchone() == (1,)


BROKERS = "id BIGINT PRIMARY KEY, time BIGINT, broker_name VARCHAR(250)"


@pytest.mark.postgres
@pytest.mark.parametrize(
    "columns", [BROKERS, f"{BROKERS}, name VARCHAR(250), epoch BIGINT, duration BIGINT"], ids=["a broker's", "an older"]
)
def test_all_leases_of_a_table_that_lacks_columns(
    columns: str, pg_url: str, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ("", "(1, 99, 'amq')"):
        with closing(psycopg2.connect(pg_url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({columns})")
            if row:
                cursor.execute(f"INSERT INTO {table} (id, time, broker_name) VALUES {row}")
        assert main(["status", "--url", pg_url, "--table", table]) == 78
        assert "run spark-lease init" in capsys.readouterr().err


@EACH
@pytest.mark.parametrize("scheme", ["file", "delta"])
def test_a_folder_that_is_not_there_may_be_a_share_that_is_not_mounted(
    words: list[str], scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--url", f"{scheme}://{tmp_path}/share"]) == 78
    assert "is it mounted?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "", "n" * 251], ids=["line", "escape", "none", "long"])
@EACH
def test_what_no_lease_is_called(
    words: list[str], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "n" not in words:
        words = [*words, "n"]
    assert main([*(name if each == "n" else each for each in words), "--url", f"file://{tmp_path}"]) == 78
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "\x1b" not in said.err


def test_each_answers_on_each_store(shop: Shop) -> None:
    done = subprocess.run(
        [COMMAND, "run", "--lease", "n", "--run-key", "2026-11-20", *shop.flags, "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    code, out, _ = shop.command("runs", "n", "--json")
    assert (code, [each["key"] for each in json.loads(out)]) == (0, ["2026-11-20"])
    shop.take("n", holder="a:1:2:3")
    code, out, _ = shop.command("history", "n", "--json")
    assert (code, [each["holds"] for each in json.loads(out)["holds"]]) == (0, [False, True])
    for words in (["pause"], ["resume"], ["transfer", "--to", "a:1:2:3"], ["release", "--force", "--yes", "n"]):
        code, out, err = shop.command(words[0], "n", *words[1:])
        assert code == 0, (words, out, err)
    code, out, _ = shop.command("status", "n", "--json")
    assert (code, json.loads(out)[0]["site"], json.loads(out)[0]["fences"]) == (0, None, None)
    assert "it has no master" in shop.command("resume", "n")[1]


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgres), "sqlite"])
def test_a_lease_beside_which_nothing_can_be_noted_is_paused_without_a_warning(
    kind: str, shop_of: Callable[..., Shop]
) -> None:
    shop = shop_of(kind)
    shop.take("n")
    with create_engine(usable_url(shop.config)).begin() as connection:
        connection.execute(text(f"DROP TABLE {shop.config.table}_notes"))
    for words in (["pause", "n"], ["resume", "n"], ["status", "n"]):
        done = subprocess.run([COMMAND, *words, *shop.flags], capture_output=True, text=True, check=False)
        assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    done = subprocess.run(
        [COMMAND, "transfer", "n", "--to", "x", *shop.flags], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "--anyway" in done.stderr) == (78, True)
    done = subprocess.run([COMMAND, "history", "n", *shop.flags], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), "run spark-lease init" in done.stderr) == (78, 1, True)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_none_needs_spark(words: list[str], tmp_path: Path) -> None:
    line = [*words, "--url", f"sqlite:///{tmp_path}/leases.db"]
    code = f"import sys; from spark_lease.cli.main import main; main({line!r}); sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
