"""Every setting, its default, where its value came from, and the inequality between the timings.

One declaration per setting gives the argument, the command line flag (`--lease-duration`), the environment variable
(`SPARK_LEASE_LEASE_DURATION`), the Spark key (`spark.lease.leaseDuration`) and the key of the TOML file
(`lease_duration`). A wrong value is refused with its reason, never adjusted.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .clock import seconds_of
from .errors import ConfigError, LeaseLost

ENV, SPARK = "SPARK_LEASE_", "spark.lease."
MAX_NAME = 250
"""Characters of a lease name and of a holder: the width of ActiveMQ's BROKER_NAME."""
FRONT_DOOR = ENV + "FRONT_DOOR"
"""Environment variable: where a contained driver finds the keeper that started it."""
LONGEST = 86400.0
CLOCK_RATE_ERROR = 0.01
"""The most by which one clock may gain on another (1 %): far more than NTP's 500 ppm, enough for a bad VM."""
BROKER = "activemq"
"""What the lease of a broker's row is called, whatever those who contend for it call it."""
LOCAL = "local"
"""The `url` of those who try it out on one machine."""
DEFAULT_FILE = Path("conf/spark_lease.toml")

OnLost = str | Callable[[LeaseLost], None]


@dataclass(frozen=True)
class Share:
    """A default that follows lease_duration, so that shortening a lease is one setting and not five."""

    of_lease_duration: float


def seconds(key: str, value: object) -> float:
    """A duration: seconds as a number >= 0 or a text (90, 1.5, 15m, 2h, 90d), `inf` where that makes sense."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except ValueError:
        number = _with_unit(str(value))
    if math.isnan(number) or number < 0:
        raise ConfigError(key, f"{value!r} is not a number of seconds")
    return number


def _with_unit(value: str) -> float:
    try:
        return seconds_of(value)
    except ValueError:
        return math.nan


def text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(key, "is not a text: put it in quotes")
    return value


def switch(key: str, value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).lower() not in known:
        raise ConfigError(key, f"{value!r} is neither true nor false")
    return known[str(value).lower()]


def exit_code(key: str, value: object) -> int:
    if not re.fullmatch(r"\d{1,3}", str(value)) or int(str(value)) > 255:
        raise ConfigError(key, f"{value!r} is not an exit code from 0 to 255")
    return int(str(value))


def one_of(*words: str) -> Callable[[str, object], str]:
    def parse(key: str, value: object) -> str:
        if value not in words:
            raise ConfigError(key, f"{value!r} is none of {', '.join(words)}")
        return str(value)

    parse.words = words  # type: ignore[attr-defined]
    return parse


def true_false_auto(key: str, value: object) -> str:
    return one_of("true", "false", "auto")(key, str(value).lower())


def early_release(key: str, value: object) -> str | float:
    if value in ("local", "never"):
        return str(value)
    try:
        return seconds(key, value)
    except ConfigError:
        raise ConfigError(key, f"{value!r} is neither local nor never nor a number of seconds") from None


def on_lost(key: str, value: object) -> OnLost:
    if callable(value):
        return value
    return one_of("exit", "stop")(key, value)


def identifier(key: str, value: object) -> str:
    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]{0,49}\.)?[A-Za-z_][A-Za-z0-9_]{0,49}", str(value)):
        raise ConfigError(
            key, f"{value!r} is not a table name (50 letters, digits and _ at most, with a schema in front)"
        )
    return str(value)


def texts(key: str, value: object) -> dict[str, str]:
    """Texts by name: a table of the TOML file, or JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not (isinstance(value, dict) and all(isinstance(each, str) for each in value.values())):
        raise ConfigError(key, 'is not a table of texts, or JSON like {"read": "SELECT …"}')
    return dict(value)


def words(key: str, value: object) -> tuple[str, ...]:
    """Several texts: a list of the TOML file, or separated by commas."""
    if isinstance(value, str):
        value = [each.strip() for each in value.split(",") if each.strip()]
    if not (isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)):
        raise ConfigError(key, 'is not a list of texts, like ["/lake/flights"]')
    return tuple(value)


def options(key: str, value: object) -> dict[str, str]:
    """Texts by name: a table of the TOML file, JSON, or `name=text,name=text`."""
    if isinstance(value, str) and value and not value.lstrip().startswith("{"):
        pairs = [each.partition("=") for each in value.split(",")]
        if not all(name.strip() and equals for name, equals, _ in pairs):
            raise ConfigError(key, "is neither name=text,name=text nor JSON: a text with a comma in it needs JSON")
        return {name.strip(): each for name, _, each in pairs}
    return texts(key, value or {})


