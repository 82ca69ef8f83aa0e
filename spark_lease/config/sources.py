"""Where settings come from: arguments, the environment, Spark, a file; the strongest wins."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .parsers import seconds, switch
from .settings import ENV, FRONT_DOOR, SETTINGS, SPARK, URLS, VERBOSE, Config, Share
from .urls import has_password

DEFAULT_FILE = Path("conf/spark_lease.toml")


@dataclass(frozen=True, slots=True)
class Layer:
    """Settings from one source: by key, the name of the setting there and its value."""

    origin: str
    values: Mapping[str, tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Resolved:
    config: Config
    origins: Mapping[str, str]


def resolve(*layers: Layer) -> Resolved:
    """The settings of all `layers`, the strongest first, with defaults for the rest.

    Raises ConfigError for the first key that is unknown, unusable or does not fit the others.
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
    """Make a Config from arguments and defaults alone, for programs and tests that use no other source."""
    return resolve(from_arguments(arguments)).config


def from_arguments(arguments: Mapping[str, object], origin: str = "argument") -> Layer:
    """Arguments of a call, or parsed flags; None means not given."""
    return _layer(origin, {key: (key, value) for key, value in arguments.items() if value is not None})


def from_environment(environ: Mapping[str, str] = os.environ) -> Layer:
    """`SPARK_LEASE_*`, without the variables that a guard sets for its child (`guard/environment.py`)."""
    passed_on = {ENV + "EPOCH", ENV + "HELD", ENV + "MARK", FRONT_DOOR, VERBOSE}
    if ENV + "EPOCH" in environ:
        passed_on |= {ENV + "NAME", ENV + "HOLDER", ENV + "RUN_KEY", ENV + "OUTCOME_FILE"}
    found = {
        key.removeprefix(ENV).lower(): (key, value)
        for key, value in environ.items()
        if key.startswith(ENV) and key not in passed_on | {ENV + "CONFIG"} and not key.startswith(ENV + "TEST_")
    }
    return _layer("environment", found)


def from_spark(conf: Mapping[str, str]) -> Layer:
    """The `spark.lease.*` keys of a Spark configuration. Refuses a password that Spark would publish."""
    found = {snake(k.removeprefix(SPARK)): (k, v) for k, v in conf.items() if k.startswith(SPARK)}
    for called, value in conf.items():
        key = snake(called.removeprefix(SPARK)) if called.startswith(SPARK) else ""
        if key in URLS and has_password(value):
            instead = ENV + URLS[key].upper()
            raise ConfigError(called, f"carries a password, and Spark writes it to its event log: use {instead}")
    if "storage_options" in found:
        key, _ = found["storage_options"]
        raise ConfigError(key, "may hold keys, and Spark writes it to its event log: use SPARK_LEASE_STORAGE_OPTIONS")
    return _layer("spark conf", found)


def from_file(path: Path | str | None = None) -> Layer:
    """A TOML file: `path`, else $SPARK_LEASE_CONFIG, else conf/spark_lease.toml if it exists."""
    chosen = path or os.environ.get(ENV + "CONFIG")
    file = Path(chosen or DEFAULT_FILE)
    if not chosen and not file.is_file():
        return Layer(f"file {file}", {})
    import tomllib  # heavy, and often there is no file

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"file {file}", f"is not TOML: {error} (text stands in quotes)") from error
    except OSError as error:
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
    import difflib  # heavy, and only this message needs it

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
    """Translate ActiveMQ's names of settings, and its milliseconds into seconds, for users who come from ActiveMQ."""

    def ms() -> float:
        if isinstance(value, str) and value[-1:].isalpha():  # with a unit it is not in milliseconds
            raise ConfigError(called, f"{value!r} is not a number of milliseconds")
        return seconds(called, value) / 1000

    match snake(key):
        case "lock_keep_alive_period":
            return {"retry_period": ms()}
        case "lock_acquire_sleep_interval":
            return {"lease_duration": ms(), "poll_period": ms()}
        case "max_allowable_diff_from_d_b_time":
            return {"max_allowable_diff_from_db_time": ms()}
        case "query_timeout":
            return {"attempt_timeout": value}
        case "fail_if_locked":
            return {"acquire_timeout": 0.0} if switch(called, value) else {}
        case "use_lock":
            return {"enabled": value}
        case "lease_holder_id" | "broker_name":
            return {"holder": value}
    return {key: value}


def camel(key: str) -> str:
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def snake(key: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()
