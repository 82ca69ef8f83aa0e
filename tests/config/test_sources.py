from __future__ import annotations

import math
import os
import pickle
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lease.config.settings import ENV, MAX_NAME, SETTINGS, Config, as_text, shown
from spark_lease.config.sources import (
    camel,
    configure,
    from_arguments,
    from_environment,
    from_file,
    from_spark,
    resolve,
    snake,
)
from spark_lease.config.urls import has_password, redacted, without_password
from spark_lease.election.record import new_holder
from spark_lease.errors import (
    ConfigError,
    Fenced,
    FenceUnreachable,
    LeaseHeldByOther,
    LeaseLost,
    Loss,
    RecordUnreadable,
    SparkLeaseError,
    StoreError,
)


def test_the_defaults_are_5_5_15_10_30() -> None:
    config = configure()
    timings = (config.retry_period, config.attempt_timeout, config.renew_deadline, config.stop_budget)
    assert (*timings, config.lease_duration) == (5, 5, 15, 10, 30)
    assert config.acquire_timeout == math.inf


def test_a_shorter_lease_needs_one_setting() -> None:
    config = configure(lease_duration=1)
    assert config.renew_deadline == 0.5
    assert config.renew_deadline + config.stop_budget < 1


@pytest.mark.shows("P9")
@pytest.mark.parametrize(
    ("settings", "key", "says"),
    [
        ({"retry_period": 11}, "renew_deadline", "retry_period 11 + attempt_timeout 5 must not be more than"),
        (
            {"stop_budget": 15},
            "lease_duration",
            "renew_deadline 15 + stop_budget 15 + kill_budget 1, and 1% for clocks that do not run alike, must be less "
            "than lease_duration 30",
        ),
        ({"lease_duration": 0.5}, "lease_duration", "at least 1 s"),
        ({"lease_duration": "inf"}, "lease_duration", "at most a day"),
        ({"lease_duration": 1e300}, "lease_duration", "at most a day"),
        ({"holder": "a\x00b"}, "holder", "printable"),
        ({"password": 5551234}, "password", "is not a text: put it in quotes"),
        ({"table": "x" * 51}, "table", "50 letters"),
        ({"lease_duration": "soon"}, "lease_duration", "'soon' is not a time of 0 or more"),
        ({"lease_duration": -1}, "lease_duration", "not a time of 0 or more"),
        ({"lease_duration": math.nan}, "lease_duration", "not a time of 0 or more"),
        ({"lease_duration": True}, "lease_duration", "not a time of 0 or more"),
        ({"retry_period": 0}, "retry_period", "more than 0"),
        ({"name": "x" * 251}, "name", "1 to 250 characters"),
        ({"name": "a\nb"}, "name", "printable"),
        ({"table": "leases; DROP TABLE x"}, "table", "is not a table name"),
        ({"table": "a.b.c"}, "table", "is not a table name"),
        ({"if_held": "maybe"}, "if_held", "none of wait, skip, fail"),
        ({"on_lost": "cry"}, "on_lost", "none of exit, stop"),
        ({"standby_exit_code": 300}, "standby_exit_code", "exit code"),
        ({"enabled": "perhaps"}, "enabled", "neither true nor false"),
        ({"fence_url": "delta:///x"}, "fence_url", "cannot hold a fence"),
        ({"fence_url": "warehouse"}, "fence_url", "cannot hold a fence"),
        ({"lease_durration": 30}, "lease_durration", "did you mean lease_duration"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_key_and_the_reason(settings: Any, key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)) as raised:
        configure(**settings)
    assert raised.value.key == key


def test_precedence_and_where_each_value_came_from(tmp_path: Path) -> None:
    file = tmp_path / "lease.toml"
    file.write_text('name = "file"\nlease_duration = 12\nstop_budget = 3\ntable = "from_file"\nholder = "f"\n')
    found = resolve(
        from_arguments({"name": "argument", "url": None}),
        from_spark({"spark.lease.name": "spark", "spark.lease.leaseDuration": "24", "spark.app.name": "x"}),
        from_environment({"SPARK_LEASE_NAME": "env", "SPARK_LEASE_STOP_BUDGET": "2.5", "PATH": "/bin"}),
        from_file(file),
    )
    config = found.config
    assert (config.name, config.lease_duration, config.stop_budget) == ("argument", 24.0, 2.5)
    assert (config.table, config.retry_period) == ("from_file", 4.0)
    origins = {key: found.origins[key] for key in ("name", "lease_duration", "stop_budget", "holder", "retry_period")}
    assert list(origins.values()) == ["argument", "spark conf", "environment", f"file {file}", "default"]


def test_every_setting_has_the_same_name_everywhere() -> None:
    for key in SETTINGS:
        assert snake(camel(key)) == key
        assert key in from_environment({f"SPARK_LEASE_{key.upper()}": "1"}).values
        if key not in ("url", "storage_options"):  # they may be refused there
            assert key in from_spark({f"spark.lease.{camel(key)}": "1"}).values


@pytest.mark.parametrize(("text", "seconds"), [("45", 45), ("1.5m", 90), ("2h", 7200), ("1d", 86400)])
def test_a_duration_may_have_a_unit(text: str, seconds: float) -> None:
    assert configure(lease_duration=text).lease_duration == seconds


def test_activemqs_milliseconds_have_no_unit() -> None:
    with pytest.raises(ConfigError, match="'5s' is not a number of milliseconds"):
        from_environment({"SPARK_LEASE_LOCK_KEEP_ALIVE_PERIOD": "5s"})


@pytest.mark.parametrize("layer", ["environment", "spark", "file"])
def test_an_unknown_key_is_refused_by_the_name_it_has_there(layer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        if layer == "environment":
            from_environment({"SPARK_LEASE_LEASE_DURATOIN": "3"})
        elif layer == "spark":
            from_spark({"spark.lease.leaseDuratoin": "3"})
        else:
            (tmp_path / "x.toml").write_text("lease_duratoin = 3")
            from_file(tmp_path / "x.toml")
    right = {"environment": "SPARK_LEASE_LEASE_DURATION", "spark": "spark.lease.leaseDuration"}
    assert f"did you mean {right.get(layer, 'lease_duration')}?" in str(raised.value)
    assert "uratoin" in str(raised.value).lower()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = = b")
    for file in (tmp_path / "x.toml", tmp_path / "none.toml"):
        with pytest.raises(ConfigError, match=file.name):
            from_file(file)


def test_what_a_guard_tells_its_child_is_no_setting_of_the_child() -> None:
    told = {"SPARK_LEASE_NAME": "n", "SPARK_LEASE_HOLDER": "h", "SPARK_LEASE_EPOCH": "3", "SPARK_LEASE_MARK": "m"}
    assert from_environment(told).values == {}


def test_activemqs_names_are_understood(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(
        'lockKeepAlivePeriod = 2000\nlockAcquireSleepInterval = 12000\nfailIfLocked = true\nbrokerName = "paris"\n'
        "queryTimeout = 2\nmaxAllowableDiffFromDBTime = 500\nuseLock = false\n"
    )
    config = resolve(from_file(file)).config
    assert (config.retry_period, config.lease_duration, config.poll_period) == (2, 12, 12)
    assert (config.acquire_timeout, config.holder, config.attempt_timeout) == (0, "paris", 2)
    assert (config.max_allowable_diff_from_db_time, config.enabled) == (0.5, False)
    assert "retry_period" in from_spark({"spark.lease.lockKeepAlivePeriod": "2000"}).values


@pytest.mark.parametrize(
    ("key", "instead"),
    [("url", "PASSWORD"), ("fenceUrl", "FENCE_PASSWORD"), ("fence_url", "FENCE_PASSWORD"), ("Url", "PASSWORD")],
)
def test_a_password_where_spark_would_publish_it_is_refused(key: str, instead: str) -> None:
    with pytest.raises(ConfigError, match=f"event log: use SPARK_LEASE_{instead}$") as raised:
        from_spark({f"spark.lease.{key}": "postgresql://u:hunter2@db/x", "spark.lease.URL": "local"})
    assert "hunter2" not in str(raised.value)


def test_a_file_is_read_alike_in_every_locale(tmp_path: Path) -> None:
    file = tmp_path / "lease.toml"
    file.write_text('name = "zürich"', encoding="utf-8-sig")  # as an editor on Windows writes it
    reads = """
import sys
from spark_lease.config.sources import from_file, resolve
print(ascii(resolve(from_file(sys.argv[1])).config.name))"""
    environ = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    read = subprocess.run([sys.executable, "-c", reads, file], env=environ, capture_output=True, text=True)
    assert read.stdout == ascii("zürich") + "\n", read.stderr


def test_the_password_of_a_guarded_database_is_not_shown() -> None:
    config = configure(fence_url="postgresql://u:hunter2@db/x", fence_password="hunter2")
    assert "hunter2" not in f"{config!r} {shown(config)}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@db/x",
        "postgresql://u:hun/ter2@hunter2@db:5432/x?a=b",
        "postgresql://db/x?user=u&password=hunter2&sslmode=require",
        "postgresql+psycopg2://u:hunter2@/x?host=/run",
        "postgresql://u:/hunter2@db/x",
        "postgresql//u:hunter2@db/x",
        "u:hunter2@db/x",
        "postgresql://etl@server:hunter2@db/x",
        "postgresql://u:@hunter2@db/x",
        "postgresql:/u:hunter2@db/x",
        "delta+s3://b/t?secret_access_key=hunter2",
    ],
)
def test_no_url_is_shown_with_a_secret(url: str) -> None:
    assert "hunter2" not in redacted(url)
    assert has_password(url)
    config = configure(url=url, password="hunter2")
    assert "hunter2" not in f"{config!r} {config} {shown(config)}"


USERS = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="@._-"), min_size=1)
PASSWORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)

