"""What `spark-lease doctor` checks on this machine: keeper, kernel, namespaces, Java, Spark, metrics, Delta."""

import importlib.util
import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

from ..config.settings import Config
from ..keeper.supervisor import NO_SETUID, why_not_contained
from ..submit.command_line import find_java, own_spark, set_spark_home, what_java_lacks
from ..system.containment import Namespace
from ..system.kernel import why_not
from .findings import Check, Finding, fail, ok, warn

_JAVAS = ("17", "21")
_HOOK_SINCE = (3, 3)
_START = 30.0


def checks(config: Config) -> list[Check]:
    return [
        Check("keeper", lambda: keeper(config.keeper, why_not())),
        Check("contain", lambda: contain(config.contain, *map(why_not_contained, Namespace))),
        Check("java", lambda: java(java_home())),
        Check("spark", lambda: spark(spark_home())),
        Check("metrics", lambda: metrics(config, has_client=_has("prometheus_client"))),
        Check("delta", lambda: _delta(config.fence_delta)),
    ]


def _delta(setting: str) -> Finding:
    version, has_jar = delta_of_spark()
    return delta(setting, has_deltalake=_has("deltalake"), version=version, has_jar=has_jar)


def keeper(setting: str, problem: str) -> Finding:
    """`problem`: why the kernel takes no part; empty if it does."""
    if setting == "thread":
        message = "thread: a driver that is frozen, or in a long C call, may still work when the next master starts"
        return warn(message, 'take keeper = "auto"')
    if problem:
        message = f"the keeper ends a late driver only while the keeper itself runs; the kernel does not: {problem}"
        return warn(message, "let it use timers and /proc (seccomp, mounts), or rely on a fence")
    return ok("kernel: a late master is killed even if all its processes are frozen")


def contain(setting: str, root: str, user: str) -> Finding:
    """`root` and `user`: why no namespace is available, by privilege and for any user; empty if one is."""
    if setting == "off":
        return ok("off: processes that a command leaves are searched for")
    if not root:
        message = "run and submit use a PID namespace: when it ends, the kernel has killed everything they started"
        return ok(f"{message}; what they start sees no process outside of it")
    if setting == "required" and user:
        return fail(f"required, but not available here: {user}", "run as root, or take contain = auto")
    if setting == "required":
        return ok(f"by a user namespace: sudo and every other setuid program {NO_SETUID}")
    if user:
        return ok(f"not available here ({user}): processes that a command leaves are searched for")
    message = "contain = required takes a user namespace, in which sudo and other setuid programs do not work"
    return ok(f"not without privileges ({root}); {message}")


def java(home: Path | None) -> Finding:
    if home is None:
        return warn("none found; run needs none, submit and PySpark do", what_java_lacks())
    try:
        done = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_START)
    except (OSError, subprocess.TimeoutExpired) as error:
        return fail(f"{home} does not start: {error}", "correct JAVA_HOME, or install it again")
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())
        return fail(f"{home} does not start: {message}", "correct JAVA_HOME, or install it again")
    version_line = re.search(r'version "(\d+)', done.stderr)
    if version_line is None:
        return ok(f"{home}, version unknown")
    if version_line[1] not in _JAVAS:
        return warn(f"{version_line[1]} in {home}", f"Spark 4 runs on Java {' and '.join(_JAVAS)}")
    return ok(f"{version_line[1]} in {home}")


def spark(home: Path | None) -> Finding:
    if home is None:
        message = "none found; run needs none, submit and PySpark do"
        return warn(message, "pip install 'spark_lease[spark]', or set SPARK_HOME")
    cores = [each.stem.rpartition("-")[2] for each in home.glob("jars/spark-core_*.jar")]
    if not cores or not (home / "bin" / "spark-submit").is_file():
        return fail(f"{home} is no Spark", "correct SPARK_HOME")
    return ok(f"{cores[0]} in {home}")


def delta(setting: str, *, has_deltalake: bool, version: str, has_jar: bool) -> Finding:
    """`version`: that of the Delta Lake for Spark installed here; empty if there is none. `has_jar`: every job of this
    Spark has it on its class path."""
    say = fail if setting == "required" else warn
    if setting == "off":
        return ok("fence_delta is off: Delta tables are not fenced")
    if not has_deltalake:
        return say("no deltalake, so nothing is claimed: no fence", "pip install 'spark_lease[delta]'")
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "false":
        return say("PYSPARK_PIN_THREAD is off, so Delta has no hook: claims alone", "unset it")
    if not version:
        message = "claims; the hook depends on the Delta Lake that a job brings along, which doctor cannot check"
        return ok(message)
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _HOOK_SINCE:
        return say(f"delta-spark {version} has no hook: claims alone", "take delta-spark 3.3 or newer")
    if not has_jar:
        message = (
            f"the jar of delta-spark {version} is not in Spark: a job that does not bring it is fenced by claims alone"
        )
        return warn(message, "spark-submit --packages io.delta:delta-spark_…, or spark.jars.packages")
    return ok(f"claims, and the hook of delta-spark {version}")


def metrics(config: Config, *, has_client: bool) -> Finding | None:
    if not config.is_measured:
        return None
    if not has_client:
        return fail("no prometheus_client", "pip install 'spark_lease[metrics]'")
    folder = config.metrics_textfile
    if folder and not os.access(folder, os.W_OK | os.X_OK):
        return fail(f"{folder} is not there, or not writable", "create it, for this user")
    ways = [config.metrics and "prometheus_client's registry", folder, config.metrics_push]
    return ok(f"in {', '.join(each for each in ways if each)}")


def java_home() -> Path | None:
    """The folder of JAVA_HOME, or of the java on PATH, as spark-submit chooses it."""
    found = find_java()
    return Path(found).resolve().parents[1] if found else None


def spark_home() -> Path | None:
    """The Spark that `submit` would use."""
    set_spark_home("")
    home = os.environ.get("SPARK_HOME") or own_spark()
    return Path(home) if home else None


def delta_of_spark() -> tuple[str, bool]:
    """The version of Delta Lake for Spark, and whether all jobs find its jar, beside Spark's or by spark-defaults.conf.

    If not all jobs do, the version is that of the Python package, or empty.
    """
    home = spark_home() or Path("/nowhere")
    defaults = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    named = defaults.read_text(encoding="utf-8", errors="replace") if defaults.is_file() else ""
    found = [each.name for each in sorted(home.glob("jars/*delta-spark*.jar"))]
    found += [line for line in named.splitlines() if line.startswith("spark.jars")]
    for each in reversed(found):
        if version := re.search(r"delta-spark_[\d.]+(?:_[\d.]+)?[-:]([\d.]+\d)", each):
            return version[1], True
    try:
        return metadata.version("delta-spark"), False
    except metadata.PackageNotFoundError:
        return "", False


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
