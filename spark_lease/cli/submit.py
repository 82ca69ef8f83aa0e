"""`spark-lease submit`: becomes spark-submit, with the launcher as its application and the script as an argument."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..config import ENV, SPARK, URLS, Layer, camel, from_spark, has_password
from ..errors import ConfigError, SparkLeaseError
from ..outcome import announce, refused
from ..processes import add_mark
from .settings import end_with, flags, need_name, resolved

JAVA_MISSING = "Spark needs Java: install a JDK 17 or 21 and put java on PATH, or set JAVA_HOME"
LAUNCHER = Path(__file__).parents[1] / "spark" / "launcher.py"

_SWITCHES = {"--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error", "--load-spark-defaults"}
"""The options of spark-submit that take no value (spark-submit --help)."""


def submit(arguments: argparse.Namespace) -> int:  # noqa: RET503 (execvpe does not return)
    """Replaces this process. Returns only if the submission cannot be made."""
    config = None
    try:
        options, script, rest = split(arguments.guarded)
        config = resolved(arguments, from_spark(conf_of(options))).config
        if "--properties-file" not in options:
            need_name(config.name)
        refuse_cluster_mode(options)
        command, environ = find_spark_submit(arguments.spark_submit)
        settings = as_conf(flags(arguments), environ)
        end_with(arguments.ends_with)
    except SparkLeaseError as error:
        print(f"spark-lease: {error}", file=sys.stderr)
        announce(refused(config, error))
        return error.exit_code
    # The launcher is what Spark runs, the script is what people look for in the UI.
    named = "--name" in options or "spark.app.name" in conf_of(options)
    name = [] if named else ["--name", Path(script).name]
    os.execvpe(command, [command, *name, *options, *settings, str(LAUNCHER), script, *rest], environ)


def split(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """spark-submit's command line as options, script and the script's arguments. Raises ConfigError."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 1 if words[at] in _SWITCHES or "=" in words[at] else 2
    if at >= len(words) or not words[at].endswith(".py"):
        raise ConfigError(
            "submit", "no app.py among the arguments of spark-submit; for anything else use spark-lease run"
        )
    if not Path(words[at]).is_file():
        raise ConfigError("submit", f"{words[at]} does not exist on this machine")
    return list(words[:at]), str(Path(words[at]).absolute()), list(words[at + 1 :])


def conf_of(options: Sequence[str]) -> dict[str, str]:
    """The `--conf key=value` among the options, in both of spark-submit's spellings."""
    pairs = [after for option, after in pairwise(options) if option in ("--conf", "-c")]
    pairs += [option.partition("=")[2] for option in options if option.startswith("--conf=")]
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def as_conf(layer: Layer, environ: dict[str, str]) -> list[str]:
    """The flags as spark.lease.* keys, the last being the strongest; a password goes the way nobody can look."""
    options: list[str] = []
    for key, (_, value) in layer.values.items():
        if key in URLS and (password := urlsplit(str(value)).password):
            environ[ENV + URLS[key].upper()] = unquote(password)
            value = str(value).replace(f":{password}@", "@")
        if key in URLS and has_password(str(value)):
            instead = ENV + URLS[key].upper()
            raise ConfigError(key, f"carries a password as a parameter: use {instead} or PGPASSWORD")
        options += ["--conf", f"{SPARK}{camel(key)}={value}"]
    return options


def refuse_cluster_mode(options: Sequence[str]) -> None:
    mode = conf_of(options).get("spark.submit.deployMode", "")
    if "cluster" in (mode, *(b for a, b in pairwise(options) if a == "--deploy-mode")) or (
        "--deploy-mode=cluster" in options
    ):
        raise ConfigError(
            "submit", "deploy mode cluster is not supported yet: use client mode, or @leased in the script"
        )


def has_java() -> bool:
    """True if spark-submit will find a Java: that of JAVA_HOME, or the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java") is not None


def find_spark_submit(wanted: str = "") -> tuple[str, dict[str, str]]:
    """spark-submit (`wanted`, by name or path, if given) and the environment for it: the Python for driver and workers,
    and the mark. Raises ConfigError."""
    environ = dict(os.environ)
    home = environ.get("SPARK_HOME") or _own_spark()
    if wanted or not home:
        command = shutil.which(wanted or "spark-submit")
    else:
        environ["SPARK_HOME"] = home
        command = str(Path(home, "bin", "spark-submit"))
    if not command or not Path(command).is_file():
        missing = f"there is no {wanted or 'spark-submit'}"
        raise ConfigError("submit", f"{missing}: pip install 'spark_lease[spark]', set SPARK_HOME, or put it on PATH")
    if not has_java():
        raise ConfigError("submit", JAVA_MISSING)
    environ.setdefault("PYSPARK_PYTHON", _python_of(command))
    add_mark(environ)
    return command, environ


def _own_spark() -> str:
    """The Spark in this Python's packages; empty if there is none, or only a client of Spark Connect."""
    package = importlib.util.find_spec("pyspark")
    folders = list(package.submodule_search_locations or ()) if package else []
    return next((each for each in folders if Path(each, "bin", "spark-submit").is_file()), "")


def _python_of(command: str) -> str:
    """The Python beside a spark-submit that pip installed into another environment; else this one."""
    beside = Path(command).with_name("python3")
    return str(beside) if beside.exists() else sys.executable
