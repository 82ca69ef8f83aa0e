"""Finds spark-submit, and reads its command line."""

import importlib.util
import locale
import logging
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..config.settings import ENV, SPARK, URLS
from ..config.urls import has_password, without_password
from ..errors import ConfigError
from ..system.processes import add_mark

log = logging.getLogger(__name__)

JAVA_MISSING = "Spark needs Java: install a JDK 17 or 21 and put java on PATH, or set JAVA_HOME"
SUBMISSION = "--submission"
"""The launcher's argument before the id of a submission to a cluster."""
LAUNCHER = Path(__file__).with_name("launcher.py")

_SWITCHES = {"--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error", "--load-spark-defaults"}
"""The options of spark-submit that take no value (spark-submit --help)."""


def split(arguments: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """spark-submit's command line as options, script and the script's arguments. Raises ConfigError."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 1 if arguments[at] in _SWITCHES or "=" in arguments[at] else 2
    if at >= len(arguments) or not arguments[at].endswith(".py"):
        raise ConfigError(
            "submit", "no app.py among the arguments of spark-submit; for anything else use spark-lease run"
        )
    return list(arguments[:at]), arguments[at], list(arguments[at + 1 :])


def without_scheme(script: str, scheme: str) -> str:
    """The path in a URL of that scheme, in any of Hadoop's spellings; any other `script` unchanged."""
    return re.sub(f"^{scheme}:(//)?(?=/)", "", script)


def local_file(script: str) -> Path:
    """The script on this machine, given as a path, a file: URL or a link; links are resolved, as by spark-submit.

    Raises ConfigError if there is none."""
    script = without_scheme(script, "file")
    if not Path(script).is_file():
        what = "is no file" if Path(script).exists() else "does not exist on this machine"
        raise ConfigError("submit", f"{script} {what}")
    return Path(script).resolve()


def conf_of(options: Sequence[str]) -> dict[str, str]:
    """The `--conf key=value` among the options, in both of spark-submit's spellings, over those of its file."""
    pairs = [value.partition("=") for option, value in _given(options) if option in ("--conf", "-c")]
    return _properties(options) | {key: value for key, _, value in pairs}


def _properties(options: Sequence[str]) -> dict[str, str]:
    """The settings in the files that spark-submit reads. If one cannot be read, spark-submit itself reports it."""
    home = os.environ.get("SPARK_HOME") or own_spark() or "/nonexistent"
    defaults = Path(os.environ.get("SPARK_CONF_DIR", f"{home}/conf"), "spark-defaults.conf")
    given = dict(_given(options))
    if file := given.get("--properties-file"):
        return (_read(defaults) if "--load-spark-defaults" in given else {}) | _read(Path(file))
    return _read(defaults)


def _read(file: Path) -> dict[str, str]:
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = [re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and line[0] not in "#!"]
    return {key: "".join(value) for key, *value in pairs}


def _given(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each option and its value, in both of spark-submit's spellings and in its order: of two, the last one counts."""
    words = iter(options)
    for word in words:
        option, joined, value = word.partition("=")
        if option.startswith("-"):
            yield (option, value) if joined or option in _SWITCHES else (option, next(words, ""))


def bare_url(key: str, url: str) -> tuple[str, str]:
    """`url` for a command line, and its password. Raises ConfigError if one of its parameters is a password."""
    bare, password = without_password(url)
    if has_password(bare):
        raise ConfigError(key, f"carries a password as a parameter: use {ENV}{URLS[key].upper()} or PGPASSWORD")
    return bare, password


def refuse_what_java_misreads(words: Sequence[str]) -> None:
    """Raise ConfigError for a setting that a JVM would misread on its command line, for example in the locale C: two
    hosts would take two leases, or two days would have one run key."""
    for word in words:
        try:
            word.encode(locale.getencoding())
        except UnicodeEncodeError as error:
            if word.startswith((SPARK, f"--conf={SPARK}")):
                raise ConfigError(
                    word.removeprefix("--conf=").partition("=")[0],
                    f"in the locale of this process ({error.encoding}) Java cannot read {error.object[error.start]!r}: "
                    "set LC_ALL=C.UTF-8",
                ) from None


def name_of(script: str, options: Sequence[str]) -> list[str]:
    """The option that names the application after the script: else Spark would name it after the launcher."""
    return [] if value_of(options, "--name", "spark.app.name") else ["--name", Path(script).name]


def value_of(options: Sequence[str], flag: str, key: str = "") -> str:
    """The value of `flag` among the options, or else of the Spark setting `key`; empty if neither is given."""
    return dict(_given(options)).get(flag) or conf_of(options).get(key, "")


def is_for_cluster(options: Sequence[str]) -> bool:
    """True if the driver is to run on a machine of the cluster."""
    return value_of(options, "--deploy-mode", "spark.submit.deployMode") == "cluster"


def find_java(environ: Mapping[str, str] = os.environ) -> str | None:
    """The java that spark-submit will find: that of JAVA_HOME, or the one on PATH."""
    home = environ.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environ.get("PATH"))


def has_java() -> bool:
    return find_java() is not None


def what_java_lacks() -> str:
    """What to do if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    return f"JAVA_HOME is {home}, where there is no bin/java: correct or unset it" if home else JAVA_MISSING


def set_spark_home(wanted: str) -> None:
    """Set SPARK_HOME as `wanted`, or the spark-submit on PATH, would: we read its spark-defaults.conf as well."""
    command = shutil.which(wanted or "spark-submit")
    if command and "SPARK_HOME" not in os.environ and (wanted or not own_spark()):
        # As spark-submit does, by its own path; through a link only if there is no Spark beside the link.
        for home in (each.parents[1] for each in (Path(command).resolve(), Path(command).absolute())):
            # pip puts only the scripts beside Python, and a Hadoop distribution has jars of its own.
            if (home / "jars").is_dir() and (home / "bin" / "spark-class").is_file():
                os.environ["SPARK_HOME"] = str(home)


def find_spark_submit(wanted: str = "") -> tuple[str, dict[str, str]]:
    """spark-submit (`wanted`, by name or path, if given) and the environment for it: the Python for driver and workers,
    and the mark. Raises ConfigError."""
    environ = dict(os.environ)
    home = environ.get("SPARK_HOME") or own_spark()
    if not (wanted or environ.get("SPARK_HOME")):
        _warn_of_another(home)
    if wanted or not home:
        command = shutil.which(wanted or "spark-submit")
    else:
        environ["SPARK_HOME"] = home
        command = str(Path(home, "bin", "spark-submit"))
    if not command or not Path(command).is_file():
        missing = f"there is no {wanted or 'spark-submit'}"
        if environ.get("SPARK_HOME") and not wanted:
            raise ConfigError(
                "submit", f"SPARK_HOME is {home}, where there is no bin/spark-submit: correct or unset it"
            )
        raise ConfigError("submit", f"{missing}: pip install 'spark_lease[spark]', set SPARK_HOME, or put it on PATH")
    if not os.access(command, os.X_OK):
        raise ConfigError("submit", f"{command} may not be run by this user: chmod +x, or name another")
    if not has_java():
        raise ConfigError("submit", what_java_lacks())
    environ.setdefault("PYSPARK_PYTHON", _python_of(command))
    add_mark(environ)
    return command, environ


def _warn_of_another(home: str) -> None:
    """Warn if the site's own Spark is not used: it may have another version than the one from pip."""
    on_path = shutil.which("spark-submit")
    if not home or not on_path:
        return
    own = {sysconfig.get_path("scripts"), sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))}
    if Path(on_path).parent.resolve() not in {Path(each).resolve() for each in (*own, f"{home}/bin")}:
        message = "using the spark-submit of pyspark in %s, not %s: choose by SPARK_HOME or --spark-submit"
        log.warning(message, home, on_path)


def own_spark() -> str:
    """The Spark in this Python's packages; empty if there is none, or only a client of Spark Connect."""
    package = importlib.util.find_spec("pyspark")
    folders = list(package.submodule_search_locations or ()) if package else []
    return next((each for each in folders if Path(each, "bin", "spark-submit").is_file()), "")


def _python_of(command: str) -> str:
    """The Python beside a spark-submit that pip installed into another environment; else this one."""
    beside = Path(command).with_name("python3")
    return str(beside) if beside.exists() else sys.executable
