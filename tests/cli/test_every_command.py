"""What every command that asks the lock store has in common: a store that is down, a table that is not ours."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg2
import pytest

from spark_lease.cli.main import main

COMMANDS = [
    ["status"],
    ["status", "n"],
    ["watch", "n"],
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
    assert "lock store postgresql://" in said and "Connection refused" in said
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
