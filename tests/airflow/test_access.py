"""From Airflow connections to settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from spark_lease.airflow.access import as_environment, as_flags, config_of, fitting, settings_of
from spark_lease.errors import ConfigError


@pytest.mark.parametrize(
    ("connection", "settings"),
    [
        (
            {"uri": "postgresql://etl:p%40ss@db:5433/ops?sslmode=require&cursor=dictcursor"},
            {"url": "postgresql://etl@db:5433/ops?sslmode=require", "password": "p@ss"},
        ),
        ({"uri": "mysql://a%40b@db/ops"}, {"url": "mysql://a%40b@db/ops"}),
        ({"uri": "sqlite:////lake/lease.db"}, {"url": "sqlite:////lake/lease.db"}),
        ({"conn_type": "sqlite", "host": "/lake/lease.db"}, {"url": "sqlite:////lake/lease.db"}),
        ({"uri": "file:///lake/leases"}, {"url": "file:///lake/leases"}),
        ({"uri": "delta+s3://lake/leases/all"}, {"url": "delta+s3://lake/leases/all"}),
        (
            {"conn_type": "spark_lease", "host": "postgresql://db/ops", "login": "etl", "password": "p@ss"},
            {"url": "postgresql://etl@db/ops", "password": "p@ss"},
        ),
        (
            {"conn_type": "spark_lease", "host": "postgresql://etl:p%40ss@db/ops"},
            {"url": "postgresql://etl@db/ops", "password": "p@ss"},
        ),
        (
            {"conn_type": "generic", "extra": json.dumps({"url": "delta+s3://b/l", "storage_options": {"key": "k"}})},
            {"url": "delta+s3://b/l", "storage_options": {"key": "k"}},
        ),
        (
            {"conn_type": "postgres", "host": "db", "extra": '{"table": "ops.leases", "name": "x", "run_key": "x"}'},
            {"url": "postgresql://db/", "table": "ops.leases"},
        ),
        (
            {
                "conn_type": "mysql",
                "host": "db",
                "schema": "ops",
                "extra": '{"ssl": {"ca": "/ca.pem"}, "charset": "x"}',
            },
            {"url": "mysql://db/ops?ssl_ca=%2Fca.pem"},
        ),
        ({"conn_type": "postgres", "host": "db:5432", "extra": '{"sslmode": null}'}, {"url": "postgresql://db:5432/"}),
        (
            {"conn_type": "postgres", "host": "::1", "extra": '{"options": "-csearch_path=ops", "cursor": "dict"}'},
            {"url": "postgresql://[::1]/?options=-csearch_path%3Dops"},
        ),
    ],
)
def test_a_connection_stands_for_settings(connection: dict[str, Any], settings: dict[str, Any]) -> None:
    assert settings_of(Connection(conn_id="c", **connection)) == settings


@pytest.mark.parametrize(
    ("connection", "says"),
    [
        ({"conn_type": "postgres", "host": "db", "extra": '["a"]'}, "connection c: its extra is no object like"),
        (
            {"conn_type": "mysql", "host": "db", "schema": "o", "extra": '{"ssl": true}'},
            "ssl in its extra is no object",
        ),
    ],
)
def test_an_extra_that_cannot_be_read_is_refused(connection: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        settings_of(Connection(conn_id="c", **connection))


def test_a_setting_that_a_lease_connection_misspells_is_refused() -> None:
    extra = '{"lease_duratoin": 6}'
    lease = Connection(conn_id="c", conn_type="spark_lease", host="postgresql://db/ops", extra=extra)
    with pytest.raises(ConfigError, match="did you mean lease_duration"):
        config_of("n", lease, {})
    another = Connection(conn_id="c", conn_type="postgres", host="db", extra=extra)
    assert config_of("n", another, {}).url == "postgresql://db/"


def test_a_broken_extra_is_no_empty_one() -> None:
    class Broken:
        conn_id, conn_type, extra = "c", "postgres", '{"table": "x",}'

    with pytest.raises(ConfigError, match="connection c: its extra is no JSON"):
        settings_of(Broken())  # type: ignore[arg-type]


def test_a_run_key_of_long_ids_fits() -> None:
    keys = {fitting("x" * 300 + day) for day in ("2026-11-20", "2026-11-21")}
    assert len(keys) == 2 and {len(each) <= 250 for each in keys} == {True}
    assert fitting("a day") == "a day"
    assert fitting(20261120) == "20261120"  # render_template_as_native_obj


@pytest.mark.parametrize("connection", [{"conn_type": "http", "host": "db"}, {"conn_type": "postgres"}])
def test_a_connection_without_a_url_is_one_sentence(connection: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="connection c: has no URL of a lease store: give one as its host") as raised:
        settings_of(Connection(conn_id="c", **connection))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lease", "settings", "says"),
    [
        ("", {}, "lease: is empty"),
        (" ", {}, "lease: is empty"),
        ("odd\nname", {}, "name: is not a printable text"),
        ("x" * 251, {}, "name: is not a printable text of 1 to 250"),
        ("n", {"lease_duratoin": 3}, "lease_duratoin: there is no such setting; did you mean lease_duration?"),
        ("n", {"storage_options": {"key": "hunter22"}}, "storage_options: is a secret"),
    ],
)
def test_a_mistake_is_one_sentence(lease: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        config_of(lease, None, settings)
    assert "\n" not in str(raised.value)
    assert "hunter22" not in str(raised.value)


def test_what_a_dag_says_is_stronger_than_the_connection_and_that_than_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LEASE_LEASE_DURATION", "50")
    monkeypatch.setenv("SPARK_LEASE_HOLDER", "site-a")
    monkeypatch.setenv("SPARK_LEASE_TABLE", "of_environment")
    extra = '{"lease_duration": 40, "table": "of_connection"}'
    connection = Connection(conn_id="c", conn_type="postgres", host="db", extra=extra)
    config = config_of("nightly $(rm -rf /) '; DROP", connection, {"lease_duration": 60})
    assert (config.lease_duration, config.table, config.holder) == (60, "of_connection", "site-a")
    assert config.name == "nightly $(rm -rf /) '; DROP"


def test_settings_become_flags_and_environment() -> None:
    assert as_flags({"name": "a b", "fence_tables": ["/a", "/b"]}) == ["--lease=a b", "--fence-tables=/a,/b"]
    told = as_environment({"url": "file:///x", "storage_options": {"key": "k"}})
    assert told == {"SPARK_LEASE_URL": "file:///x", "SPARK_LEASE_STORAGE_OPTIONS": '{"key": "k"}'}
