from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.jars import start_options
from spark_lease.testing import MemoryStore, VirtualClock
from tests.services.mariadb import MariaDb, running_mariadb
from tests.services.objects import ObjectServer, running_objects
from tests.services.postgres import running_postgres, with_psycopg
from tests.services.proxy import Proxy
from tests.support.drivers import Driver
from tests.support.needs import leave_out
from tests.support.pages import browser, opens
from tests.support.side_by_side import group, number_of_workers
from tests.support.supervisor import supervise
from tests.support.tiers import left_out_lines, promises_line, sort_into_tiers

__all__ = ["browser", "opens"]  # fixtures

# In Airflow's environment: make test-airflow.
collect_ignore = ["airflow"]

# Whoever starts the tests in the background may have these ignored, and every process of the tests would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    supervise()
    # Also where pytest is called without make: pip's spark-submit and Spark's workers find Python there.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # A JVM here lives for seconds: what it would compile for the long run takes two thirds of its time, and the
    # collector for many cores another tenth.
    options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={tempfile.gettempdir()} {start_options()}"
    for variable in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(variable, options)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_into_tiers(items)
    group(items)
    for item in items:
        leave_out(item)


def pytest_xdist_auto_num_workers() -> int:
    return number_of_workers()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    stats = terminalreporter.stats
    for line in (promises_line(stats.get("passed", [])), *left_out_lines(stats.get("skipped", []))):
        if line:
            terminalreporter.write_line(line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name what failed when it fails: the summary comes half an hour later."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})", file=sys.__stderr__, flush=True)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in [key for key in os.environ if key.startswith("SPARK_LEASE_") and "_TEST_" not in key]:
        monkeypatch.delenv(key)
    # Tests hold leases in this process, and start those that contend for them: other programs, not its own children.
    monkeypatch.setattr("spark_lease.guard.held.tell_children", lambda leases: None)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(clock: VirtualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture(scope="session")
def pg_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDb]:
    with running_mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def objects() -> Iterator[ObjectServer]:
    with running_objects() as server:
        yield server


@pytest.fixture
def proxy(pg_url: str) -> Iterator[Proxy]:
    door = Proxy(pg_url)
    yield door
    door.close()


@pytest.fixture
def table() -> str:
    """A table of this test's own."""
    return f"lease_{secrets.token_hex(4)}"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A lease store of this test's own."""
    return f"sqlite:///{tmp_path}/lease.db"


@pytest.fixture
def url_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """A lease store of this test's own, of the kind that is asked for."""

    def url(kind: str) -> str:
        match kind:
            case "postgresql":
                return str(request.getfixturevalue("pg_url"))
            case "psycopg":
                return with_psycopg(str(request.getfixturevalue("pg_url")))
            case "mariadb":
                return str(request.getfixturevalue("mariadb").url)
            case "sqlite":
                return f"sqlite:///{tmp_path}/lease.db"
            case _:
                return f"{kind}://{tmp_path}/leases"

    return url


@pytest.fixture
def start(tmp_path: Path, table: str, url: str) -> Iterator[Callable[..., Driver]]:
    """Start a guarded driver that runs a script; what is left of it ends with the test."""
    started: list[Driver] = []

    def run(script: str, store: str = url, *, command: list[str] | None = None) -> Driver:
        started.append(Driver(script, tmp_path, store, table, command=command))
        return started[-1]

    yield run
    for driver in started:
        driver.close()
