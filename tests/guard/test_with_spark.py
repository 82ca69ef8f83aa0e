"""The guard around real Spark drivers: demotion, signals, orphans, and where the session came from."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from spark_lease.config.sources import configure
from spark_lease.election.directive import Directive
from spark_lease.election.journal_entries import KINDS
from spark_lease.journal.runs import runs_of
from spark_lease.monitoring.history import Hold, holds_of
from spark_lease.stores.registry import open_notes, open_store
from tests.services.proxy import Proxy
from tests.support.drivers import Driver, row, until, want
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]
Start = Callable[..., Driver]


BEFORE = """
    spark = session()
    with hold_lease("n", **SETTINGS | {"lease_duration": 12}) as lease:
        write(spark)
"""
INSIDE = """
    with hold_lease("n", **SETTINGS) as lease:
        write(session())
"""
THREAD = """
    spark = session()
    def work():
        try:
            with hold_lease("n", on_lost="stop", **SETTINGS | {"lease_duration": 12}):
                write(spark)
        except LeaseLost as lost:
            say(f"surfaced {lost.reason} from {lost.__cause__!r:.60}")
            os._exit(75)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
DECORATED = """
    @leased("n", **SETTINGS | {"lease_duration": 12})
    def main(lease):
        assert lease.check() == lease.epoch
        write(session())
    main()
"""


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("script", "code"),
    [
        once_more(BEFORE, 1, id="session before the lease"),
        pytest.param(INSIDE, 1, id="session inside"),
        once_more(THREAD, 75, id="in another thread"),
        pytest.param(DECORATED, 75, id="decorated main", marks=pytest.mark.shows("P3")),
    ],
)
def test_a_driver_whose_store_hangs_stops_writing_before_another_may_start(
    start: Start, proxy: Proxy, pg_url: str, script: str, code: int
) -> None:
    driver = start(script, store=proxy.url)
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    driver.tree()
    proxy.stall()
    standby = start(
        """
        with hold_lease("n", **SETTINGS) as lease:
            say(f"standby is master at {time.time()}, epoch {lease.epoch}")
        """,
        store=pg_url,
    )
    said = standby.until("standby is master")
    assert standby.end() == 0
    taken_at = float(said.split("master at ")[1].split(",")[0])
    # 75 as well where the interrupt cut the connection that stop() was using: nothing is proven then, so it is killed.
    assert driver.end() in (code, 75), driver.log.read_text()
    assert driver.last_write() < taken_at
    assert f"epoch {standby.epoch()}\n" in said
    assert standby.epoch() > driver.epoch()
    assert "LeaseLost" in driver.log.read_text() or "lease lost (expired)" in driver.log.read_text()
    until(lambda: not driver.leftovers())


@pytest.mark.postgres
def test_a_main_thread_that_cannot_be_stopped_is_killed_with_everything(start: Start, proxy: Proxy) -> None:
    """The block swallows whatever is raised in it, and starts Spark again when it was stopped."""
    driver = start(
        """
        def stubborn():
            while True:
                try:
                    write(session(), 30)
                except BaseException as error:
                    say(f"swallowed {type(error).__name__}")
        with hold_lease("n", **SETTINGS):
            stubborn()
        """,
        store=proxy.url,
    )
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    driver.tree()
    proxy.stall()
    driver.until("swallowed")
    driver.tree()
    assert driver.end() == 75
    assert "killing the remaining work" in driver.log.read_text()
    until(lambda: not driver.leftovers(), timeout=10)


@pytest.mark.postgres
def test_a_frozen_jvm_does_not_hold_up_the_end(start: Start, proxy: Proxy) -> None:
    """stop() hangs for as long as the JVM is frozen."""
    driver = start(INSIDE, store=proxy.url)
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    jvm = driver.find("org.apache.spark.deploy.SparkSubmit")

    os.kill(jvm.pid, signal.SIGSTOP)
    proxy.stall()
    assert driver.end() in (75, 1)
    until(lambda: not driver.leftovers(), timeout=10)


@pytest.mark.postgres
@pytest.mark.parametrize("jvm", ["stops", once_more("is killed")])
def test_on_lost_stop_leaves_the_process_alive_and_raises(start: Start, proxy: Proxy, jvm: str) -> None:
    """And a new session can be had, and a new lease: in a new JVM where the old one was killed, or crashed."""
    driver = start(
        """
        told = []
        def on_lost(lost):
            told.append(lost)
        try:
            with hold_lease("n", on_lost=on_lost, **SETTINGS):
                write(session())
        except LeaseLost as lost:
            say(f"surfaced {lost.reason}, told {[each.reason for each in told]}, from {type(lost.__cause__).__name__}")
        from pyspark import SparkContext
        while SparkContext._active_spark_context:
            time.sleep(0.01)  # PySpark tells nobody
        say("no context")
        time.sleep(4)
        say(f"counted {session().range(5).count()}")
        SparkContext._gateway.proc.kill()
        SparkContext._gateway.proc.wait()
        with hold_lease("n", **SETTINGS | {"url": "sqlite:///" + str(FOLDER / "another.db")}):
            say(f"counted {session().range(6).count()}")
        """,
        store=proxy.url,
    )
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    if jvm == "is killed":
        os.kill(driver.find("java").pid, signal.SIGSTOP)
    proxy.stall()
    assert driver.end() == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "surfaced expired, told [<Loss.EXPIRED: 'expired'>]" in said
    assert "no context" in said
    assert "counted 5" in said
    assert "counted 6" in said


