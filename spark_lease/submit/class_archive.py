"""Makes and uses a class-data archive (JEP 350): Spark's classes in a file that the next JVM maps, to start sooner.

A command makes it once; later drivers use it. A JVM that it does not fit starts as usual.
"""

import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from ..errors import ConfigError, SparkLeaseError
from .command_line import find_java

log = logging.getLogger(__name__)

OPTS = "SPARK_SUBMIT_OPTS"
_NOT_IN_AN_OPTION = '":\\'
_OWN_CHOICE = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
"""The JVM's second compiler waits for ten times as many calls of a method as by default.

While Spark starts it takes a whole core: with these options a first commit needs a seventh less. A loop that runs long
passes them within milliseconds: jobs of a minute took as long as without (bound by planning, by code, by shuffles).
"""
_PATIENCE = 600.0
_LAST = 600
"""Characters of the small job's output that are shown if it fails."""
_SMALL_JOB = """
import sys
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.appName("spark-lease class-archive").getOrCreate()
rows = spark.range(9).selectExpr("id", "id % 2 AS part", "cast(id AS string) AS text", "current_timestamp() AS at")
for _ in range(2):
    rows.write.mode("append").partitionBy("part").parquet(sys.argv[1])
read = spark.read.parquet(sys.argv[1])
joined = read.join(functions.broadcast(rows.select("id", "at")), "id").groupBy("part").agg(functions.count("*"))
assert len(joined.orderBy("part").collect()) == 2
assert spark.sparkContext.parallelize([1, 2], 2).map(str).collect() == ["1", "2"]
if "delta" in spark.conf.get("spark.sql.catalog.spark_catalog", "").lower():
    for _ in range(2):
        rows.write.format("delta").mode("append").save(sys.argv[1] + "-delta")
    target, new = f"delta.`{sys.argv[1]}-delta` t", "(SELECT id, part, text, at FROM new) s"
    rows.selectExpr("id + 5 AS id", "part", "text", "at").createOrReplaceTempView("new")
    spark.sql(f"MERGE INTO {target} USING {new} ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert spark.read.format("delta").load(sys.argv[1] + "-delta").where("id > 8").count() == 5
spark.stop()
"""


def archive_of(program: str, environ: Mapping[str, str]) -> Path | None:
    """The archive of this Java and this Spark, if there is a usable one; others have other files.

    `program` is the spark-submit. The archive is complete, and no other user may have written it: a JVM trusts what it
    maps, and dies of SIGBUS if the file was cut off.
    """
    try:
        place = _place(program, environ)
        found = sorted(place.parent.glob(f"{place.name}-*.jsa")) if place else []
        return next((each for each in found if _is_ours(each) and each.stat().st_size == _size_in(each)), None)
    except OSError:  # this user may not read the cache, or a file has gone meanwhile
        return None


def _place(program: str, environ: Mapping[str, str]) -> Path | None:
    """Folder of its archives and prefix of their names; None if Java, the jars of Spark or a cache are not found."""
    java = find_java(environ)
    spark = Path(environ.get("SPARK_HOME") or Path(program).resolve().parent.parent)
    jars = [each for each in sorted(spark.glob("jars/*.jar")) if each.is_file()]
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not java or not jars or not os.path.isabs(cache) or set(cache) & set(_NOT_IN_AN_OPTION):
        return None
    real = Path(java).resolve()
    key = hashlib.sha256()
    for each in [real, *real.parents[1].glob("lib/modules"), *jars]:
        found = each.stat()
        # Whole seconds, as the JVM compares them: a container image keeps no fraction.
        key.update(os.fsencode(each) + f"\0{found.st_size}\0{int(found.st_mtime)}\n".encode())
    return Path(cache, "spark_lease", f"spark-{key.hexdigest()[:16]}")


def _size_in(archive: Path) -> int:
    """The size of the complete file, with which its name ends; -1 if there is none."""
    words = archive.stem.rpartition("-")[2]
    return int(words) if words.isdecimal() else -1


