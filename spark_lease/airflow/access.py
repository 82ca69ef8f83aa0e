"""Turns an Airflow connection and an operator's arguments into settings. Opens no connection, knows no tasks.

A child process gets what it has to know in its environment, which only its own user can read. Its command line, which
all users can read, has only settings that are no secret.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.providers.common.compat.sdk import Connection

from ..cli.settings import flag_of
from ..config.settings import ENV, MAX_NAME, SECRETS, SETTINGS, URLS, Config, as_text
from ..config.sources import from_arguments, from_environment, from_file, resolve
from ..config.urls import has_password, without_password
from ..errors import ConfigError

_SQL = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}
"""URL schemes by Airflow's type of a connection."""
_FOLDERS = re.compile(r"(file|delta)(\+\w+)?")
_NOT_OF_A_CONNECTION = {"name", "password", "run_key"}
_OF_LIBPQ = {"options", "target_session_attrs", "connect_timeout", "channel_binding", "gssencmode", "krbsrvname"}
"""Parameters of a connection that Airflow's own hook for PostgreSQL passes on as well, besides ssl*."""
PLACES = {"url", "statements", "column_types"}
"""Settings that say where a lease is, and how its store is asked."""
_SEEN = ("table", "broker_row", "lease_duration")
"""Settings beside a connection that change what a look shows."""


def settings_of(connection: Connection) -> dict[str, Any]:
    """The settings of a connection: `url`, `password`, and the settings in its extra.

    Raises ConfigError if it names no lease store, or if its extra cannot be read: if a setting such as `table` were
    ignored, that would be another lease.
    """
    extra = _extra_of(connection)
    is_ours = connection.conn_type == "spark_lease"  # else the extra is for others as well
    named = {key for key in extra if key in SETTINGS or is_ours} - _NOT_OF_A_CONNECTION
    found = {key: extra[key] for key in named}
    found["url"], password = _apart(_url_of(connection, extra), connection)
    return found | ({"password": password} if password else {})


def _extra_of(connection: Connection) -> dict[str, Any]:
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError as error:
        raise ConfigError(f"connection {connection.conn_id}", f"its extra is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"connection {connection.conn_id}", 'its extra is no object like {"table": "spark_lease"}')
    return found


def _url_of(connection: Connection, extra: Mapping[str, Any]) -> str:
    kind, host, schema = connection.conn_type or "", connection.host or "", connection.schema or ""
    if url := extra.get("url") or (host if "://" in host else ""):
        return str(url)
    if kind in _SQL and (host or schema):
        port = f":{connection.port}" if connection.port else ""
        where = f"[{host}]" if host.count(":") > 1 and not host.startswith("[") else host
        more = _parameters(connection, extra, _SQL[kind])
        return f"{_SQL[kind]}://{where}{port}/{quote(schema)}" + (f"?{urlencode(more)}" if more else "")
    if kind == "sqlite" and (host or schema):
        return f"sqlite:////{(host or schema).lstrip('/')}"
    if _FOLDERS.fullmatch(kind) and (host or schema):
        return f"{kind}://{host}/{schema.lstrip('/')}"
    raise ConfigError(
        f"connection {connection.conn_id}",
        "has no URL of a lease store: give one as its host, as postgresql://host/db, or as url in its extra",
    )


def _parameters(connection: Connection, extra: Mapping[str, Any], kind: str) -> dict[str, str]:
    """The part of the extra that belongs into the URL: above all, how the connection is encrypted."""
    tls = {key: value for key, value in extra.items() if key.startswith("ssl") and key != "ssl"}
    if kind == "postgresql":
        return _texts(tls | {key: extra[key] for key in sorted(_OF_LIBPQ & extra.keys())})
    given = extra.get("ssl") or {}
    if isinstance(given, str):  # Airflow's hook for MySQL takes both
        with suppress(ValueError):
            given = json.loads(given)
    if not isinstance(given, Mapping):
        problem = 'ssl in its extra is no object like {"ca": "/etc/ca.pem"}'
        raise ConfigError(f"connection {connection.conn_id}", problem)
    return _texts(tls | {f"ssl_{key}": value for key, value in given.items()})


def _texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    return {key: as_text(value) for key, value in parameters.items() if value is not None}


def _apart(url: str, connection: Connection) -> tuple[str, str]:
    """The URL with its user but without its password, and the password: the connection's own if it has one."""
    url, password = without_password(url)
    parts, password = urlsplit(url), connection.password or password
    user = parts.username or quote(connection.login or "", safe="")
    if parts.scheme.partition("+")[0] not in _SQL.values():
        return url, password
    _, _, where = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}@{where}" if user else where).geturl(), password


def config_of(lease: str, connection: Connection | None, settings: Mapping[str, Any]) -> Config:
    """All settings: those given here, the connection's, then the environment's and the file's. Raises ConfigError."""
    refuse_secrets(settings)
    if not isinstance(lease, str) or not lease.strip():
        raise ConfigError("lease", "is empty: give the name of a lease, the same on all sites")
    layers = [from_arguments({**settings, "name": lease})]
    layers += [from_arguments(settings_of(connection), f"connection {connection.conn_id}")] if connection else []
    return resolve(*layers, from_environment(), from_file()).config


def seen_from_elsewhere(lease: str, connection: Connection, settings: Mapping[str, Any]) -> Config:
    """The settings for a look at a lease from a machine that has only the connection: it alone says where the lease is.

    Raises ConfigError.
    """
    known = {key: value for key, value in settings.items() if key in _SEEN}
    layers = from_arguments({**known, "name": lease}), from_arguments(settings_of(connection), "connection")
    return resolve(*layers).config


def refuse_secrets(settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a secret in a DAG: all users who can see the DAG can see it."""
    if found := SECRETS & set(settings):
        raise ConfigError(min(found), "is a secret: put it into the connection of lease_conn_id")
    for key in set(URLS) & set(settings):
        if has_password(str(settings[key])):
            raise ConfigError(key, "carries a password: put it into the connection of lease_conn_id")


def refuse_waiting(settings: Mapping[str, Any], *keys: str) -> None:
    """Raise ValueError for settings that a task has as arguments of its own."""
    if found := sorted(set(keys) & set(settings)):
        raise ValueError(f"{found[0]} in lease_settings: on_standby and standby_timeout decide what a standby does")


def fitting(run_key: object) -> str:
    """A run key of at most 250 characters: the ids of DAG and task alone may have as many. It may be a number."""
    run_key = str(run_key)
    if len(run_key) <= MAX_NAME:
        return run_key
    return f"{run_key[:180].strip()} {sha256(run_key.encode()).hexdigest()}"


def as_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings as SPARK_LEASE_* of a child process."""
    return {ENV + key.upper(): as_text(value) for key, value in settings.items()}


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """The settings as words of the command line."""
    return [f"{flag_of(key)}={as_text(value)}" for key, value in settings.items()]