def store_url(key: str, value: object) -> str:
    return local_url() if value == LOCAL else text(key, value)


def local_url() -> str:
    """The URL of a SQLite file of this user, for `local`. It excludes no other user and no other host."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"sqlite:///{state}/spark_lease/leases.db"


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
        options, dict, "of the object store in url, as delta-rs and obstore call them: region, endpoint, keys"
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
        one_of("lease", "database"), "lease", "lease: a row; database: that, and a session that locks a row for life"
    )
    broker_row: str = setting(
        true_false_auto, "auto", "contend with an ActiveMQ broker for its row, ID 1; auto: in a table ACTIVEMQ_LOCK"
    )
    holder: str = setting(text, "", "label of this contender, made unique by its ending; default: the host's name")
    site: str = setting(text, "", "where this contender is, for a lease that is transferred, or has a preferred site")
    preferred_site: str = setting(text, "", "elsewhere a standby lets one of this site go first")
    lease_duration: float = setting(seconds, 30.0, "others may start this long after the last renewal")
    renew_deadline: float = setting(seconds, Share(1 / 2), "a holder that could not renew for so long stops")
    stop_budget: float = setting(seconds, Share(1 / 3), "time to stop politely before everything is killed")
    kill_budget: float = setting(seconds, Share(1 / 30), "time after that for what is killed to be gone")
    retry_period: float = setting(seconds, Share(1 / 6), "time between renewals")
    attempt_timeout: float = setting(seconds, Share(1 / 6), "limit for one request to the lease store")
    poll_period: float = setting(seconds, 1.0, "how often a standby looks for a release")
    notify: bool = setting(switch, True, "PostgreSQL: a release wakes the standby; false: no connection is kept open")
    acquire_timeout: float = setting(
        seconds, math.inf, "how long a standby waits; 0: ask once, or for one lease where the store has no clock"
    )
    if_held: str = setting(
        one_of("wait", "skip", "fail"), "wait", "wait, or ask once and then skip (exit 99) or fail (1)"
    )
    if_denied: str = setting(
        one_of("fail", "wait"), "fail", "wrong password, no such database, no right: end at once, or wait"
    )
    standby_exit_code: int = setting(exit_code, 99, "exit code of a standby that never started")
    on_lost: OnLost = setting(on_lost, "exit", "exit: end this process, if need be by force; stop: only stop Spark")
    keeper: str = setting(
        one_of("auto", "process", "thread"), "auto", "who keeps the lease; auto: a process of its own where possible"
    )
    contain: str = setting(
        one_of("auto", "required", "off"),
        "auto",
        "run and submit: a PID namespace for what they start; auto: where that takes no namespace of users",
    )
    require_protection: str = setting(
        one_of("none", "keeper", "kernel", "contained"),
        "none",
        "start nothing if the work of a lost lease is ended by less than this",
    )
    release_on_death: str | float = setting(
        early_release, "local", "hand over once the driver is dead: local (if Spark is), never, or after seconds"
    )
    run_key: str = setting(text, "", "what this run does, its day for example; a key that is done is not run again")
    if_done: str = setting(
        one_of("done", "skip"), "done", "a run key that is done already: exit 0, or skip (standby_exit_code)"
    )
    run_retention: float = setting(seconds, 90 * 86400.0, "how long runs, and that their keys are done, are remembered")
    history_retention: float = setting(seconds, 90 * 86400.0, "how long it is remembered who held the lease")
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
        if not 1 <= self.lease_duration <= LONGEST:
            raise ConfigError("lease_duration", f"{self.lease_duration:g} s: it must be at least 1 s, at most a day")
        if len(self.run_key) > MAX_NAME or not self.run_key.isprintable():
            raise ConfigError("run_key", f"is not a printable text of at most {MAX_NAME} characters")
        if self.fence_url and not re.match(r"(postgresql|mysql|mariadb|sqlite)(\+\w+)?://", self.fence_url):
            problem = f"{redacted(self.fence_url)!r} is no database with a fence: postgresql:// (mysql://, sqlite:///)"
            raise ConfigError("fence_url", problem)
        for table in self.fence_tables:
            if not re.match(r"/|[A-Za-z][\w+.-]*:/", table):
                raise ConfigError("fence_tables", f"{table!r} is neither an absolute path nor a URL")
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
        """The kind of the store, as `postgresql` or `delta`; empty without a URL."""
        return self.url.partition(":")[0].partition("+")[0]

    @property
    def is_measured(self) -> bool:
        """True if metrics are wanted."""
        return bool(self.metrics or self.metrics_textfile or self.metrics_push)

    @property
    def record_table(self) -> str:
        """The table of the records: apart from that whose row a session locks."""
        return self.table if self.locker == "lease" else f"{self.table}_epoch"

    @property
    def shared_name(self) -> str:
        """The lease's name; of a broker's row one for all, whatever they call it."""
        return self.row_of(self.name)

    def row_of(self, name: str) -> str:
        """What the record of lease `name` is called."""
        return BROKER if self.has_broker_row else name

    @property
    def has_broker_record(self) -> bool:
        """True if the record is in the broker's own row: one that is locked for life is no place for it."""
        return self.has_broker_row and self.locker == "lease"

    @property
    def notes_table(self) -> str:
        """The table of what is noted beside the leases."""
        return f"{self.table}_notes"

    @property
    def has_broker_row(self) -> bool:
        """True if the lease is that of an ActiveMQ broker, whatever its own name."""
        if re.match(r"(file|delta)\b", self.url):  # there are no tables
            return False
        auto = self.table.upper().endswith("ACTIVEMQ_LOCK")
        return self.broker_row == "true" or (self.broker_row == "auto" and auto)

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{key}={value}' for key, value in shown(self))})"

    def _refuse_timings_that_do_not_fit(self) -> None:
        # After a renewal succeeded, the next attempt is sent retry_period later and may take attempt_timeout: with less
        # room a single slow answer loses the lease. Demotion starts at renew_deadline and takes up to stop_budget, then
        # what is left is killed: with less room another master starts while this one still works.
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
                f"lease_duration {self.lease_duration:g}: raise it, or lower the other two",
            )