def options_of(archive: Path) -> str:
    """The options of a JVM that maps `archive`, for SPARK_SUBMIT_OPTS."""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET} {_LATER}'


def use_archive(program: str, environ: MutableMapping[str, str]) -> None:
    """Let the JVM of `program` map its archive, if there is one and SPARK_SUBMIT_OPTS does not choose another."""
    try:
        archive, given = archive_of(program, environ), environ.get(OPTS, "")
        if archive and not _chooses(given):
            environ[OPTS] = f"{options_of(archive)} {given}".strip()  # of two such options, a JVM takes the last
    except Exception:  # any error: a start that is no faster is still a start
        log.debug("the class-data archive cannot be looked for", exc_info=True)


def make_archive(program: str, options: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Run a small Spark job, and keep the classes that it loads; `options` are spark-submit's.

    Raises ConfigError, and SparkLeaseError if the job fails or this Java keeps no classes.
    """
    place = _place(program, environ)
    if not place:
        raise ConfigError("class-archive", f"{program}: cannot find the jars of its Spark: set SPARK_HOME")
    if _chooses(given := environ.get(OPTS, "")):
        raise ConfigError("class-archive", f"{OPTS} has options of another class-data archive: unset it")
    _refuse_folder(place.parent)
    draft = place.with_suffix(f".{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            script, table = Path(scratch, "small.py"), Path(scratch, "table").as_uri()
            script.write_text(_SMALL_JOB, encoding="utf-8")
            words = [program, "--master", "local[1]", "--conf", "spark.ui.enabled=false", *options, str(script), table]
            variables = {OPTS: f'{_LATER} {given} "-XX:ArchiveClassesAtExit={draft}"'}
            done = subprocess.run(
                words, env={**environ, **variables}, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
            )
        printed = "\n".join(each.strip()[-_LAST:] for each in (done.stdout, done.stderr))
        if done.returncode:
            raise SparkLeaseError(f"the small job failed: {printed}")
        if not draft.exists():
            raise SparkLeaseError(_why_not(done.stdout + done.stderr) or f"this Java kept no classes: {printed}")
        draft.chmod(0o600)
        remove_archives(program, environ)
        archive = place.with_name(f"{place.name}-{draft.stat().st_size}.jsa")
        draft.replace(archive)
    except subprocess.TimeoutExpired as error:
        raise SparkLeaseError(f"the small job did not end within {_PATIENCE:g} s: try it with spark-submit") from error
    finally:
        draft.unlink(missing_ok=True)
    return archive


def _refuse_folder(folder: Path) -> None:
    """Make `folder`, and check that it belongs to this user alone. Raises ConfigError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError("class-archive", f"{folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError("class-archive", f"{folder} cannot be written to: make it writable for this user")
    if not _is_ours(folder / "any"):
        raise ConfigError("class-archive", f"{folder} has to be this user's alone: chmod 700, or chown it")


def _why_not(output: str) -> str:
    """Why a JVM wrote no archive, for people; empty if that is not known."""
    if "non-empty directory in paths" in output:
        where = "Spark's conf folder, or that of HADOOP_CONF_DIR"
        return f"Java keeps no classes while a folder with files is on the class path, here {where}: not possible here"
    return ""


def _chooses(options: str) -> bool:
    return any(word in options for word in _OWN_CHOICE)


def remove_archives(program: str, environ: Mapping[str, str]) -> list[Path]:
    """Remove the archives of this Java and this Spark, complete or not. A JVM that has mapped one goes on."""
    place = _place(program, environ)
    found = sorted(place.parent.glob(f"{place.name}-*.jsa")) if place else []
    for each in found:
        each.unlink(missing_ok=True)
    return found


def _is_ours(archive: Path) -> bool:
    """True if no other user can have written `archive` or put it there; also if it does not exist in such a folder."""
    found = [each.stat() for each in (archive, archive.parent) if each.exists()]
    return all(each.st_uid == os.geteuid() and not each.st_mode & 0o022 for each in found)
