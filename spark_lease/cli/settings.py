"""The settings as flags, and the configuration of a command from flags, environment and file."""

from __future__ import annotations

import argparse
import getpass
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..config import (
    ENV,
    LOCAL,
    SECRETS,
    SETTINGS,
    Config,
    Layer,
    Resolved,
    Share,
    from_arguments,
    from_environment,
    from_file,
    resolve,
)
from ..errors import ConfigError

USAGE = 64

_NAMES = {"name": "--lease"}
_METAVARS = {"seconds": "SECONDS", "text": "TEXT", "identifier": "TABLE", "exit_code": "CODE", "switch": "TRUE|FALSE"}


def who() -> str:
    """Who gives this command, of plain letters, because a broker's table takes no others."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "somebody"
    return f"{user}@{socket.gethostname()}".encode("ascii", "replace").decode()[:150]


class Parser(argparse.ArgumentParser):
    """argparse with the exit code that sysexits.h has for a wrong command line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USAGE, f"{self.prog}: {message}\nSee {self.prog} --help\n")


def add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "settings", "each is also SPARK_LEASE_… and a key of the TOML file; see `spark-lease config`"
    )
    group.add_argument("--config", metavar="FILE", help="TOML file; default $SPARK_LEASE_CONFIG, conf/spark_lease.toml")
    words = (
        "for trying it out: a file of this user on this machine, which excludes no job elsewhere; same as --url local"
    )
    group.add_argument("--local", dest="url", action="store_const", const=LOCAL, help=words)
    for key, meta in SETTINGS.items():
        if key in SECRETS:
            continue
        default = meta["default"]
        words = f"{default.of_lease_duration:.3g} × lease duration" if isinstance(default, Share) else default
        words_for_it = meta["help"] + ("" if callable(default) or default == "" else f" [{words}]")
        flag = _NAMES.get(key, "--" + key.replace("_", "-"))
        group.add_argument(
            flag, dest=key, metavar=_METAVARS.get(meta["parse"].__name__, "WORD"), help=words_for_it.replace("%", "%%")
        )


def flags(arguments: argparse.Namespace) -> Layer:
    """The settings that stand on the command line."""
    return from_arguments({key: getattr(arguments, key) for key in SETTINGS if key not in SECRETS}, "command line")


def resolved(arguments: argparse.Namespace, *between: Layer) -> Resolved:
    """All settings of a command; `between` come after the flags and before the environment. Raises ConfigError."""
    use_file(arguments)
    return resolve(flags(arguments), *between, from_environment(), from_file())


def use_file(arguments: argparse.Namespace) -> None:
    """Make the chosen file the one that this process and what it starts will read."""
    if arguments.config:
        os.environ[ENV + "CONFIG"] = str(Path(arguments.config).absolute())


def need_name(name: str) -> None:
    """Raise ConfigError unless the command has a lease to guard."""
    if not name:
        raise ConfigError("name", "which lease? Give --lease NAME, or set SPARK_LEASE_NAME")


def names_of(config: Config, given: Sequence[str]) -> list[str]:
    """The leases that a command is about: those that it is given, or the one that is set; none if it is about all.

    Raises ConfigError for what no lease is called.
    """
    for name in given:
        need_name(name)
        replace(config, name=name)  # which refuses, say, the end of a line
    return list(given) or ([config.name] if config.name else [])


def name_of(config: Config, given: str | None) -> str:
    """The lease that a command is about. Raises ConfigError if there is none."""
    need_name(config.name if given is None else given)
    (name,) = names_of(config, [] if given is None else [given])
    return name


def end_with(pid: str) -> None:
    """Have SIGTERM sent to this process, or what it becomes, when its parent `pid` ends. Raises ConfigError."""
    if not pid:
        return
    if not pid.isdecimal() or sys.platform != "linux":
        raise ConfigError("ends-with", f"{pid!r} is not the number of the process that started this one, on Linux")
    from ..keeper.kernel import die_with_parent  # ctypes, for those who need it
    from ..processes import look

    parent = os.getppid()
    if parent != int(pid) and look(int(pid)) is not None:
        where = "$PPID where `bash -c` has this one command and nothing else, $$ in a script or a pipeline"
        raise ConfigError("ends-with", f"{pid} has not started this process, {parent} has: it is {where}")
    die_with_parent(int(pid), signal.SIGTERM)
