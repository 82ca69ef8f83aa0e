"""Puts lease and epoch into a session of PostgreSQL. Loads no database driver.

Each lease has a setting of its own for its epoch, so that one session can work under several leases:
`spark_lease.epoch_<16 hex digits of the name's SHA-256> = 1795262899640`. Fenced tables compare it (`triggers.py`).
`application_name` is `spark_lease/<epoch>/<the same digits>/<text for people>`: by it a newer master finds the sessions
of older ones (`stale_sessions.py`). Both are set when a session is opened: from the environment for every client of
libpq, in the URL for JDBC.
"""

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from ...errors import ConfigError

_LONGEST_APPLICATION_NAME = 63
"""Bytes (NAMEDATALEN - 1); PostgreSQL truncates a longer one."""
_OURS = re.compile(r"^spark_lease/\d+/[0-9a-f]{16}/")


def digest(name: str) -> str:
    """A short hash of a lease's name, where not every name fits."""
    import hashlib  # slow to import, and only fences need it

    return hashlib.sha256(name.encode()).hexdigest()[:16]


def setting_of(name: str) -> str:
    """The setting that carries the epoch of the lease `name`."""
    return f"spark_lease.epoch_{digest(name)}"


def application_prefix(name: str, epoch: int) -> str:
    """The prefix of the application_name of every session of this epoch."""
    return f"spark_lease/{epoch}/{digest(name)}/"


def application_of(name: str, epoch: int, label: str = "") -> str:
    """The application_name of a session; `label` is for people, by default the name of the lease."""
    readable = re.sub(r"[^ -~]", "?", _OURS.sub("", label) or name)
    return (application_prefix(name, epoch) + readable)[:_LONGEST_APPLICATION_NAME]


def with_epoch(
    name: str, epoch: int, given: Mapping[str, str], options: str = "options", application: str = "application_name"
) -> dict[str, str]:
    """`given[options]` and `given[application]` with the epoch in them. Empty for epoch 0, which is no grant."""
    if not epoch:
        return {}
    setting = setting_of(name)
    kept = re.sub(rf"\s*-c\s*{re.escape(setting)}=\d+", "", given.get(options, "")).lstrip()
    return {
        options: f"{kept} -c {setting}={epoch}".lstrip(),
        application: application_of(name, epoch, given.get(application, "")),
    }


def session_environment(name: str, epoch: int, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """PGOPTIONS and PGAPPNAME (PostgreSQL documentation, "Environment Variables"), added to those of `environ`.

    Empty for epoch 0: a table that is open to sessions without a lease is open to this one.
    """
    return with_epoch(name, epoch, environ, "PGOPTIONS", "PGAPPNAME")


def jdbc_url(url: str, name: str, epoch: int) -> str:
    """`url` with the epoch in it, for PostgreSQL's JDBC driver, which reads no environment. Raises ConfigError."""
    if not url.startswith("jdbc:postgresql:"):
        raise ConfigError("jdbc_url", "only jdbc:postgresql: carries an epoch: elsewhere write inside lease.fenced_sql")
    if not epoch:
        return url
    base, _, query = url.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    # urlencode writes a blank as +, and Java's URLDecoder reads it so.
    return f"{base}?{urlencode(given | with_epoch(name, epoch, given, application='ApplicationName'))}"
