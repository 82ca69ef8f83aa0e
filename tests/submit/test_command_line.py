"""Which spark-submit is taken."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from spark_lease.submit.command_line import find_spark_submit, settle_spark_home


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
    settle_spark_home(str(tmp_path / "bin" / "spark-submit"))
    assert os.environ.get("SPARK_HOME") == (str(tmp_path) if is_home else None)
