"""Turn a text, a number or a table into the value of a setting. Each parser raises ConfigError with the problem."""

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..clock import seconds_of
from ..errors import ConfigError, LeaseLost
from .urls import LOCAL, local_url

OnLost = str | Callable[[LeaseLost], None]


def absolute(key: str, path: str) -> Path:
    """`path` as an absolute path. Raises ConfigError, for the setting `key`, if the working folder is gone."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise ConfigError(key, f"{path} is relative, and the working folder does not exist any more") from None


def seconds(key: str, value: object) -> float:
    """A duration in seconds, from a number >= 0 or a text (90, 1.5, 15m, 2h, 90d); `inf` where that makes sense."""
    number = math.nan
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        with suppress(ValueError):
            number = seconds_of(str(value))
    if math.isnan(number) or number < 0:
        raise ConfigError(key, f"{value!r} is not a time of 0 or more: 90, 15m, 2h, 30d")
    return number


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
        raise ConfigError(key, 'is not a table of texts, or JSON like {"name": "text"}')
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
    found = text(key, value)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise ConfigError(key, "has bytes that are not UTF-8: write them as %FF") from None
    return local_url() if found == LOCAL else found
