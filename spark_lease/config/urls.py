"""Takes a URL apart: which part may be shown, and where its password is."""

import os
import re
from urllib.parse import unquote

from ..errors import ConfigError

LOCAL = "local"
"""The `url` for trying spark_lease out on one machine."""


def local_url() -> str:
    """The URL of a SQLite file of this user, for `local`. It excludes no other user and no other host."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return f"sqlite:///{state}/spark_lease/leases.db"


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
    """`url` without anything that could be a password: between : and @, or in a parameter.

    A user's name may have an @ in it (Azure's user@server). An unquoted password may have one too.
    """
    url = re.sub(r"^((?>[\w+.-]+://)[^:/]*:|(?![\w+.-]+://)[^:]*:)(?!@[^@]*\Z).+@", r"\1***@", url, flags=re.S)
    return re.sub(r"([^=&?;#\s]+)=([^&;\s]*)", _hide, url)


def _hide(parameter: re.Match[str]) -> str:
    secret = re.search(r"passw|secret|token|^sig$", unquote(parameter[1]), re.I) and parameter[2]
    return f"{parameter[1]}=***" if secret else parameter[0]
