"""The settings as flags, and the configuration of a command from flags, environment and file."""

import argparse
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..config.parsers import absolute, seconds
from ..config.settings import ENV, SECRETS, SETTINGS, Config, Share
from ..config.sources import Layer, Resolved, from_arguments, from_environment, from_file, resolve
from ..config.urls import LOCAL
from ..errors import ConfigError

USAGE = 64

_METAVARS = {
    "seconds": "TIME",
    "text": "TEXT",
    "store_url": "URL",
    "identifier": "TABLE",
    "exit_code": "CODE",
    "switch": "true|false",
    "true_false_auto": "true|false|auto",
    "words": "TEXT,…",
    "options": "NAME=TEXT,…",
    "texts": "JSON",
}


def who() -> str:
    """The user and host of this command, in ASCII: a broker's table takes nothing else."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = "unknown"
    return f"{user}@{os.uname().nodename}".encode("ascii", "replace").decode()[:150]


class Parser(argparse.ArgumentParser):
    """argparse with the exit code of sysexits.h for a wrong command line."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USAGE, f"{self.prog}: {message}\nSee {self.prog} --help\n")


def add_settings(parser: argparse.ArgumentParser, needed: str = "") -> None:
    """A flag for each setting. `--help` shows those `needed`, by default all in GROUPS; `--help-all` shows the rest."""
    common = parser.add_argument_group(
        "settings",
        "each is also SPARK_LEASE_… and a key of the TOML file (--lease is `name`); see `spark-lease config`. "
        "TIME: 90, 15m, 2h, 30d",
    )
    common.add_argument("--config", metavar="FILE", help="TOML file [$SPARK_LEASE_CONFIG, conf/spark_lease.toml]")
    local = "to try it out: a file of this user on this machine, same as --url local"
    common.add_argument("--local", dest="url", action="store_const", const=LOCAL, help=local)
    help_all: Any = common.add_argument("--help-all", action=_HelpAll, help="also the settings that few need")
    groups = {"which lease, and where": needed} if needed else GROUPS
    for title, keys in groups.items():
        group = parser.add_argument_group(title)
        for key in keys.split():
            _add(group, key)
    group = parser.add_argument_group("settings that few need")
    for key in SETTINGS:
        if key not in SECRETS and key not in " ".join(groups.values()).split():
            help_all.hide(_add(group, key))


GROUPS = {
    "which lease, and where": "name url table create_table holder site",
    "timings": "lease_duration renew_deadline stop_budget retry_period attempt_timeout",
    "a standby": "if_held acquire_timeout poll_period preferred_site standby",
    "runs": "run_key if_done",
    "fences": "fence_url fence_delta fence_tables",
    "observing": "outcome_file metrics metrics_textfile metrics_push",
}


class _HelpAll(argparse.Action):
    """`--help` with the flags that `--help` leaves out."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how, nargs=0)
        self._hidden: list[tuple[argparse.Action, str | None]] = []

    def hide(self, flag: argparse.Action) -> None:
        self._hidden.append((flag, flag.help))
        flag.help = argparse.SUPPRESS

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for flag, text in self._hidden:
            flag.help = text
        parser.print_help()
        parser.exit()


def _add(group: argparse._ArgumentGroup, key: str) -> argparse.Action:
    meta = SETTINGS[key]
    parse = meta["parse"]
    text = meta["help"] + (f" [{shown}]" if (shown := default_of(key)) else "")
    metavar = "|".join(getattr(parse, "words", ())) or _METAVARS.get(parse.__name__, "WORD")
    return group.add_argument(flag_of(key), dest=key, metavar=metavar, help=text.replace("%", "%%"))


def flag_of(key: str) -> str:
    return "--lease" if key == "name" else "--" + key.replace("_", "-")


def default_of(key: str) -> str:
    """The default of a setting, for people; empty if it has none."""
    parse, default = SETTINGS[key]["parse"], SETTINGS[key]["default"]
    if callable(default) or default == "":
        return ""
    if isinstance(default, Share):
        return f"{default.of_lease_duration:.3g} × lease duration"
    if parse is seconds and default >= 86400 and default != math.inf:
        return f"{default / 86400:g}d"
    return str(default).lower() if isinstance(default, bool) else str(default)


def flags(arguments: argparse.Namespace) -> Layer:
    """The settings given on the command line."""
    return from_arguments({key: getattr(arguments, key) for key in SETTINGS if key not in SECRETS}, "command line")


def resolved(arguments: argparse.Namespace, *between: Layer) -> Resolved:
    """All settings of a command; `between` come after the flags and before the environment. Raises ConfigError."""
    if arguments.config:  # this process and its children read it
        os.environ[ENV + "CONFIG"] = str(absolute("config", arguments.config))
    given = getattr(arguments, "leases", None) or list(filter(None, [getattr(arguments, "lease", None)]))
    if given and arguments.name and arguments.name not in given:
        raise ConfigError("name", f"{given[0]} or --lease {arguments.name}? Give one of them")
    return resolve(flags(arguments), *between, from_environment(), from_file())


def outcome_file(arguments: argparse.Namespace) -> str:
    """The outcome file by flag or environment, before the settings are known: they may be wrong."""
    is_inner = ENV + "EPOCH" in os.environ  # then the environment names the file of the guard around this command
    return str(arguments.outcome_file or ("" if is_inner else os.environ.get(ENV + "OUTCOME_FILE", "")))


def name_given(arguments: argparse.Namespace) -> str:
    """The lease name by flag or environment, before the settings are known: they may be wrong."""
    return str(arguments.name or os.environ.get(ENV + "NAME", ""))


def need_name(name: str) -> None:
    """Raise ConfigError unless the command has a lease to guard."""
    if not name:
        raise ConfigError("name", "which lease? Give --lease NAME, or set SPARK_LEASE_NAME")


def names_of(config: Config, given: Sequence[str]) -> list[str]:
    """The leases that a command is about: the given ones, or the one that is set; none if it is about all.

    Raises ConfigError for an invalid name.
    """
    for name in given:
        need_name(name)
        replace(config, name=name)  # it refuses, for example, the end of a line
    return list(given) or ([config.name] if config.name else [])


def of_one_lease(arguments: argparse.Namespace) -> Config:
    """The settings of a command about one lease; they create no table. Raises ConfigError."""
    config = resolved(arguments).config
    name = config.name if arguments.lease is None else arguments.lease
    need_name(name)
    return replace(config, create_table="false", name=name)


def end_with(pid: str) -> None:
    """Have SIGTERM sent to this process, even after an exec, when its parent `pid` ends. Raises ConfigError."""
    if not pid:
        return
    if not pid.isdecimal() or sys.platform != "linux":
        raise ConfigError("ends-with", f"{pid!r} is not the PID of the parent process, or this is not Linux")
    from ..system.kernel import die_with_parent  # ctypes: imported only if needed
    from ..system.processes import look

    parent = os.getppid()
    if parent != int(pid):  # that process may be another user's, and hidden
        if look(int(pid)) is None:
            raise ConfigError("ends-with", f"process {pid} has ended already: nothing was started")
        where = "$PPID if `bash -c` runs only this command, $$ in a script or a pipeline"
        raise ConfigError("ends-with", f"the parent of this process is {parent}, not {pid}: use {where}")
    die_with_parent(int(pid), signal.SIGTERM)
