"""Every setting, its default, and the inequality between the timings.

One declaration per setting gives the argument, the command line flag (`--lease-duration`), the environment variable
(`SPARK_LEASE_LEASE_DURATION`), the Spark key (`spark.lease.leaseDuration`) and the key of the TOML file
(`lease_duration`). A wrong value is refused with its reason, never adjusted.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import ConfigError
from .parsers import (
    OnLost,
    early_release,
    exit_code,
    identifier,
    on_lost,
    one_of,
    options,
    seconds,
    store_url,
    switch,
    text,
    texts,
    true_false_auto,
    words,
)
from .urls import has_password, redacted

ENV, SPARK = "SPARK_LEASE_", "spark.lease."

MAX_NAME = 250
"""Characters of a lease name and of a holder: the width of ActiveMQ's BROKER_NAME."""

FRONT_DOOR = ENV + "FRONT_DOOR"
"""Environment variable: where a contained driver finds the keeper that started it."""
VERBOSE = ENV + "VERBOSE"
"""Environment variable: the driver of `submit -v` must log each renewal."""

LONGEST = 86400.0

CLOCK_RATE_ERROR = 0.01
"""The most that one clock may gain on another (1 %): far more than NTP's 500 ppm, enough for a bad VM."""

BROKER = "activemq"
"""The name of the lease of a broker's row, whatever name its contenders use."""


@dataclass(frozen=True)
class Share:
    """A default that is a share of lease_duration, so that a shorter lease takes one setting, not five."""

    of_lease_duration: float


