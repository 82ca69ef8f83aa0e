"""PySpark is imported from its folder where spark-submit names the zip; whatever else is on the path stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

import spark_lease

PROBE = """
import sys
before = list(sys.path)
from spark_lease.spark.pyspark_import import import_pyspark
import_pyspark()
import pyspark
print(pyspark.__file__)
assert sys.path == before
"""


def imported(zip_file: Path) -> Path:
    """Where PySpark comes from, in a Python that starts as spark-submit starts it."""
    path = f"{zip_file}:{Path(spark_lease.__file__).parents[1]}"
    command = [sys.executable, "-c", PROBE]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True, timeout=60)
    return Path(done.stdout.strip())


def make(folder: Path, version: str) -> None:
    (folder / "pyspark").mkdir(parents=True, exist_ok=True)
    (folder / "pyspark" / "__init__.py").touch()
    (folder / "pyspark" / "version.py").write_text(version)


def zipped(home: Path, version: str) -> Path:
    file = home / "python" / "lib" / "pyspark.zip"
    file.parent.mkdir(parents=True)
    with ZipFile(file, "w") as found:
        found.writestr("pyspark/__init__.py", "")
        found.writestr("pyspark/version.py", version)
    return file


def test_pips_pyspark() -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    assert imported(home / "python" / "lib" / "pyspark.zip") == home / "__init__.py"


@pytest.mark.parametrize(("version", "is_folder"), [("1", True), ("2", False)])
def test_a_distributions_unless_folder_and_zip_are_of_two_versions(
    tmp_path: Path, version: str, is_folder: bool
) -> None:
    file = zipped(tmp_path, "1")
    make(tmp_path / "python", version)
    assert imported(file) == (tmp_path / "python" if is_folder else file) / "pyspark" / "__init__.py"


def test_a_zip_without_a_folder(tmp_path: Path) -> None:
    file = zipped(tmp_path, "1")
    assert imported(file) == file / "pyspark" / "__init__.py"


NUMPYS = """
import sys
from spark_lease.spark.contexts import is_watchable
assert is_watchable()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
assert spark.range(3).selectExpr("sum(id)").first()[0] == 3
print(sorted({"numpy", "pandas", "pyspark.testing"} & {*sys.modules}))
import numpy
text = spark.sparkContext._jvm.java.util.Arrays.toString
print(text(numpy.array([1, 2, 3])), spark.sparkContext._jvm.java.lang.Long.toString(numpy.int64(4)))
"""


@pytest.mark.spark
def test_pandas_is_not_imported_before_the_job_needs_it_and_numpys_arguments_are_taken() -> None:
    done = subprocess.run([sys.executable, "-c", NUMPYS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["[]", "[1, 2, 3] 4"]