@pytest.mark.parametrize("ending", ["pass", once_more("raise ValueError")])
def test_a_stop_that_did_not_reach_the_jvm_is_repeated(start: Start, ending: str) -> None:
    """PySpark forgets its context even where the connection over which it stops it is cut."""
    driver = start(
        f"""
        from pyspark import SparkContext
        try:
            with hold_lease("n", **SETTINGS):
                session()
                SparkContext._active_spark_context._jsc = SparkContext._active_spark_context = None
                {ending}
        except ValueError:
            pass
        say(f"counted {{session().range(5).count()}}")
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    assert "counted 5" in driver.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, once_more(signal.SIGINT)])
@pytest.mark.parametrize("where", ["in Spark", "in Python"])
def test_a_signal_ends_the_work_releases_and_exits(start: Start, url: str, table: str, number: int, where: str) -> None:
    # Python hears of a signal between two calls.
    work = "write(session())" if where == "in Spark" else "say('writing'); [time.sleep(0.1) for _ in range(600)]"
    driver = start(
        f"""
        @leased("n", **SETTINGS)
        def main():
            {work}
        main()
        """
    )
    driver.until("writing")
    if where == "in Spark":
        until(lambda: any(driver.folder.glob("task-0")))
    driver.tree()
    driver.send(number)
    assert driver.end() == 128 + number, driver.log.read_text()
    assert row(url, table) == (None, driver.epoch()), driver.log.read_text()
    until(lambda: not driver.leftovers(), timeout=10)
    assert "Traceback" not in driver.log.read_text().split("writing")[-1] or where == "in Spark"


@pytest.mark.parametrize(
    "submitted",
    [
        pytest.param(False, id="python", marks=pytest.mark.shows("P5")),
        once_more(True, id="plain spark-submit"),
    ],
)
def test_nothing_is_released_while_spark_still_works(start: Start, url: str, table: str, submitted: bool) -> None:
    """The block ends while a job of another thread writes on. Spark is stopped, its JVM lives on."""
    driver = start(
        """
        with hold_lease("n", **SETTINGS | {"lease_duration": 15}):
            spark = session()
            threading.Thread(target=write, args=(spark,), daemon=True).start()
            while not (FOLDER / "task-0").exists():
                time.sleep(0.01)
            say("block ends")
        say(f"released at {time.time()}")
        say(f"counted {session().range(2).count()}")
        """,
        command=["spark-submit", "--master", "local[2]"] if submitted else None,
    )
    said = driver.until("released at")
    assert driver.end() == 0, driver.log.read_text()
    assert driver.last_write() < float(said.split("released at ")[1].split()[0])
    assert row(url, table) == (None, driver.epoch())
    assert "counted 2" in driver.log.read_text()


def test_a_guard_inside_a_guard_releases_each_in_its_turn(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        with hold_lease("outer", **SETTINGS | {"lease_duration": 15}) as outer:
            with hold_lease("inner", **SETTINGS) as inner:
                spark = session()
            threading.Thread(target=write, args=(spark,), daemon=True).start()
            while not (FOLDER / "task-0").exists():
                time.sleep(0.01)
            outer.check()
        say(f"released at {time.time()}")
        """
    )
    said = driver.until("released at")
    assert driver.end() == 0, driver.log.read_text()
    assert driver.last_write() < float(said.split("released at ")[1].split()[0])
    assert "inner: released" in said
    assert "outer: released" in said


