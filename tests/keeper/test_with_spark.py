"""A guarded driver killed, frozen and starved in every part: nothing of it writes once another was granted the lease.

Python, its JVM and its workers each write every few milliseconds. The epoch is the moment of the grant (ms since 1970).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_lease.system.processes import Process, look
from tests.services.proxy import Proxy
from tests.support.drivers import Driver, keeper_of, row, standby, until
from tests.support.tiers import once_more

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(180),
    pytest.mark.skipif(sys.platform != "linux", reason="it is Linux's kernel that takes part"),
]

LEASE = 3.0
ENDS = (1, 75, -signal.SIGALRM, -signal.SIGKILL)
"""Exit codes of a driver that ended politely, killed itself, was ended by its own timer, by keeper or kernel."""
WRITERS = """
def python_writes():
    with open(FOLDER / "python", "w") as file:
        while True:
            file.write(f"{time.time()}\\n")
            file.flush()
            time.sleep(0.005)

def jvm_writes(spark):
    # A row of 9 kB every 2 ms, through a buffer that is smaller.
    row = "concat(reflect('java.lang.Thread', 'sleep', 2L), repeat('x', 9000)) as value"
    spark.range(0, 10**7, 1, 1).selectExpr(row).write.text(str(FOLDER / "jvm"))

def write_everywhere():
    spark = session("local[3]")
    for work, arguments in ((python_writes, ()), (jvm_writes, (spark,)), (write, (spark, 600))):
        threading.Thread(target=work, args=arguments, daemon=True).start()
    say(f"JVM {spark._jvm.java.lang.ProcessHandle.current().pid()}")

def everybody_writes():
    return len(list(FOLDER.glob("task-*"))) == 2 and any(FOLDER.glob("jvm/_temporary/0/_temporary/*/part-*"))
"""
WORK = (
    WRITERS
    + """
with hold_lease("n", **SETTINGS | {"lease_duration": %s}):
    write_everywhere()
    while not everybody_writes():
        time.sleep(0.01)
    say("everybody writes")
    while True:
        time.sleep(0.01)
"""
)


class Writing(Driver):
    """A driver of which everybody writes, and the parts of it."""

    @property
    def keeper(self) -> int:
        return keeper_of(self.process.pid)

    @property
    def jvm(self) -> int:
        return self.find("org.apache.spark.deploy.SparkSubmit").pid

    @property
    def workers(self) -> list[int]:
        return [each.pid for each in self.tree() if b"pyspark.daemon" in _command_of(each)]

    def last_of(self, what: str) -> float:
        return max(
            file.stat().st_mtime for file in self.folder.rglob("*") if what in str(file.relative_to(self.folder))
        )

    def last_write(self) -> float:
        return max(self.last_of(what) for what in ("python", "jvm", "task-"))


def _command_of(process: Process) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def start(tmp_path: Path, table: str) -> Iterator[Callable[..., Writing]]:
    started: list[Writing] = []

    def run(script: str, store: str, **options: Any) -> Writing:
        (tmp_path / "work").mkdir(exist_ok=True)
        started.append(Writing(script, tmp_path / "work", store, table, **options))
        return started[-1]

    yield run
    for driver in started:
        driver.close()


def gone(pids: list[int]) -> bool:
    return not any(look(pid) for pid in pids)


KILLED = {
    "python": lambda it: [it.process.pid],
    "JVM": lambda it: [it.jvm],
    "both": lambda it: [it.process.pid, it.jvm],
    "JVM and daemon": lambda it: [it.jvm, *it.workers[:1]],
    "keeper": lambda it: [it.keeper],
    "everything": lambda it: [each.pid for each in it.tree()],
}


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("python", marks=pytest.mark.shows("P1", "P6")),
        *("JVM", "keeper", "everything"),
        *map(once_more, ("both", "JVM and daemon")),
    ],
)
def test_what_is_killed_takes_the_rest_with_it_and_the_lease_is_handed_over(
    start: Callable[..., Writing], url: str, table: str, what: str
) -> None:
    driver = start(WORK % 30, url)
    driver.until("everybody writes")
    time.sleep(0.6)  # nothing to wait for: the keeper looks for new workers that often
    everything = [each.pid for each in driver.tree()]
    victims = KILLED[what](driver)
    killed = time.time()
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):  # the first victim took it along
            os.kill(pid, signal.SIGKILL)
    if what in ("keeper", "everything"):
        until(lambda: gone(everything), timeout=10)
        assert driver.last_write() < killed + 0.5
        assert row(url, table)[0] is not None  # nobody was left to prove it: the lease runs out
        return
    granted = standby(url, table)
    assert driver.last_write() < granted
    assert granted - killed < 5, "that was no hand-over"
    until(lambda: gone(everything), timeout=10)
    assert driver.last_write() < granted


STOPPED = {
    "python": lambda it: [it.process.pid],
    "JVM": lambda it: [it.jvm],
    "keeper": lambda it: [it.keeper],
    "everything": lambda it: [each.pid for each in it.freeze()],
}


@pytest.mark.parametrize(
    "what",
    [pytest.param("everything", marks=pytest.mark.shows("P1", "P3")), *map(once_more, ("python", "JVM")), "keeper"],
)
def test_what_is_stopped_past_the_lease_never_writes_again(
    start: Callable[..., Writing], url: str, table: str, what: str
) -> None:
    driver = start(WORK % LEASE, url)
    driver.until("everybody writes")
    time.sleep(0.6)  # nothing to wait for: the keeper looks for new workers that often
    everything = [each.pid for each in driver.tree()]
    victims = STOPPED[what](driver)
    for pid in victims:
        os.kill(pid, signal.SIGSTOP)
    granted = standby(url, table)
    thaw(victims)
    assert driver.end(5) in ENDS
    until(lambda: gone(everything), timeout=10)
    assert driver.last_write() < granted


@pytest.mark.fault
def test_what_is_stopped_without_the_kernels_part_writes_again(
    start: Callable[..., Writing], url: str, table: str
) -> None:
    """Which shows that the test above can fail. Python may thaw first, and end the others before they write."""
    wrote = False
    for _ in range(5):
        driver = start((WORK % LEASE).replace('hold_lease("n", ', 'hold_lease("n", keeper="thread", '), url)
        driver.until("everybody writes")
        victims = STOPPED["everything"](driver)
        granted = standby(url, table)
        assert driver.last_write() < granted
        thaw(victims)
        driver.end(5)
        if wrote := driver.last_write() > granted:
            break
    assert wrote


@pytest.mark.fault
def test_what_is_stopped_for_less_than_the_lease_goes_on(start: Callable[..., Writing], url: str, table: str) -> None:
    driver = start(WORK % 12, url)
    driver.until("everybody writes")
    epoch = row(url, table)[1]
    for choose in (*STOPPED.values(), lambda it: it.workers):
        victims = choose(driver)
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(2.5)  # longer than a retry_period, shorter than the lease
        thaw(victims)
        thawed = time.time()
        until(lambda: min(driver.last_of(each) for each in ("python", "jvm", "task-")) > thawed)  # noqa: B023
        time.sleep(2.5)  # nothing to wait for: it is to be renewed again
    assert row(url, table)[1] == epoch
    assert driver.process.poll() is None


def thaw(victims: list[int]) -> None:
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_crash_in_the_first_moment_does_not_spare_a_session_from_before(
    start: Callable[..., Writing], url: str, table: str
) -> None:
    """Its workers carry no mark, so nothing is proven; but they are tied and killed from the first moment on."""
    driver = start(
        f"""{WRITERS}