SETTINGS = {each.name: each.metadata for each in fields(Config)}
SECRETS = frozenset({"password", "fence_password", "storage_options"})
"""Settings that have no command line flag and are never printed."""
URLS = {"url": "password", "fence_url": "fence_password"}
"""Settings that may carry a password, and where it belongs instead."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source: what each key is called there, and its value."""

    origin: str
    values: Mapping[str, tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Resolved:
    config: Config
    origins: Mapping[str, str]


def resolve(*layers: Layer) -> Resolved:
    """The settings of all `layers`, the first being the strongest, defaults filled in.

    Raises ConfigError that names the first key that is unknown, unusable or does not fit the others.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, (called, value) in layer.values.items():
            if key not in values:
                values[key] = SETTINGS[key]["parse"](called, value)
                origins[key] = layer.origin
    for key, meta in SETTINGS.items():
        if key in values:
            continue
        values[key] = _default(meta["default"], values)
        origins[key] = "default"
    return Resolved(Config(**values), origins)


def _default(default: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(default, Share):
        return default.of_lease_duration * float(values["lease_duration"])
    return default() if callable(default) else default


def configure(**arguments: Any) -> Config:
    """A Config from arguments and defaults alone, for programs and tests that want no other source."""
    return resolve(from_arguments(arguments)).config


def from_arguments(arguments: Mapping[str, object], origin: str = "argument") -> Layer:
    """Arguments of a call, or parsed flags; None means not given."""
    return _layer(origin, {key: (key, value) for key, value in arguments.items() if value is not None})


def from_environment(environ: Mapping[str, str] = os.environ) -> Layer:
    """`SPARK_LEASE_*`. What a guard tells its child (`guard/environment.py`) is no setting of that child."""
    told = {ENV + "EPOCH", ENV + "MARK", FRONT_DOOR}
    if ENV + "EPOCH" in environ:
        told |= {ENV + "NAME", ENV + "HOLDER", ENV + "RUN_KEY", ENV + "OUTCOME_FILE"}
    found = {
        key.removeprefix(ENV).lower(): (key, value)
        for key, value in environ.items()
        if key.startswith(ENV) and key not in told | {ENV + "CONFIG"} and not key.startswith(ENV + "TEST_")
    }
    return _layer("environment", found)


def from_spark(conf: Mapping[str, str]) -> Layer:
    """The `spark.lease.*` keys of a Spark configuration. Refuses a password where Spark would publish it."""
    found = {snake(k.removeprefix(SPARK)): (k, v) for k, v in conf.items() if k.startswith(SPARK)}
    for key, secret in URLS.items():
        if has_password(conf.get(called := SPARK + camel(key), "")):
            instead = ENV + secret.upper()
            raise ConfigError(called, f"carries a password, and Spark writes it to its event log: use {instead}")
    if "storage_options" in found:
        key, _ = found["storage_options"]
        raise ConfigError(key, "may hold keys, and Spark writes it to its event log: use SPARK_LEASE_STORAGE_OPTIONS")
    return _layer("spark conf", found)


def from_file(path: Path | str | None = None) -> Layer:
    """A TOML file: `path`, else $SPARK_LEASE_CONFIG, else conf/spark_lease.toml where that exists."""
    chosen = path or os.environ.get(ENV + "CONFIG")
    file = Path(chosen or DEFAULT_FILE)
    if not chosen and not file.is_file():
        return Layer(f"file {file}", {})
    import tomllib  # heavy, and many have no file

    try:
        content = tomllib.loads(file.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"file {file}", f"cannot be read: {error}") from error
    return _layer(f"file {file}", {key: (f"{key} (in {file})", value) for key, value in content.items()})


def _layer(origin: str, found: Mapping[str, tuple[str, object]]) -> Layer:
    values: dict[str, tuple[str, object]] = {}
    for key, (called, value) in found.items():
        for own, converted in _from_activemq(key, called, value).items():
            if own not in SETTINGS:
                raise _unknown(own, called, value)
            values[own] = (called, converted)
    return Layer(origin, values)


def _unknown(key: str, called: str, value: object) -> ConfigError:
    import difflib  # heavy, for this sentence alone

    if isinstance(value, dict):
        return ConfigError(
            called, "is a table, but settings are at the top level of the file: remove its line in brackets"
        )
    near = ["name"] if key == "lease" else difflib.get_close_matches(key, SETTINGS, n=1)
    if not near:
        return ConfigError(called, "there is no such setting")
    prefix, written = (ENV, near[0].upper()) if called.startswith(ENV) else ("", near[0])
    if called.startswith(SPARK):
        prefix, written = SPARK, camel(near[0])
    return ConfigError(called, f"there is no such setting; did you mean {prefix}{written}?")


def _from_activemq(key: str, called: str, value: object) -> dict[str, object]:
    """ActiveMQ's names for settings, its milliseconds turned into seconds, for people who come from there."""

    def ms() -> float:
        if isinstance(value, str) and value[-1:].isalpha():  # a unit, and then these are no milliseconds
            raise ConfigError(called, f"{value!r} is not a number of milliseconds")
        return seconds(called, value) / 1000

    match key:
        case "lockKeepAlivePeriod" | "lock_keep_alive_period":
            return {"retry_period": ms()}
        case "lockAcquireSleepInterval" | "lock_acquire_sleep_interval":
            return {"lease_duration": ms(), "poll_period": ms()}
        case "maxAllowableDiffFromDBTime" | "max_allowable_diff_from_d_b_time":
            return {"max_allowable_diff_from_db_time": ms()}
        case "queryTimeout" | "query_timeout":
            return {"attempt_timeout": value}
        case "failIfLocked" | "fail_if_locked":
            return {"acquire_timeout": 0.0} if switch(called, value) else {}
        case "useLock" | "use_lock":
            return {"enabled": value}
        case "leaseHolderId" | "brokerName" | "lease_holder_id" | "broker_name":
            return {"holder": value}
    return {key: value}


def camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def snake(key: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()


def has_password(url: str) -> bool:
    return redacted(url) != url


def without_password(url: str) -> tuple[str, str]:
    """`url` without the password between : and @, as SQLAlchemy reads it, and that password, or "".

    Raises ConfigError if another @ follows: the rest of an unquoted password would stay in the URL, and be shown.
    """
    found = re.match(r"((?>[\w+.-]+://)[^:/]*):([^@]*)@", url)
    if not found:
        return url, ""
    rest = url[found.end() :]
    if "@" in rest:
        raise ConfigError("url", f"{redacted(url)}: write an @ in a password or a parameter as %40")
    return f"{found[1]}@{rest}", unquote(found[2])


def redacted(url: str) -> str:
    """`url` with nothing in it that could be a password: neither between : and @ nor as a parameter.

    A user's name may have an @ in it (Azure's user@server). An unquoted password may have one too.
    """
    url = re.sub(r"^((?>[\w+.-]+://)[^:/]*:|(?![\w+.-]+://)[^:]*:)(?!@[^@]*\Z).+@", r"\1***@", url, flags=re.S)
    return re.sub(r"([^=&?;#\s]+)=([^&;\s]*)", _hide, url)


def _hide(parameter: re.Match[str]) -> str:
    secret = re.search(r"passw|secret|token|^sig$", unquote(parameter[1]), re.I) and parameter[2]
    return f"{parameter[1]}=***" if secret else parameter[0]


def shown(config: Config) -> Sequence[tuple[str, str]]:
    """Each key and its value as it may be printed."""
    hidden = {key: "***" if getattr(config, key) else "" for key in SECRETS}
    hidden |= {key: redacted(getattr(config, key)) for key in URLS}
    hidden["storage_options"] = str(dict.fromkeys(config.storage_options, "***"))
    return [(key, hidden.get(key, str(getattr(config, key)))) for key in SETTINGS]