def setting(parse: Callable[[str, object], Any], default: object, meaning: str) -> Any:
    return field(metadata={"parse": parse, "default": default, "help": meaning})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Config:
    """A set of settings that fit together; `resolve` makes one. Durations are seconds."""

    name: str = setting(text, "", "name of the lease; jobs with the same name exclude each other")
    url: str = setting(
        store_url,
        "",
        "lease store: postgresql://user@host/db, mysql://…, sqlite:////file, file:///folder, delta:///folder; or local",
    )
    storage_options: dict[str, str] = setting(
        options, dict, "options of the object store in url, named as in delta-rs: region, endpoint, keys"
    )
    fence_url: str = setting(
        text, "", "database with fenced tables, claimed before the work begins; default: url, if it is PostgreSQL"
    )
    fence_password: str = setting(text, "", "password for fence_url, kept out of it")
    password: str = setting(text, "", "password for url, kept out of it; libpq's own PGPASSWORD and .pgpass work too")
    table: str = setting(identifier, "spark_lease", "table of the leases, schema.table if need be")
    create_table: str = setting(true_false_auto, "auto", "make table or folder on first use; auto: not on a server")
    column_types: dict[str, str] = setting(texts, dict, "SQL types in place of ours, by column, for a table made here")
    statements: dict[str, str] = setting(texts, dict, "SQL in place of ours, by statement; see docs/howto/own-store.md")
    locker: str = setting(
        one_of("lease", "database"), "lease", "lease: a row; database: its holder keeps a row locked besides"
    )
    broker_row: str = setting(
        true_false_auto, "auto", "contend with an ActiveMQ broker for its row, ID 1; auto: in a table ACTIVEMQ_LOCK"
    )
    holder: str = setting(text, "", "label of this contender, made unique by its ending; default: the host's name")
    site: str = setting(text, "", "where this contender is, for a lease that is transferred, or has a preferred site")
    preferred_site: str = setting(
        text, "", "standbys of other sites wait a little longer, so that this site gets a free lease"
    )
    lease_duration: float = setting(seconds, 30.0, "others may start this long after the last renewal")
    renew_deadline: float = setting(seconds, Share(1 / 2), "a holder that could not renew for so long stops")
    stop_budget: float = setting(seconds, Share(1 / 3), "time to stop politely before everything is killed")
    kill_budget: float = setting(seconds, Share(1 / 30), "time after that for what is killed to be gone")
    retry_period: float = setting(seconds, Share(1 / 6), "time between renewals")
    attempt_timeout: float = setting(seconds, Share(1 / 6), "limit for one request to the lease store")
    poll_period: float = setting(seconds, 1.0, "how often a standby looks for a release")
    notify: bool = setting(switch, True, "PostgreSQL: a release wakes the standby; false: no connection is kept open")
    acquire_timeout: float = setting(
        seconds, math.inf, "how long a standby waits; 0: ask once (a store without a clock: one lease_duration)"
    )
    if_held: str = setting(
        one_of("wait", "skip", "fail"), "wait", "wait, or ask once and then skip (exit 99) or fail (1)"
    )
    if_denied: str = setting(
        one_of("fail", "wait"), "fail", "wrong password, no such database, no right: end at once, or wait"
    )
    standby_exit_code: int = setting(exit_code, 99, "exit code of a standby that never started")
    standby: str = setting(
        one_of("cold", "warm"),
        "cold",
        "warm: a standby has its Spark ready, and can write nothing before its grant; not with run",
    )
    warm_max_age: float = setting(seconds, 900.0, "a warm standby warms up again after so long; inf: never")
    on_lost: OnLost = setting(on_lost, "exit", "exit: end this process, if need be by force; stop: end block and Spark")
    keeper: str = setting(
        one_of("auto", "process", "thread"), "auto", "what renews the lease; auto: a separate process where possible"
    )
    contain: str = setting(
        one_of("auto", "required", "off"),
        "auto",
        "run and submit: a PID namespace for what they start; auto: as root or with CAP_SYS_ADMIN",
    )
    require_protection: str = setting(
        one_of("none", "keeper", "kernel", "contained"),
        "none",
        "refuse to start unless at least this can kill the work of a lost lease",
    )
    release_on_death: str | float = setting(
        early_release, "local", "release when the driver is dead: local (if Spark is local), never, or after seconds"
    )
    run_key: str = setting(text, "", "what this run does, its day for example; a key that is done is not run again")
    if_done: str = setting(
        one_of("done", "skip"), "done", "a run key that is done already: exit 0, or skip (standby_exit_code)"
    )
    run_retention: float = setting(seconds, 90 * 86400.0, "how long runs, and that their keys are done, are remembered")
    history_retention: float = setting(seconds, 90 * 86400.0, "how long the history of holders is kept")
    fence_delta: str = setting(
        one_of("auto", "required", "off"), "auto", "refuse a former master's Delta writes; required: or do not start"
    )
    fence_tables: tuple[str, ...] = setting(
        words, tuple, "Delta tables to claim besides those that this lease has written to: paths or URLs"
    )
    metrics: bool = setting(switch, False, "count in prometheus_client's registry, for a program that serves it")
    metrics_textfile: str = setting(
        text, "", "folder of node_exporter's textfile collector, for jobs that are not scraped"
    )
    metrics_push: str = setting(text, "", "URL of a Prometheus Pushgateway, likewise")
    outcome_file: str = setting(text, "", "run and submit: file that gets the outcome as JSON, besides their last line")
    max_allowable_diff_from_db_time: float = setting(seconds, 0.0, "warn if the clocks differ by more; 0: do not look")
    enabled: bool = setting(switch, True, "false: run without any lease, for development")

    def __post_init__(self) -> None:
        if len(self.name) > MAX_NAME or not self.name.isprintable():
            raise ConfigError("name", f"is not a printable text of 1 to {MAX_NAME} characters")
        for key in ("holder", "site", "preferred_site"):
            if not getattr(self, key).isprintable():
                raise ConfigError(key, "is not a printable text")
        for key in ("name", "holder", "site", "preferred_site"):
            # Some stores take it for the same name without the blank, others do not.
            if (value := getattr(self, key)) != value.strip():
                raise ConfigError(key, f"{value!r} begins or ends with a blank")
        if not 1 <= self.lease_duration <= LONGEST:
            raise ConfigError("lease_duration", f"{self.lease_duration:g} s: it must be at least 1 s, at most a day")
        if self.run_key:
            refuse_run_key("run_key", self.run_key)
        if self.fence_url and not re.match(r"(postgresql|mysql|mariadb|sqlite)(\+\w+)?://", self.fence_url):
            problem = f"{redacted(self.fence_url)!r} cannot hold a fence: use postgresql:// (mysql://, sqlite:///)"
            raise ConfigError("fence_url", problem)
        for table in self.fence_tables:
            is_url = re.match(r"[A-Za-z][\w+.-]*:/", table) and not has_password(table)
            if not (is_url or table.startswith(("/", "file:/"))):
                problem = f"{redacted(table)!r} is neither an absolute path nor a URL without a password"
                raise ConfigError("fence_tables", problem)
        for key in ("retry_period", "attempt_timeout", "stop_budget", "kill_budget", "poll_period"):
            if not getattr(self, key) > 0:
                raise ConfigError(key, "must be more than 0")
        if self.metrics_push and not re.match(r"https?://[^/@]+", self.metrics_push):
            raise ConfigError("metrics_push", f"{redacted(self.metrics_push)!r} is not a URL like http://gateway:9091")
        if has_password(self.metrics_push):
            raise ConfigError("metrics_push", "carries a password, which settings show: use a gateway that needs none")
        self._refuse_timings_that_do_not_fit()

    @property
    def scheme(self) -> str:
        """The kind of the store, such as `postgresql` or `delta`; empty without a URL."""
        return self.url.partition(":")[0].partition("+")[0]

    @property
    def is_in_folders(self) -> bool:
        """True if the leases are files: there are no tables, and no clock that all hosts share."""
        return self.scheme in ("file", "delta")

    @property
    def is_measured(self) -> bool:
        """True if the settings ask for metrics."""
        return bool(self.metrics or self.metrics_textfile or self.metrics_push)

    @property
    def record_table(self) -> str:
        """The table of the records; not the one in which a session locks a row."""
        return self.table if self.locker == "lease" else f"{self.table}_epoch"

    @property
    def shared_name(self) -> str:
        """The lease's name in the store; for a broker's row the same for all contenders."""
        return self.row_of(self.name)

    def row_of(self, name: str) -> str:
        """The name of the record of lease `name`."""
        return BROKER if self.has_broker_row else name

    @property
    def has_broker_record(self) -> bool:
        """True if the record is in the broker's own row: a row that its holder keeps locked cannot store it."""
        return self.has_broker_row and self.locker == "lease"

    @property
    def notes_table(self) -> str:
        """The table of the notes beside the leases."""
        return f"{self.table}_notes"

    @property
    def has_broker_row(self) -> bool:
        """True if the lease is that of an ActiveMQ broker, whatever its configured name."""
        auto = self.broker_row == "auto" and self.table.upper().endswith("ACTIVEMQ_LOCK")
        return (auto or self.broker_row == "true") and not self.is_in_folders

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value}' for key, value in shown(self))})"

    def _refuse_timings_that_do_not_fit(self) -> None:
        # After a renewal succeeded, the next attempt is sent retry_period later and may take attempt_timeout: with less
        # room a single slow answer loses the lease. Demotion starts at renew_deadline and takes up to stop_budget, then
        # the rest of the work is killed: with less room another master starts while this one still works.
        if self.retry_period + self.attempt_timeout > self.renew_deadline:
            raise ConfigError(
                "renew_deadline",
                f"retry_period {self.retry_period:g} + attempt_timeout {self.attempt_timeout:g} must not be more than "
                f"renew_deadline {self.renew_deadline:g}: raise it, or lower the other two",
            )
        work = self.renew_deadline + self.stop_budget + self.kill_budget
        if work * (1 + CLOCK_RATE_ERROR) >= self.lease_duration:
            raise ConfigError(
                "lease_duration",
                f"renew_deadline {self.renew_deadline:g} + stop_budget {self.stop_budget:g} + kill_budget "
                f"{self.kill_budget:g}, and {CLOCK_RATE_ERROR:.0%} for clocks that do not run alike, must be less than "
                f"lease_duration {self.lease_duration:g}: raise it, or lower one of the others",
            )


