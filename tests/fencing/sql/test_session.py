"""How the epoch gets into a session of PostgreSQL."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from spark_lease.errors import ConfigError
from spark_lease.fencing.sql.session import application_of, jdbc_url, session_environment, setting_of

NAME = "nightly"


def test_what_was_in_the_environment_stays() -> None:
    before = {"PGOPTIONS": "-c statement_timeout=5s", "PGAPPNAME": "etl"}
    once = session_environment(NAME, 5, before)
    twice = session_environment(NAME, 6, once)
    assert once["PGOPTIONS"] == f"-c statement_timeout=5s -c {setting_of(NAME)}=5"
    assert twice["PGOPTIONS"] == f"-c statement_timeout=5s -c {setting_of(NAME)}=6"
    assert twice["PGAPPNAME"].endswith("/etl") and "/6/" in twice["PGAPPNAME"]


def test_without_a_lease_nothing_is_said() -> None:
    url = "jdbc:postgresql://db/x?options=-c%20search_path=etl"
    assert session_environment(NAME, 0, {"PGOPTIONS": "-c x=y"}) == {}
    assert jdbc_url(url, NAME, 0) == url


def test_a_jdbc_url_carries_the_epoch_and_keeps_what_it_has() -> None:
    url = jdbc_url("jdbc:postgresql://db/x?ssl=true&options=-c%20search_path=etl", NAME, 5)
    given = dict(pair.split("=", 1) for pair in url.partition("?")[2].split("&"))
    assert given["ssl"] == "true"
    assert unquote(given["options"].replace("+", " ")) == f"-c search_path=etl -c {setting_of(NAME)}=5"
    assert unquote(given["ApplicationName"]) == application_of(NAME, 5)
    with pytest.raises(ConfigError, match="only jdbc:postgresql:"):
        jdbc_url("jdbc:mysql://db/x", NAME, 5)