write_everywhere()
while not everybody_writes():
    time.sleep(0.01)
say("everybody writes")
while not (FOLDER / "go").exists():
    time.sleep(0.01)
with hold_lease("n", **SETTINGS):
    os.kill(os.getpid(), 9)
""",
        url,
    )
    driver.until("everybody writes")
    everything = [each.pid for each in driver.tree()]
    (driver.folder / "go").touch()
    driver.end()
    granted = standby(url, table)
    assert driver.last_write() < granted
    until(lambda: gone(everything), timeout=10)


def test_a_frozen_jvm_that_a_block_leaves_behind_is_dead_before_another_starts(
    start: Callable[..., Writing], url: str, table: str
) -> None:
    """on_lost = "stop" kills nothing while there is time; but it does not let go of what it cannot stop either."""
    driver = start(
        f"""{WRITERS}
with hold_lease("n", on_lost="stop", **SETTINGS):
    write_everywhere()
    while not everybody_writes():
        time.sleep(0.01)
    say("everybody writes")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
say("left")
time.sleep(60)
""",
        url,
    )
    driver.until("everybody writes")
    time.sleep(0.6)  # nothing to wait for: the keeper looks for new workers that often
    jvm = driver.jvm
    os.kill(jvm, signal.SIGSTOP)
    (driver.folder / "go").touch()
    driver.until("left")
    granted = standby(url, table)
    assert not look(jvm)
    assert max(driver.last_of(what) for what in ("jvm", "task-")) < granted
    assert driver.process.poll() is None


STARVED = {
    "sorted": """
        import random
        numbers = [random.random() for _ in range(12_000_000)]
        say("ready")
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        sorted(numbers)
    """,
    "toPandas": """
        say("ready")
        while not (FOLDER / "go").exists():
            time.sleep(0.01)
        spark = session("local[3]")
        spark.conf.set("spark.sql.execution.arrow.pyspark.enabled", "false")
        spark.range(4_000_000).selectExpr("id", "cast(id as string) a", "rand() b", "cast(id as string) c").toPandas()
    """,
}


@pytest.mark.postgres
@pytest.mark.parametrize("call", ["toPandas", once_more("sorted")])
def test_a_call_that_holds_the_gil_does_not_outlive_the_lease(
    start: Callable[..., Writing], proxy: Proxy, pg_url: str, table: str, call: str
) -> None:
    body = textwrap.indent(textwrap.dedent(STARVED[call]), "    ")
    driver = start(
        f"""{WRITERS}
with hold_lease("n", **SETTINGS | {{"lease_duration": {LEASE}}}):
    write_everywhere()
    while not everybody_writes():
        time.sleep(0.01)
{body}
    say("came to its end")
    time.sleep(60)
""",
        proxy.url,
    )
    driver.until("ready")
    everything = [each.pid for each in driver.tree()]
    (driver.folder / "go").touch()
    proxy.stall()
    granted = standby(pg_url, table)
    assert driver.end(5) in ENDS
    assert "came to its end" not in driver.log.read_text()
    until(lambda: gone(everything), timeout=10)
    assert driver.last_write() < granted
