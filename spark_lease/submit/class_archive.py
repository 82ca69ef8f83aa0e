"""Spark's classes in a file that the next JVM maps: a class-data archive (JEP 350). A driver then starts sooner.

It is made once, by a command, and used from then on. A JVM that it does not fit starts as ever.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from ..errors import ConfigError, SparkLeaseError

OPTS = "SPARK_SUBMIT_OPTS"
_OWN_CHOICE = ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_LAST = 600
"""Characters of its output that are shown where the job fails."""
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
spark.stop()
"""


def archive_of(program: str, environ: Mapping[str, str]) -> Path | None:
    """The archive of this Java and this Spark, if there is one to be used; other ones have other files.

    `program` is the spark-submit. It is whole, and no other user may have written it: a JVM believes what it maps, and
    one whose file was cut off dies of SIGBUS.
    """
    place = _place(program, environ)
    found = sorted(place.parent.glob(f"{place.name}-*.jsa")) if place else []
    return next((each for each in found if _is_ours(each) and each.stat().st_size == _size_in(each)), None)


def _place(program: str, environ: Mapping[str, str]) -> Path | None:
    """Folder and first part of the name of its archives; None if Java or the jars of Spark are not found."""
    home = environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environ.get("PATH"))
    jars = sorted(Path(environ.get("SPARK_HOME") or Path(program).resolve().parents[1], "jars").glob("*.jar"))
    if not java or not jars:
        return None
    real = Path(java).resolve()
    key = hashlib.sha256()
    for each in [real, *real.parents[1].glob("lib/modules"), *jars]:
        found = each.stat()
        key.update(f"{each}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    cache = environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "spark_lease", f"spark-{key.hexdigest()[:16]}")


def _size_in(archive: Path) -> int:
    """The name ends with the size that the whole file has."""
    words = archive.stem.rpartition("-")[2]
    return int(words) if words.isdecimal() else -1


def options_of(archive: Path) -> str:
    """The options of a JVM that maps `archive`, as they may stand in SPARK_SUBMIT_OPTS."""
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def use_archive(program: str, environ: MutableMapping[str, str]) -> None:
    """Have the JVM of `program` map its archive, if there is one and SPARK_SUBMIT_OPTS says nothing of its own."""
    archive, given = archive_of(program, environ), environ.get(OPTS, "")
    if archive and not any(word in given for word in _OWN_CHOICE):
        environ[OPTS] = f"{given} {options_of(archive)}".strip()


def make_archive(program: str, options: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Run a small Spark job, and keep the classes that it loads; `options` are spark-submit's.

    Raises ConfigError, and SparkLeaseError if the job fails or this Java keeps no classes.
    """
    place = _place(program, environ)
    if not place:
        raise ConfigError("class-archive", f"{program}: cannot find the jars of its Spark: set SPARK_HOME")
    try:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError("class-archive", f"{place.parent}: {error.strerror}") from error
    draft = place.with_suffix(f".{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as scratch:
            script = Path(scratch, "small.py")
            script.write_text(_SMALL_JOB)
            given = f'{environ.get(OPTS, "")} "-XX:ArchiveClassesAtExit={draft}"'.strip()
            words = [program, "--master", "local[1]", "--conf", "spark.ui.enabled=false", *options]
            done = subprocess.run(
                [*words, str(script), f"{scratch}/table"],
                env={**environ, OPTS: given},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        if done.returncode:
            raise SparkLeaseError(f"the small job failed: {(done.stdout + done.stderr).strip()[-_LAST:]}")
        if not draft.exists():
            raise SparkLeaseError("this Java kept no classes. It needs an archive of its own first: java -Xshare:dump")
        draft.chmod(0o600)
        remove_archives(program, environ)
        archive = place.with_name(f"{place.name}-{draft.stat().st_size}.jsa")
        draft.replace(archive)
    finally:
        draft.unlink(missing_ok=True)
    return archive


def remove_archives(program: str, environ: Mapping[str, str]) -> list[Path]:
    """Remove those of this Java and this Spark, whole or not; a JVM that has one mapped works on."""
    place = _place(program, environ)
    found = sorted(place.parent.glob(f"{place.name}-*.jsa")) if place else []
    for each in found:
        each.unlink(missing_ok=True)
    return found


def _is_ours(archive: Path) -> bool:
    try:
        found = [archive.stat(), archive.parent.stat()]
    except OSError:
        return False
    return all(each.st_uid == os.geteuid() and not each.st_mode & 0o022 for each in found)
