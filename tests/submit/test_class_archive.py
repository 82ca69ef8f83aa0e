"""Spark's classes in a file: whose file is used, when, and that a real JVM maps it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from spark_lease.errors import ConfigError
from spark_lease.submit.class_archive import OPTS, _place, archive_of, make_archive, options_of, use_archive
from tests.support.command import last_line, spark_lease

PROGRAM = "/nowhere/bin/spark-submit"
JOB = """
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
pid = spark._jvm.ProcessHandle.current().pid()
print("mapped", ".jsa" in Path(f"/proc/{pid}/maps").read_text().replace("classes.jsa", ""), spark.range(5).count())
"""
SPARK = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A Java and a Spark that are empty files."""
    for name in ("java/bin/java", "java/lib/modules", "spark/jars/a.jar", "spark/jars/b.jar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(0o755)
    homes = {"JAVA_HOME": f"{tmp_path}/java", "SPARK_HOME": f"{tmp_path}/spark"}
    return {**homes, "XDG_CACHE_HOME": f"{tmp_path}/cache", "PATH": os.environ["PATH"]}


@pytest.fixture
def archive(environ: dict[str, str]) -> Path:
    place = _place(PROGRAM, environ)
    assert place
    place.parent.mkdir(parents=True, mode=0o700)
    found = place.with_name(f"{place.name}-5.jsa")
    found.touch(0o600)
    found.write_text("12345")
    assert archive_of(PROGRAM, environ) == found
    return found


def test_it_is_used_where_there_is_one(environ: dict[str, str], archive: Path) -> None:
    use_archive(PROGRAM, environ)
    assert environ[OPTS] == options_of(archive)
    archive.unlink()
    without = {key: value for key, value in environ.items() if not key.endswith("_OPTS")}
    use_archive(PROGRAM, without)
    assert not [key for key in without if key.endswith("_OPTS")]


@pytest.mark.parametrize("changed", ["java/lib/modules", "spark/jars/a.jar"])
def test_another_spark_or_java_has_another(
    environ: dict[str, str], archive: Path, tmp_path: Path, changed: str
) -> None:
    (tmp_path / changed).write_text("newer")
    assert archive_of(PROGRAM, environ) != archive
    use_archive(PROGRAM, environ)
    assert OPTS not in environ


def test_one_that_another_user_could_have_written_is_not_used(environ: dict[str, str], archive: Path) -> None:
    for path, mode in [(archive, 0o622), (archive, 0o600), (archive.parent, 0o770)]:
        path.chmod(mode)
        use_archive(PROGRAM, environ)
        assert (OPTS in environ) is (mode == 0o600)
        environ.pop(OPTS, None)


@pytest.mark.parametrize("content", ["1234", "123456", ""])
def test_one_that_is_not_whole_is_not_used(environ: dict[str, str], archive: Path, content: str) -> None:
    """A JVM that maps a file that was cut off dies of SIGBUS."""
    archive.write_text(content)
    use_archive(PROGRAM, environ)
    assert OPTS not in environ


@pytest.mark.parametrize("given", ["-Xshare:off", "-XX:SharedArchiveFile=/mine.jsa", "-XX:ArchiveClassesAtExit=/m"])
def test_options_of_the_users_own_stay(environ: dict[str, str], archive: Path, given: str) -> None:
    environ[OPTS] = given
    use_archive(PROGRAM, environ)
    assert environ[OPTS] == given
    environ[OPTS] = "-Xmx2g"
    use_archive(PROGRAM, environ)
    assert environ[OPTS] == f"{options_of(archive)} -Xmx2g"


def test_a_spark_whose_jars_are_not_found_is_said(environ: dict[str, str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "spark")
    use_archive(PROGRAM, environ)
    assert OPTS not in environ
    with pytest.raises(ConfigError, match="cannot find the jars of its Spark: set SPARK_HOME"):
        make_archive(PROGRAM, [], environ)


def test_what_is_wrong_around_it_keeps_no_submission_from_starting(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "spark/jars/gone.jar").symlink_to("/nowhere")
    for changed in ({}, {"SPARK_HOME": ""}, {"XDG_CACHE_HOME": "relative"}, {"XDG_CACHE_HOME": f"{tmp_path}/a:b"}):
        told = environ | changed
        use_archive("/spark-submit", told)
        assert OPTS not in told
    (tmp_path / "cache").write_text("no folder")
    use_archive(PROGRAM, environ)
    assert OPTS not in environ


def test_it_is_not_made_where_it_would_not_be_used(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="options of another class-data archive: unset it"):
        make_archive(PROGRAM, [], environ | {OPTS: "-XX:SharedArchiveFile=/mine.jsa"})
    (tmp_path / "cache" / "spark_lease").mkdir(parents=True)
    (tmp_path / "cache" / "spark_lease").chmod(0o775)
    with pytest.raises(ConfigError, match="has to be this user's alone"):
        make_archive(PROGRAM, [], environ)


def test_there_is_nothing_to_print_before_it_is_made(environ: dict[str, str]) -> None:
    done = spark_lease("class-archive", "--print", env=os.environ | {"XDG_CACHE_HOME": environ["XDG_CACHE_HOME"]})
    assert (done.returncode, done.stdout) == (78, "")
    assert "there is none for this Spark and Java" in done.stderr


@pytest.mark.fault
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_submission_maps_what_was_kept_and_starts_as_ever_where_that_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(JOB)
    environ = {key: value for key, value in os.environ.items() if key != OPTS}
    environ |= {"XDG_CACHE_HOME": f"{tmp_path}/cache", "XDG_STATE_HOME": f"{tmp_path}/state"}
    failed = spark_lease("class-archive", "--", "--conf", "spark.master=nonsense", "--master", "no", env=environ)
    assert failed.returncode == 1 and "the small job failed" in failed.stderr
    assert not list((tmp_path / "cache" / "spark_lease").iterdir()), "nothing half made stays"
    made = spark_lease("class-archive", "--json", env=environ, timeout=240)
    assert made.returncode == 0, made.stderr
    archive = Path(json.loads(made.stdout)["archive"])
    assert archive.stat().st_size == json.loads(made.stdout)["bytes"] > 1e6

    def mapped() -> list[str]:
        words = ["submit", "--lease", "n", "--local", "--", *SPARK, f"{tmp_path}/job.py"]
        done = spark_lease(*words, env=environ)
        assert last_line(done)["outcome"] == "finished", done.stderr
        return [line for line in done.stdout.splitlines() if line.startswith("mapped")]

    environ["JDK_JAVA_OPTIONS"] = "-XX:+UseParallelGC"  # a choice for each JVM, spark-class's first one too
    assert mapped() == ["mapped True 5"]
    archive.write_bytes(archive.read_bytes()[: 1 << 20])
    assert mapped() == ["mapped False 5"]
    assert spark_lease("class-archive", "--remove", env=environ).stdout == f"removed: {archive}\n"
    assert not archive.exists()
