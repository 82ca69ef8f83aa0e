"""The tables of Delta leases in an object store: `delta+s3://bucket/folder`, or s3a, gs, az, abfs, abfss.

It reads through obstore, the library that delta-rs itself reads through, with the same options and the same environment
variables. An option that one of them would not understand is refused: a key that only one of them reads could lead the
two to different places.

delta-rs commits by a put that the store must refuse if the object exists (If-None-Match). Some servers ignore that
header, and then every contender is master: so it is tested before the first write.
"""

import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from ...clock import span
from ...config.parsers import switch
from ...config.settings import Config
from ...config.urls import redacted
from ...errors import ConfigError, SparkLeaseError, StoreError
from .error_text import PREFIXES, error_text, secrets_of
from .files import plain, refuse_unsafe
from .paths import meant, spelled, version_file

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
_SWITCHES = ("allow_http", "allow_invalid_certificates")
_CLIENT = (*_SWITCHES, "proxy_url", "proxy_ca_certificate", "proxy_excludes")
_FOLLOW = ("timeout", "connect_timeout", "max_retries", "retry_timeout")
_NOT_BOTH = ("http1_", "http2_", "pool_", "default_content", "default_headers", "randomize_", "user_agent")
_DELTA_RS = ("dynamo", "mount_", "object_store_")
_WRITES = ("allow_unsafe_rename", "locking_provider", "conditional_put", "copy_if_not_exists")
"""Options for the way in which delta-rs commits: ours are always put if absent."""
_RETRIES = 2
_PASSING = re.compile(
    r" in [\d.]+\w+(, after \d+ retries, max_retries:? \d+, retry_timeout:? \w+)?"
    r"|<(RequestId|HostId)>.*?</\2>|(?<=lease-probe)-\w+"
)
"""Parts that differ each time the same error occurs: without them the log says it once."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist", "BucketNotFound")
_DENIED = ("lacked the necessary privileges", "403 Forbidden", "401 Unauthorized", "Unauthenticated")


class ObjectFiles:
    """Implements `Files`. Raises ConfigError at once for a URL or option that cannot be used; makes no request yet."""

    def __init__(self, config: Config) -> None:
        self._url, self._config = config.url.partition("+")[2], config
        self._where = redacted(config.url)
        given = _connection(os.environ) | _given(config.storage_options)
        scheme = _refuse_url(self._url, self._where)
        ours = scheme in ("s3", "s3a")
        environ = {key: value for key, value in os.environ.items() if ours or not key.lower().startswith("aws_")}
        refuse_unsafe(config.storage_options, environ)
        self._secrets = secrets_of(given)
        timeout = config.attempt_timeout
        limit = f"{max(round(timeout * 1000), 1)}ms"
        self.options: dict[str, str] | None = given | {
            "timeout": limit,
            "connect_timeout": limit,
            "max_retries": str(_RETRIES),
            "retry_timeout": limit,
        }
        self._store = self._open(given, timeout)
        self._checked = False

    def table(self, name: str) -> str:
        return f"{self._url.rstrip('/')}/{spelled(name)}"

    def has_commit(self, name: str, version: int) -> bool:
        try:
            obstore.head(self._store, f"{spelled(name)}/_delta_log/{version_file(version)}")
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise self.refusal(name, error) from None
        return True

    def has_log(self, name: str) -> bool:
        found = self._list(f"{spelled(name)}/_delta_log")["objects"]
        return any(each["path"].endswith((".json", ".parquet")) for each in found)

    def names(self) -> Sequence[str]:
        return sorted(meant(each.rpartition("/")[2]) for each in self._list(None)["common_prefixes"])

    def check(self) -> None:
        if self._checked:
            return
        probe = f".spark_lease-probe-{secrets.token_hex(8)}"
        try:
            for each in (b"1", b"2"):  # the first is refused if its answer was lost and it was sent again
                obstore.put(self._store, probe, each, mode="create", use_multipart=False)
        except AlreadyExistsError:
            self._checked = True
        except (BaseError, OSError) as error:
            if "501 Not Implemented" not in str(error):
                raise self.refusal("", error) from None
        finally:
            with contextlib.suppress(BaseError, OSError):
                obstore.delete(self._store, probe)
        if not self._checked:
            raise ConfigError(
                "url",
                f"{self._where}: this store does not honour If-None-Match: it overwrites objects, so that "
                "two would become master, or none: take a store that honours it, or leases in a database",
            )

    def init(self) -> list[str]:
        self._list(None)
        return []

    def make(self, name: str) -> None:
        if self._config.create_table == "false":
            raise ConfigError(
                "url",
                f"there is no lease {name!r} in {self._where}: spark-lease init --lease {shlex.quote(name)} makes it",
            )

    def put_new(self, name: str, path: str, text: str) -> bool:
        self.check()
        try:
            obstore.put(self._store, f"{spelled(name)}/{path}", text.encode(), mode="create", use_multipart=False)
        except AlreadyExistsError:
            # A put that is sent again after a lost answer finds itself.
            return self.get(name, path) == text
        except (BaseError, OSError) as error:
            raise self.refusal(name, error) from None
        return True

    def get(self, name: str, path: str) -> str | None:
        try:
            return bytes(obstore.get(self._store, f"{spelled(name)}/{path}").bytes()).decode()
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self.refusal(name, error) from None

    def list(self, name: str, folder: str) -> Sequence[tuple[float, str]]:
        found = self._list(f"{spelled(name)}/{folder}")["objects"]
        return [(each["last_modified"].timestamp(), f"{folder}/{each['path'].rpartition('/')[2]}") for each in found]

    def remove(self, name: str, path: str) -> bool:
        there = self.get(name, path) is not None
        try:
            obstore.delete(self._store, f"{spelled(name)}/{path}")
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise self.refusal(name, error) from None
        return there

    def refusal(self, name: str, error: Exception) -> SparkLeaseError:
        text, where = str(error), f"{self._where}/{spelled(name)}" if name else self._where
        if any(each in text for each in _NO_BUCKET):
            return ConfigError("url", f"{self._where}: there is no such bucket: make it, or name another")
        if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or any(each in text for each in _DENIED):
            return ConfigError(
                "url",
                f"{where} refuses these credentials, which must list, get, put and delete: {self.error_text(error)}",
            )
        return StoreError(where, self.error_text(error))

    def error_text(self, error: Exception) -> str:
        return " ".join(_PASSING.sub("", error_text(error, self._secrets)).split())

    def _list(self, folder: str | None) -> Any:
        try:
            return obstore.list_with_delimiter(self._store, folder)
        except (BaseError, OSError) as error:
            raise self.refusal("", error) from None

    def _open(self, given: Mapping[str, str], timeout: float) -> Any:
        try:
            return _opened(self._url, given, timeout)
        except UnknownConfigurationKeyError as error:
            problem = self.error_text(error).split(". ")[0]
            raise ConfigError("storage_options", f"{problem}: see delta-rs for its names") from None
        except Exception as error:  # obstore raises anything for a bad option
            raise ConfigError("storage_options", f"{self._where} cannot be opened: {self.error_text(error)}") from None


def open_bucket(url: str, options: Mapping[str, str], timeout: float) -> Any:
    """The obstore of a table that is not ours: `options` that only delta-rs knows are for its writes and left out."""
    named = {_bare(key) if _bare(key) in _CLIENT else key.lower(): value for key, value in options.items()}
    given = {key: value for key, value in named.items() if not _is_delta_rs(_bare(key))}
    return _opened(url, _connection(os.environ) | given, timeout)


def _is_delta_rs(key: str) -> bool:
    return key in _FOLLOW or "backoff" in key or key.startswith((*_NOT_BOTH, *_DELTA_RS)) or plain(key) in _WRITES


def _opened(url: str, given: Mapping[str, str], timeout: float) -> Any:
    client: dict[str, Any] = {"timeout": span(timeout), "connect_timeout": span(timeout)}
    for key in (each for each in given if each in _CLIENT):
        client[key] = switch("storage_options", given[key]) if key in _SWITCHES else given[key]
    keys: dict[str, Any] = {key: value for key, value in given.items() if key not in _CLIENT}
    retry: Any = {"max_retries": _RETRIES, "retry_timeout": span(timeout)}
    return from_url(url, config=keys, client_options=client, retry_config=retry)  # type: ignore[call-overload]


def _refuse_url(url: str, where: str) -> str:
    """The scheme of the URL. Raises ConfigError, without the URL if it may hold a signature."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.password:
        raise ConfigError("url", "carries a query or a password: keys of an object store go into storage_options")
    if parts.scheme not in SCHEMES:
        raise ConfigError("url", f"{where!r}: delta+ goes with {', '.join(f'{each}://' for each in SCHEMES)}")
    if not parts.netloc or not re.fullmatch(r"(/[\w.=!-]+)+/?", parts.path, re.ASCII):
        raise ConfigError(
            "url", f"{where!r} names no bucket and folder, of letters, digits, - _ . = !: delta+s3://bucket/leases"
        )
    return parts.scheme


def _given(options: Mapping[str, str]) -> dict[str, str]:
    """The options as both libraries take them: in small letters, connection options without a cloud's prefix."""
    given = {}
    for key, value in options.items():
        small, bare = key.lower(), _bare(key)
        if bare in _FOLLOW or "backoff" in bare:
            raise ConfigError("storage_options", f"{key} follows from attempt_timeout: set that")
        if bare.startswith(_NOT_BOTH):
            raise ConfigError("storage_options", f"{key} is not for a lease: remove it")
        given[bare if bare in _CLIENT else small] = value
    return given


def _connection(environ: Mapping[str, str]) -> dict[str, str]:
    """Options of the connection in the environment, which obstore would not look up."""
    return {_bare(key): value for key, value in environ.items() if key != _bare(key) and _bare(key) in _CLIENT}


def _bare(key: str) -> str:
    return re.sub(f"^({'|'.join(PREFIXES)})", "", key.lower())
