"""Error texts of delta-rs and obstore, in one line and without credentials: theirs hold keys and signatures."""

import os
import re
from collections.abc import Mapping, Sequence

PREFIXES = ("aws_", "azure_", "google_")
"""Prefixes of environment variables that hold a cloud's addresses and keys."""
_SECRET = re.compile(r"key|secret|token|sas|signature|password|credential", re.I)
_COLOURS = re.compile(r"\x1b\[\d*m|↳")


def error_text(error: Exception, secrets: Sequence[str] = ()) -> str:
    """An error in one line. `secrets`: see `secrets_of`."""
    text = str(error).partition("Debug source:")[0]
    for each in secrets:
        text = text.replace(each, "***")
    text = re.sub(r"(?<=://)[^/\s:@]*:[^/\s]*@", "***@", text)
    text = re.sub(r"(?<=[\w/])\?[^\s\"'<>)]+", "?…", text)  # a query may be a signature
    return " ".join(_COLOURS.sub("", text).split())[:500]


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Every value of `options` and of the environment that may be a secret, the longest first."""
    cloud = {key: value for key, value in os.environ.items() if key.lower().startswith(PREFIXES)}
    found = {value for key, value in [*options.items(), *cloud.items()] if _SECRET.search(key) and len(value) > 5}
    return sorted(found, key=len, reverse=True)
