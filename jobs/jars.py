"""Delta's jars, resolved once into a folder, so that a start needs no network and two starts at once do not collide.

`python -m jobs.jars FOLDER [COORDINATES [NAMES]]` asks Maven Central through Spark's own resolver, `python -m jobs.jars
--archive FOLDER` keeps Spark's classes as the JVM has them in memory, and `python -m jobs.jars --options` prints the
options that hand the jars on to spark-submit.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from spark_lease.errors import ConfigError, SparkLeaseError
from spark_lease.submit.class_archive import archive_of, make_archive, options_of
from spark_lease.submit.command_line import find_spark_submit, has_java, what_java_lacks

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
FOLDER = Path(__file__).parents[1] / ".jars"
JDBC = FOLDER / "jdbc"
"""PostgreSQL's driver for Spark's JDBC writer."""

# Everything else that Delta names as a dependency is in pyspark already.
_NEEDED = "io.delta_*.jar"
_SPARK_HAS = (
    "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,org.apache.parquet:parquet-hadoop,"
    "io.unitycatalog:unitycatalog-client,io.unitycatalog:unitycatalog-hadoop,org.apache.logging.log4j:log4j-core"
)


def spark_conf(folder: Path = FOLDER) -> dict[str, str]:
    """Spark's settings for Delta on a small machine."""
    return {
        "spark.jars": ",".join(str(jar) for jar in sorted(folder.glob(_NEEDED))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # One partition: with the default of 50 every first look at a table is a job of 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }


def spark_options(folder: Path = FOLDER) -> list[str]:
    """The same as spark-submit's options."""
    return [word for key, value in spark_conf(folder).items() for word in ("--conf", f"{key}={value}")]


def start_options(folder: Path = FOLDER) -> str:
    """For SPARK_SUBMIT_OPTS: those of a JVM that maps the classes of `archive`; "" where there are none that fit."""
    with suppress(ConfigError):
        program, environ = find_spark_submit()
        if found := archive_of(program, environ | {"XDG_CACHE_HOME": str(folder)}):
            return options_of(found)
    return ""


def archive(folder: Path) -> None:
    """Keep the classes that a small job loads (JEP 350). If that cannot be, it is said, and Spark starts as ever."""
    print(f"keeping Spark's classes in {folder}, for starts in three fifths of the time ...", flush=True)
    try:
        program, environ = find_spark_submit()
        for key in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR"):
            environ.pop(key, None)
        make_archive(program, spark_options(folder), environ | {"XDG_CACHE_HOME": str(folder)})
    except SparkLeaseError as error:
        print(f"not kept, so Spark starts as ever: {error}")


def resolve(folder: Path, coordinates: str = DELTA, names: str = _NEEDED) -> None:
    """Download what is missing, as far as it is called `names`. Raises SystemExit with a sentence if it cannot be."""
    if not has_java():
        raise SystemExit(what_java_lacks())
    print(f"resolving {coordinates} into {folder} ...", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "nothing.py")
        script.touch()
        command = [
            str(Path(sys.executable).with_name("spark-submit")),
            "--packages",
            coordinates,
            "--exclude-packages",
            _SPARK_HAS,
        ]
        done = subprocess.run(
            [*command, "--conf", f"spark.jars.ivy={scratch}/ivy", str(script)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = list(Path(scratch, "ivy", "jars").glob(names))
        if done.returncode or not found:
            why = next((line for line in done.stderr.splitlines() if "Exception" in line), done.stderr[-300:])
            raise SystemExit(f"cannot resolve {coordinates}, is Maven Central within reach? {why}")
        for jar in found:
            shutil.copy(jar, folder / jar.name)


if __name__ == "__main__":
    if sys.argv[1] == "--check-java":
        sys.exit(None if has_java() else f"{what_java_lacks()}. Tests that need it are left out.")
    if sys.argv[1] == "--options":
        print(*spark_options())
    elif sys.argv[1] == "--archive":
        archive(Path(sys.argv[2]).absolute())
    else:
        resolve(Path(sys.argv[1]), *sys.argv[2:])