HOSTS = ["db", "10.0.0.1:5432", "[::1]:5432", ""]


@settings(deadline=None, database=None)
@given(
    user=USERS,
    password=PASSWORDS,
    host=st.sampled_from(["db", "10.0.0.1:5432", "[::1]:5432", ""]),
    quoted=st.booleans(),
)
def test_no_password_is_shown_whatever_is_in_it(user: str, password: str, host: str, quoted: bool) -> None:
    password = f"hunter2{password}hunter2"
    url = f"postgresql://{user}:{quote(password, safe='') if quoted else password}@{host}/x"
    assert "hunter2" not in redacted(url) and has_password(url)
    if "@" in password and not quoted:
        with pytest.raises(ConfigError, match="write an @ in a password or a parameter as %40") as raised:
            without_password(url)
        assert "hunter2" not in str(raised.value)
    else:
        assert "hunter2" not in without_password(url)[0]
    if quoted:
        assert without_password(url) == (f"postgresql://{user}@{host}/x", password)


@pytest.mark.parametrize("url", ["postgresql://u@db/x", "sqlite:////a@b:c.db", "postgresql://postgres:@/x?host=/run"])
def test_a_url_without_a_secret_is_shown_as_it_is(url: str) -> None:
    assert redacted(url) == url


def test_create_table_takes_a_boolean() -> None:
    assert [configure(create_table=value).create_table for value in (True, "False", "auto")] == [
        "true",
        "false",
        "auto",
    ]