def test_a_forked_child_neither_holds_nor_releases(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        import multiprocessing, signal
        def work(number):
            return number * number
        with hold_lease("n", **SETTINGS) as lease:
            with multiprocessing.get_context("fork").Pool(2) as pool:
                say(pool.map(work, [1, 2, 3]))
            child = os.fork()
            if child:
                say(f"child ended with {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
                say(f"still {lease.check()}")
        if not child:
            os._exit(5)
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    said = driver.log.read_text()
    assert "[1, 4, 9]" in said
    assert "child ended with 5" in said
    assert f"still {driver.epoch()}" in said
    assert said.count("released, epoch ") == 1
    assert "Traceback" not in said


def test_an_idle_session_outlives_the_block(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        spark = session()
        with hold_lease("n", **SETTINGS):
            spark.range(3).count()
        say(f"counted {spark.range(7).count()}")
        """
    )
    assert driver.end() == 0, driver.log.read_text()
    assert "counted 7" in driver.log.read_text()
    assert row(url, table) == (None, driver.epoch())


def test_a_failing_block_stops_spark_and_releases(start: Start, url: str, table: str) -> None:
    driver = start(
        """
        with hold_lease("n", **SETTINGS):
            spark = session()
            threading.Thread(target=write, args=(spark,), daemon=True).start()
            while not (FOLDER / "task-0").exists():
                time.sleep(0.01)
            raise ValueError("a bug of the pipeline")
        """
    )
    assert driver.end() == 1
    ended = time.time()
    assert "ValueError: a bug of the pipeline" in driver.log.read_text()
    assert driver.last_write() <= ended
    assert row(url, table) == (None, driver.epoch())


@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_dead_jvm_is_a_loss(start: Start, url: str, table: str, keeper: str) -> None:
    """Its workers may write on. The process that keeps the lease proves that nobody does, and hands it over; threads
    end with the driver, nobody can be sure, and it runs out."""
    driver = start(
        f"""
        @leased("n", **SETTINGS, keeper="{keeper}")
        def main():
            session()
            say("up")
            while True:
                time.sleep(0.01)
        main()
        """
    )
    driver.until("up")

    os.kill(driver.find("org.apache.spark.deploy.SparkSubmit").pid, signal.SIGKILL)
    assert driver.end() == 75
    assert "lease lost (spark-gone)" in driver.log.read_text()
    if keeper == "process":
        until(lambda: row(url, table)[0] is None)
    else:
        assert row(url, table)[0] is not None


@pytest.mark.shows("P7")
def test_a_standby_has_no_spark(start: Start, table: str) -> None:
    master = start("with hold_lease('n', **SETTINGS):\n        say('master')\n        time.sleep(60)")
    master.until("master")
    standby = start(INSIDE)
    standby.until("standby, ")
    time.sleep(1)  # nothing to wait for: it is to stay without a child
    assert {each.name for each in standby.tree()} == {"python", "lease sweeper"}


def test_a_frozen_driver_is_dead_before_it_can_be_thawed(start: Start, url: str) -> None:
    driver = start(INSIDE)
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))

    frozen = driver.freeze()
    standby = start("with hold_lease('n', **SETTINGS):\n        say('standby is master')\n        time.sleep(8)")
    standby.until("standby is master")
    thawed = time.time()
    for each in frozen:
        with contextlib.suppress(ProcessLookupError):  # the first one that was thawed has ended it already
            os.kill(each.pid, signal.SIGCONT)
    assert driver.end(10) == -signal.SIGKILL
    until(lambda: not driver.leftovers(), timeout=10)
    assert driver.last_write() < thawed
    assert standby.end() == 0


@pytest.mark.parametrize("keeper", ["process", once_more("thread")])
def test_the_history_names_the_application_and_why_the_lease_was_lost(
    start: Start, url: str, table: str, keeper: str
) -> None:
    driver = start(f"""
        with hold_lease("n", keeper="{keeper}", on_lost="stop", **SETTINGS) as lease:
            application = session().sparkContext.applicationId
            lease.complete("monday")
            say(f"application {{application}} is there")
            while True:
                lease.check()
                time.sleep(0.05)
    """)
    application = driver.until("is there").split("application ")[1].split()[0]
    config = configure(name="n", url=url, table=table)

    def first() -> Hold:
        with closing(open_store(config)) as store, closing(open_notes(config)) as notes:
            return holds_of("n", notes.every("n", KINDS), store.read("n"), where=url)[0]

    with closing(open_notes(config)) as notes:
        assert [(run.key, run.application) for run in runs_of(notes, "n")] == [("monday", application)]
    until(lambda: application in first().applications)
    want("n", Directive("anna", give_up=0.0), url=url, table=table)
    assert driver.end() == 1  # the LeaseLost that was raised
    until(lambda: first().why == "preempted")
    if keeper == "process":  # else threads and children that the block left are not known to have ended
        until(lambda: row(url, table)[0] is None)
    assert (first().epoch, first().detail) == (driver.epoch(), "paused by anna")


@pytest.mark.postgres
def test_work_that_the_block_left_running_is_no_success_of_its_run_key(start: Start) -> None:
    driver = start(
        """
        with hold_lease("n", run_key="k", **SETTINGS | {"lease_duration": 12}):
            threading.Thread(target=write, args=(session(), 30), daemon=True).start()
            while not any(FOLDER.glob("task-0")):
                time.sleep(0.05)
        """
    )
    assert driver.end(60) == 1, driver.log.read_text()
    said = driver.log.read_text()
    assert "the block was left while Spark still worked: its run key 'k' is not marked as done" in said