SETTINGS = {each.name: each.metadata for each in fields(Config)}

SECRETS = frozenset({"password", "fence_password", "storage_options"})
"""Settings that have no command line flag and are never printed."""

URLS = {"url": "password", "fence_url": "fence_password"}
"""Settings that may carry a password, and the setting in which it belongs instead."""


def shown(config: Config) -> Sequence[tuple[str, str]]:
    """Each key and its value, without secrets."""
    hidden = {key: "***" if getattr(config, key) else "" for key in SECRETS}
    hidden |= {key: redacted(getattr(config, key)) for key in URLS}
    hidden["storage_options"] = str(dict.fromkeys(config.storage_options, "***"))
    return [(key, hidden.get(key, _for_people(getattr(config, key)))) for key in SETTINGS]


def _for_people(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else as_text(value)


def refuse_run_key(called: str, key: object) -> None:
    """Raise ConfigError unless `key` can be a run key. Some stores ignore a blank at its end, others do not."""
    fits = isinstance(key, str) and 1 <= len(key) <= MAX_NAME and key.isprintable() and key == key.strip()
    if not fits:
        problem = f"is not a printable text of 1 to {MAX_NAME} characters, without blanks around it"
        raise ConfigError(called, f"{repr(key)[:50]} {problem}")


def as_text(value: object) -> str:
    """A setting as text for the environment, a flag, or Spark's configuration: read back, it is the same.

    It is all ASCII if possible: a JVM under the locale C can take nothing else from its command line.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