def test_on_lost_takes_a_callable() -> None:
    assert configure(on_lost=print).on_lost is print


def test_a_holder_is_unique_and_fits_the_column() -> None:
    assert new_holder("paris") != new_holder("paris")
    assert new_holder().count(":") >= 3
    with pytest.raises(ConfigError, match=f"{MAX_NAME} fit"):
        new_holder("x" * 250)


@pytest.mark.parametrize(
    ("error", "says", "code"),
    [
        (ConfigError("table", "is odd"), "table: is odd", 78),
        (LeaseHeldByOther("n", "h", 3.21), "n: h is master (its lease has 3.2 s left)", 99),
        (LeaseLost("n", 4, Loss.TAKEN, "held by h"), "n: lease lost (taken), epoch 4: held by h", 75),
        (Fenced("n", "db", 4, 5), "n: fenced, db was claimed under epoch 5 and mine is 4: nothing was written", 75),
        (
            Fenced("n", "db", 4, 0, "Look."),
            "n: fenced, db was claimed under another epoch and mine is 4: nothing was written. Look.",
            75,
        ),
        (StoreError("db", "is down"), "lease store db: is down", 69),
        (FenceUnreachable("db", "is down"), "fence in db: is down", 69),
        (RecordUnreadable("db", "garbage"), "lease store db: garbage", 69),
    ],
)
def test_errors_say_what_happened_and_survive_pickling(error: SparkLeaseError, says: str, code: int) -> None:
    assert (str(error), error.exit_code) == (says, code)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), says, vars(error))


def test_a_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        configure().name = "x"  # type: ignore[misc]
    assert isinstance(configure(), Config)


@pytest.mark.parametrize("url", ["file:///leases", "delta:///leases", "delta+s3://lake/leases"])
def test_a_store_without_tables_has_no_brokers_row(url: str) -> None:
    config = configure(name="n", url=url, table="ACTIVEMQ_LOCK", broker_row="true")
    assert (config.has_broker_row, config.shared_name) == (False, "n")


@given(period=st.floats(0.01, 1.5), options=st.dictionaries(st.text(), st.text()))
def test_what_is_handed_on_as_text_is_read_back_the_same(period: float, options: dict[str, str]) -> None:
    """To a child by its environment: a third of a second that is rounded no longer fits the other timings."""
    config = configure(
        name="n", lease_duration=10, retry_period=period, attempt_timeout=period, renew_deadline=2 * period
    )
    config = replace(config, storage_options=options)
    handed = {ENV + each.name.upper(): as_text(getattr(config, each.name)) for each in fields(config)}
    assert all(each.isascii() for each in handed.values())
    assert resolve(from_environment(handed)).config == config
