"""Which spark-submit is taken."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from spark_lease.errors import ConfigError
from spark_lease.submit.command_line import (
    conf_of,
    find_spark_submit,
    is_for_cluster,
    local_file,
    refuse_what_java_misreads,
    set_spark_home,
    without_scheme,
)


def test_another_spark_on_the_path_that_is_not_taken_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    other = tmp_path / "spark-submit"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{sysconfig.get_path('scripts')}:{path}")
    ours, _ = find_spark_submit()
    assert not caplog.records, "pip's own script is the same Spark"
    monkeypatch.setenv("PATH", f"{tmp_path}:{path}")
    assert find_spark_submit()[0] == ours
    assert f"not {other}: choose by SPARK_HOME or --spark-submit" in caplog.text
    caplog.clear()
    assert find_spark_submit(str(other))[0] == str(other)
    monkeypatch.setenv("SPARK_HOME", str(Path(ours).parents[1]))
    assert find_spark_submit()[0] == ours
    assert not caplog.records, "it was chosen"


@pytest.mark.parametrize(("there", "is_home"), [("jars", False), ("bin/spark-class", False), ("both", True)])
def test_spark_home_is_a_folder_with_jars_and_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str, is_home: bool
) -> None:
    monkeypatch.setenv("SPARK_HOME", "as it was")
    monkeypatch.delenv("SPARK_HOME")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch(0o755)
    if there != "bin/spark-class":
        (tmp_path / "jars").mkdir()
    if there != "jars":
        (tmp_path / "bin" / "spark-class").touch(0o755)
    set_spark_home(str(tmp_path / "bin" / "spark-submit"))
    assert os.environ.get("SPARK_HOME") == (str(tmp_path) if is_home else None)


def test_options_are_read_in_sparks_own_order() -> None:
    options = ["--conf=spark.lease.name=first", "--supervise", "--conf", "spark.lease.name=second"]
    assert conf_of(options)["spark.lease.name"] == "second"
    assert not is_for_cluster(["--deploy-mode=cluster", "--deploy-mode", "client"])
    assert not is_for_cluster(["--name", "--deploy-mode=cluster"]), "the value of another"


@pytest.mark.parametrize("loads", [True, False])
def test_the_defaults_count_beneath_a_file_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\nspark.lease.name default\n")
    (tmp_path / "mine.conf").write_text("spark.lease.name zürich\n", encoding="utf-8")
    options = ["--properties-file", str(tmp_path / "mine.conf"), *(["--load-spark-defaults"] if loads else [])]
    assert conf_of(options)["spark.lease.name"] == "zürich"
    assert is_for_cluster(options) == loads


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_script_may_be_a_url_of_this_machine(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "job.py").touch()
    assert local_file(f"{prefix}{tmp_path}/job.py") == tmp_path / "job.py"
    with pytest.raises(ConfigError, match="does not exist on this machine"):
        local_file(f"{prefix}{tmp_path}/other.py")


def test_a_script_of_the_image_has_a_scheme_of_its_own() -> None:
    assert {without_scheme(f"{each}/opt/job.py", "local") for each in ("", "local:", "local://")} == {"/opt/job.py"}
    assert without_scheme("s3://bucket/job.py", "local") == "s3://bucket/job.py"


def test_a_spark_submit_that_may_not_be_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch(0o644)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"{tmp_path}/bin/spark-submit may not be run by this user"):
        find_spark_submit()


def test_a_lease_that_java_would_misread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--conf", "spark.lease.name=zürich", "--name", "Zürich"]
    monkeypatch.setattr("locale.getencoding", lambda: "UTF-8")
    refuse_what_java_misreads(words)
    monkeypatch.setattr("locale.getencoding", lambda: "ANSI_X3.4-1968")
    refuse_what_java_misreads(words[2:])
    for refused in (words, ["--conf=spark.lease.name=zürich"]):
        with pytest.raises(ConfigError, match=r"^spark.lease.name: .* Java cannot read 'ü': set LC_ALL=C.UTF-8"):
            refuse_what_java_misreads(refused)
