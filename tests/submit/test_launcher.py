"""`spark-lease submit` beside plain spark-submit, and what becomes of a submission that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.services.proxy import Proxy
from tests.support.command import COMMAND, spark_lease
from tests.support.drivers import Driver, row, until
from tests.support.tiers import once_more

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

RELAXED_TIMEOUTS = ["--lease-duration", "15"]
"""For tests of a polite end: on a busy machine a short lease is enforced by the kernel before Python has ended."""
SPARK = ["--master", "local[2]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=OFF"]


@pytest.fixture
def submit(tmp_path: Path, url: str, table: str) -> Iterator[Callable[..., Driver]]:
    started: list[Driver] = []

    def run(script: str, *, store: str = url, settings: list[str] | None = None, contain: str = "required") -> Driver:
        flags = ["--url", store, "--table", table, "--create-table", "true", "--lease-duration", "4"]
        flags += ["--contain", contain, *(settings or [])]
        command = [COMMAND, "submit", "--lease", "n", *flags, "--", *SPARK]
        started.append(Driver(script, tmp_path, store, table, command=command))
        return started[-1]

    yield run
    for driver in started:
        driver.close()


both = pytest.mark.parametrize("contain", ["required", "off"])
contained = pytest.mark.parametrize("contain", ["required", once_more("off")])


def outcome(driver: Driver) -> dict[str, object]:
    lines = [line for line in driver.log.read_text().splitlines() if line.startswith('{"lease"')]
    found: dict[str, object] = json.loads(lines[-1])
    return found


PROBE = """
    import os, pickle, sys
    import beside
    from pyspark.sql import SparkSession
    class Mine:
        def __init__(self, value):
            self.value = value
    print("SEEN", [sys.argv, __name__, __file__, sys.path[0], os.getcwd(), beside.__file__, __spec__])
    print("SEEN", sys.modules["__main__"].Mine is Mine, Mine.__module__)
    print("SEEN", sorted(set(globals()) - {"__cached__", "__annotations__"}))
    spark = SparkSession.builder.getOrCreate()
    print("SEEN", spark.sparkContext.appName, spark.conf.get("spark.custom.key"))
    print("SEEN", spark.sparkContext.parallelize([3, 4], 2).map(lambda n: Mine(n * beside.FACTOR).value).collect())
    sys.exit(int(sys.argv[-1]))
"""


def test_a_script_finds_what_it_finds_under_plain_spark_submit(tmp_path: Path, url: str) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "probe.py").write_text(textwrap.dedent(PROBE))
    (folder / "beside.py").write_text("FACTOR = 10\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "probe.py").symlink_to("../app/probe.py")
    environ = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
    }
    options = [*SPARK, "--conf", "spark.custom.key=a b", "--py-files", str(folder / "beside.py")]
    submission = [*options, "bin/probe.py", "--flag", "a b", "--", "7"]
    plain = ["spark-submit", *submission]
    guarded = [COMMAND, "submit", "--lease", "n", "--url", url, "--", *submission]
    seen = []
    for command in (plain, guarded):
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 7, done.stderr
        seen.append([line for line in done.stdout.splitlines() if line.startswith("SEEN")])
    assert len(seen[0]) == 5
    for expected, found in zip(*seen, strict=True):
        assert found == expected
    assert json.loads(done.stdout.splitlines()[-1])["exit_code"] == 7


@pytest.mark.parametrize(
    ("ending", "code", "word"),
    [
        ("pass", 0, "finished"),
        once_more("sys.exit('gave up')", 1, "failed"),
        ("raise ValueError('a bug')", 1, "failed"),
        ("raise SystemExit(99)", 99, "failed"),
        ("from spark_lease import AlreadyDone\nraise AlreadyDone('n', 'mine', 5)", 0, "already done"),
        ("from spark_lease import StoreError\nraise StoreError('mine', 'is down')", 1, "failed"),
    ],
)
def test_a_scripts_end_is_the_exit_code(
    submit: Callable[..., Driver], url: str, table: str, ending: str, code: int, word: str, tmp_path: Path
) -> None:
    file = tmp_path / "outcome.json"
    file.write_text('{"epoch": 1}')
    script = f"say(f'epoch {{os.environ[\"SPARK_LEASE_EPOCH\"]}}')\n{ending}"
    driver = submit(script, settings=["--outcome-file", str(file)])
    assert driver.end(60) == code, driver.log.read_text()
    assert json.loads(file.read_text()) == outcome(driver)
    assert "launcher.py" not in driver.log.read_text() and "runpy" not in driver.log.read_text()
    assert (outcome(driver)["outcome"], outcome(driver)["exit_code"]) == (word, code)
    assert f"epoch {driver.epoch()}\n" in driver.log.read_text()
    assert row(url, table) == (None, driver.epoch())


def test_a_contained_script_that_ends_well_warns_of_nothing(submit: Callable[..., Driver]) -> None:
    driver = submit("pass", contain="required")
    assert driver.end(60) == 0
    assert "released, epoch" in driver.log.read_text()
    assert " n: not released" not in driver.log.read_text()


@contained
def test_a_script_that_leaves_a_stream_running_is_told_so(submit: Callable[..., Driver], contain: str) -> None:
    script = """
        from pyspark.sql import SparkSession
        rows = SparkSession.builder.getOrCreate().readStream.format("rate").load()
        rows.writeStream.format("noop").start()  # and no awaitTermination
    """
    driver = submit(script, contain=contain, settings=RELAXED_TIMEOUTS)
    assert driver.end() == 0, driver.log.read_text()
    found = outcome(driver)
    assert (found["outcome"], found["reason"]) == ("finished", "the block was left while Spark still worked")


@both
@pytest.mark.shows("P3")
@pytest.mark.postgres
def test_a_submission_whose_store_hangs_ends_with_75(submit: Callable[..., Driver], contain: str, proxy: Proxy) -> None:
    driver = submit("write(session())", store=proxy.url, settings=RELAXED_TIMEOUTS, contain=contain)
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    driver.tree()
    proxy.stall()
    assert driver.end() == 75, driver.log.read_text()
    assert outcome(driver)["outcome"] == "lost"
    until(lambda: not driver.leftovers(), timeout=10)


def test_a_contained_script_that_is_fenced_ends_with_75_and_history_says_so(
    submit: Callable[..., Driver], url: str, table: str
) -> None:
    """A newer master is at work, so there is no time to be polite: spark-submit's JVM is killed, and with it the exit
    code that it would have passed on."""
    driver = submit(
        """
        from spark_lease import current_lease
        from spark_lease.fencing.refusal import fenced
        raise fenced(current_lease()._hold, "a table", current_lease().epoch + 1)
        """,
        contain="required",
    )
    assert driver.end(60) == 75, driver.log.read_text()
    assert outcome(driver)["outcome"] == "lost"
    done = spark_lease("history", "n", "--url", url, "--table", table, "--json")
    assert [each["ended_by"] for each in json.loads(done.stdout)["holds"]] == ["fenced"]


def test_a_script_that_asks_for_delta_too_late_is_told_how(submit: Callable[..., Driver]) -> None:
    """As delta's `configure_spark_with_delta_pip` does: under spark-submit the JVM is there by then."""
    driver = submit("""
        from pyspark.sql import SparkSession
        SparkSession.builder.config("spark.jars.packages", "io.delta:delta-spark_2.13:4.4.0").getOrCreate()
        """)
    assert driver.end(60) == 0, driver.log.read_text()
    assert "start spark-submit with --packages io.delta:delta-spark_2.13:4.4.0\n" in driver.log.read_text()


@both
def test_a_driver_that_was_killed_leaves_an_outcome_and_a_history(
    submit: Callable[..., Driver], url: str, table: str, contain: str, tmp_path: Path
) -> None:
    file = tmp_path / "outcome.json"
    # The driver tells its keeper where tasks run: before that nothing is released.
    ends = "import signal; session(); time.sleep(1.5); os.kill(os.getpid(), signal.SIGKILL)"
    driver = submit(ends, contain=contain, settings=["--outcome-file", str(file)])
    assert driver.end(60) in (137, -signal.SIGKILL), driver.log.read_text()
    until(file.exists)
    told = json.loads(file.read_text())
    assert (told["outcome"], told["exit_code"], bool(told["released"])) == ("crashed", 137, True)
    assert row(url, table) == (None, told["epoch"])
    (hold,) = json.loads(spark_lease("history", "n", "--url", url, "--table", table, "--json").stdout)["holds"]
    assert (hold["ended_by"], hold["detail"]) == ("crashed", "its driver ended")
    assert contain == "off" or outcome(driver) == told


@contained
def test_a_script_that_fails_because_its_jvm_was_killed_has_crashed(
    submit: Callable[..., Driver], url: str, table: str, contain: str
) -> None:
    """Its error leaves the block before the watch has seen the end of the JVM."""
    # The driver tells its keeper where tasks run: before that nothing is released.
    driver = submit(
        """
        import signal
        spark = session(); time.sleep(1.5)
        os.kill(os.getppid(), signal.SIGKILL)
        while True:  # until a call fails: milliseconds before the end of the JVM can be seen
            spark.sparkContext._jvm.System.nanoTime()
        """,
        contain=contain,
    )
    driver.end(60)

    def ending() -> tuple[str, str] | None:
        (hold,) = json.loads(spark_lease("history", "n", "--url", url, "--table", table, "--json").stdout)["holds"]
        return (hold["ended_by"], hold["detail"]) if hold["ended_by"] else None

    # The submission ends together with its JVM: its keeper may still be at the release. And the kernel may have ended
    # the driver too by the time the keeper looks.
    assert until(ending) in [("crashed", "its JVM ended"), ("crashed", "its driver ended")]
    if contain != "off":  # where the one that says it outlives its JVM
        told = outcome(driver)
        if told["outcome"] == "lost":  # by chance the watch saw it before a call failed
            assert told["exit_code"] == 75 and "lease lost (orphaned)" in told["reason"]
            return
        assert told["outcome"] == "crashed"
        assert told["exit_code"] in (1, 137)  # the script's own, or it was killed before it could say


def ran_as_a_script(script: Path, run_key: str = "") -> subprocess.CompletedProcess[str]:
    # In a process of its own: as Python at its end, it closes all pools of threads for good.
    runs = """
import sys
from spark_lease.config.sources import configure
from spark_lease.submit.launcher import run_script
sys.exit(run_script(sys.argv[1], configure(name="n", url="local", run_key=sys.argv[2])))"""
    return subprocess.run([sys.executable, "-c", runs, script, run_key], capture_output=True, text=True)


@pytest.mark.parametrize(("hook", "code", "says"), [("sys.exit(3)", 3, ""), ("1 / 0", 1, "ZeroDivisionError")])
def test_a_hook_of_the_script_ends_it_as_python_would(tmp_path: Path, hook: str, code: int, says: str) -> None:
    (tmp_path / "job.py").write_text(f"import sys\nsys.excepthook = lambda *_: {hook}\nraise ValueError('a bug')")
    ended = ran_as_a_script(tmp_path / "job.py")
    assert ended.returncode == code, ended.stderr
    assert says in ended.stderr


def test_threads_that_outlive_the_last_line_still_find_the_script(tmp_path: Path) -> None:
    """Python waits for those of a pool at its exit, and they pickle what is the script's by its name."""
    (tmp_path / "job.py").write_text(
        "import pickle, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def load(): pass\n"
        "def work():\n"
        "    time.sleep(0.5)\n"
        "    print('loaded', pickle.loads(pickle.dumps(load)) is load, flush=True)\n"
        "ThreadPoolExecutor(1).submit(work)\n"
    )
    ended = ran_as_a_script(tmp_path / "job.py")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (0, "loaded True"), ended.stderr


@pytest.mark.parametrize("raised", ["AlreadyDone('n', 'monday', 5)", "AlreadyDone('another', 'week', 5)"])
def test_one_day_that_is_done_is_not_the_whole_week(tmp_path: Path, raised: str) -> None:
    (tmp_path / "job.py").write_text(f"from spark_lease import AlreadyDone\nraise {raised}")
    ended = ran_as_a_script(tmp_path / "job.py", run_key="week")
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[1].strip().startswith(f'File "{tmp_path}/job.py", line 2')


SLOW_KEEPER = """
    import signal
    from spark_lease.keeper.client import KeeperHold
    settle = KeeperHold.settle
    def settle_slowly(self):
        keeper = self._started.process.pid
        os.kill(keeper, signal.SIGSTOP)
        threading.Timer(0.5, os.kill, (keeper, signal.SIGCONT)).start()
        say("Spark is over")
        settle(self)
    KeeperHold.settle = settle_slowly
    write(session())
"""


@pytest.mark.fault
@pytest.mark.postgres
def test_a_lost_submission_waits_for_a_keeper_that_hears_late(submit: Callable[..., Driver], proxy: Proxy) -> None:
    """Until the keeper has heard that Spark is over, the end of Python takes the JVM along, and with it the 75."""
    driver = submit(SLOW_KEEPER, store=proxy.url, settings=RELAXED_TIMEOUTS, contain="off")
    driver.until("writing")
    proxy.stall()
    assert driver.end() == 75, driver.log.read_text()
    assert "Spark is over" in driver.log.read_text()


@pytest.mark.postgres
def test_a_loss_before_the_script_begins_ends_the_submission_with_75(
    submit: Callable[..., Driver], url: str, table: str, proxy: Proxy
) -> None:
    """Fences are claimed when spark-submit's JVM is tied already, and that may take its time."""
    proxy.stall()
    patient = ["--lease-duration", "14", "--attempt-timeout", "4", "--retry-period", "1"]
    driver = submit("say('never')", settings=["--fence-url", proxy.url, *patient])
    driver.until("acquired, epoch")
    place = ["--url", url, "--table", table]
    assert spark_lease("pause", "n", "--now", "--reason", "maintenance", *place).returncode == 0
    assert driver.end() == 75, driver.log.read_text()
    assert outcome(driver)["outcome"] == "lost"
    assert "never" not in driver.log.read_text()


IDLE_POOL = """
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    pool = {kind}PoolExecutor(2)
    say(pool.submit(sum, range(5)).result())
"""


@pytest.mark.parametrize("kind", [once_more("Thread"), "Process"])
def test_a_pool_that_nobody_shut_down_does_not_keep_a_script_from_ending(
    submit: Callable[..., Driver], url: str, table: str, kind: str
) -> None:
    driver = submit(IDLE_POOL.format(kind=kind))
    assert driver.end() == 0, driver.log.read_text()
    assert row(url, table) == (None, driver.epoch())


@pytest.mark.shows("P6", "P7")
def test_a_standby_submission_waits_without_a_session_and_then_takes_over(
    submit: Callable[..., Driver], url: str, table: str
) -> None:
    master = submit("say('master'); time.sleep(60)")
    master.until("master")
    skipped = submit("say('never')", settings=["--if-held", "skip"])
    assert skipped.end(60) == 99
    assert outcome(skipped)["outcome"] == "standby"
    assert "never" not in skipped.log.read_text()
    standby = submit("say(f'counted {session().range(4).count()}')")
    standby.until("is master")
    assert "counted" not in standby.log.read_text()
    master.tree()
    master.close()
    assert standby.end(60) == 0
    assert "counted 4" in standby.log.read_text()
    assert row(url, table) == (None, standby.epoch())


@contained
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_ends_and_releases(
    submit: Callable[..., Driver], contain: str, url: str, table: str, number: int
) -> None:
    """Ctrl-C at a terminal, or Airflow's BashOperator: JVM and Python get it at the same moment.

    Python watches closely here, so that it certainly sees the JVM's end before that of the last worker. It has 80
    seconds to stop, and needs none of them.
    """
    script = "import spark_lease.keeper.client as it; it.WATCH_PERIOD = it._SELDOM = 0.002; write(session())"
    driver = submit(script, contain=contain, settings=["--lease-duration", "240"])
    driver.until("writing")
    until(lambda: any(driver.folder.glob("task-0")))
    driver.tree()
    os.killpg(driver.process.pid, number)
    assert driver.end() == 128 + number, driver.log.read_text()
    until(lambda: not driver.leftovers(), timeout=10)
    until(lambda: row(url, table) == (None, driver.epoch()))


@pytest.mark.parametrize(
    ("contain", "to"), [("required", "group"), once_more("required", "submit"), once_more("off", "group")]
)
def test_a_stream_that_the_script_stops_at_ctrl_c_was_interrupted(
    submit: Callable[..., Driver], contain: str, url: str, table: str, to: str
) -> None:
    script = """
        rows = session().readStream.format("rate").load().writeStream.format("noop").start()
        say("up")
        try:
            rows.awaitTermination()
        except KeyboardInterrupt:
            rows.stop()
    """
    driver = submit(script, contain=contain, settings=[*RELAXED_TIMEOUTS, "--run-key", "monday"])
    driver.until("up")
    (os.killpg if to == "group" else os.kill)(driver.process.pid, signal.SIGINT)
    assert driver.end() == 130, driver.log.read_text()
    where = ("--url", url, "--table", table, "--json")
    (hold,) = json.loads(spark_lease("history", "n", *where).stdout)["holds"]
    (noted,) = json.loads(spark_lease("runs", "n", *where).stdout)
    assert (hold["ended_by"], hold["detail"], noted["outcome"]) == ("interrupted", "SIGINT", "interrupted")
    if contain == "required":  # else the driver prints through the JVM, which has ended before it
        assert outcome(driver)["outcome"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGKILL, once_more(signal.SIGTERM)])
@pytest.mark.parametrize("stubborn", [False, once_more(True)])
def test_a_driver_whose_spark_submit_was_killed_ends_by_itself(
    submit: Callable[..., Driver], url: str, table: str, number: int, stubborn: bool
) -> None:
    """Airflow's SparkSubmitOperator.on_kill ends spark-submit alone; Python lives on, re-parented.

    Its output goes through the JVM, so it cannot say anything any more: it writes to a file what became of it.
    """
    driver = submit(
        f"""
        session()
        say('up')
        while True:
            try:
                while True:
                    time.sleep(0.01)
            except BaseException as error:
                (FOLDER / "ended").write_text(repr(error))
                if not {stubborn}:
                    raise
        """,
        contain="off",
    )
    driver.until("up")
    driver.tree()
    driver.send(number)
    driver.end()
    until((driver.folder / "ended").exists, timeout=5)
    until(lambda: row(url, table)[0] is None)
    until(lambda: not driver.leftovers(), timeout=1)


def test_a_scripts_threads_are_part_of_it(submit: Callable[..., Driver], url: str, table: str) -> None:
    """Plain Python waits for them as well, and they may write."""
    driver = submit(
        """
        def late():
            time.sleep(1.5)
            say(f"thread ends, {os.environ['SPARK_LEASE_EPOCH']} held by {row()}")
        def row():
            import sqlite3
            with sqlite3.connect(os.environ["TEST_URL"].removeprefix("sqlite:///")) as connection:
                return connection.execute(f"SELECT broker_name FROM {os.environ['TEST_TABLE']}").fetchone()[0]
        threading.Thread(target=late).start()
        say("script ends")
        """
    )
    assert driver.end(60) == 0
    said = driver.log.read_text()
    assert said.index("script ends") < said.index(f"thread ends, {driver.epoch()} held by ") < said.index("released, ")
    assert "held by None" not in said
    assert row(url, table) == (None, driver.epoch())


SWALLOWS_ALL = """
        say("up")
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
        """
"""A script that no signal and no loss ends."""


@contained
@pytest.mark.postgres
def test_a_submission_that_has_to_be_killed_still_says_so(
    submit: Callable[..., Driver], contain: str, proxy: Proxy
) -> None:
    driver = submit(
        SWALLOWS_ALL,
        store=proxy.url,
        contain=contain,
    )
    driver.until("up")
    driver.tree()
    proxy.stall()
    driver.end()
    assert outcome(driver)["outcome"] == "lost"
    # Contained, the keeper outside may be the first to kill; either way the outcome is printed.
    assert contain == "required" or "killing the remaining work" in driver.log.read_text()
    until(lambda: not driver.leftovers(), timeout=10)


def test_a_script_that_swallows_its_signal_was_interrupted_and_has_not_crashed(
    submit: Callable[..., Driver], url: str, table: str
) -> None:
    driver = submit(
        """
        session()
        time.sleep(1.5)  # the keeper hears where tasks run
        """
        + SWALLOWS_ALL,
        settings=["--stop-budget", "1"],
        contain="required",
    )
    driver.until("up")
    driver.send(signal.SIGTERM)
    driver.end()
    (hold,) = json.loads(spark_lease("history", "n", "--url", url, "--table", table, "--json").stdout)["holds"]
    assert (outcome(driver)["outcome"], hold["ended_by"]) == ("interrupted", "interrupted")
    assert hold["detail"] == "SIGTERM"


def test_a_standby_whose_spark_submit_was_killed_does_not_become_master(
    submit: Callable[..., Driver], url: str, table: str
) -> None:
    master = submit("say('master'); time.sleep(60)")
    master.until("master")
    standby = submit("say('never')", contain="off")
    standby.until("is master")
    standby.tree()
    standby.send(signal.SIGKILL)
    until(lambda: not standby.leftovers(), timeout=10)
    assert row(url, table)[1] == master.epoch()


@pytest.mark.shows("P9")
def test_bad_settings_in_spark_conf_are_refused_in_the_driver(submit: Callable[..., Driver], tmp_path: Path) -> None:
    (tmp_path / "app.py").touch()
    conf = ["--conf", "spark.lease.leaseDuratoin=3"]
    command = [COMMAND, "submit", "--lease", "n", "--", *conf, str(tmp_path / "app.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 78
    assert "did you mean spark.lease.leaseDuration?" in done.stderr


@contained
def test_what_is_said_under_v_is_said_of_a_submission_too(submit: Callable[..., Driver], contain: str) -> None:
    driver = submit("while True: time.sleep(0.1)", contain=contain, settings=["-v"])
    driver.until("n: renewed, epoch ")
    driver.process.send_signal(signal.SIGTERM)
    driver.end()


@pytest.mark.parametrize("contain", ["auto", once_more("off")])
@pytest.mark.parametrize(
    "stdout",
    [
        "open(os.devnull, 'w')",
        "codecs.getwriter('utf-8')(sys.stdout.detach())",
        "io.TextIOWrapper(sys.stdout.buffer)",
        "open(sys.stdout.fileno(), 'w')",
    ],
)
def test_the_outcome_is_the_drivers_own_wherever_the_script_goes(
    tmp_path: Path, url: str, contain: str, stdout: str
) -> None:
    script = f"""
        import codecs, io, os, sys
        if os.fork() == 0:
            sys.exit(3)
        os.wait()
        os.chdir("/")
        sys.stdout = {stdout}
        sys.exit(256)
    """
    (tmp_path / "job.py").write_text(textwrap.dedent(script))
    words = ["submit", "--lease", "n", "--url", url, "--create-table", "true", "--contain", contain]
    done = spark_lease(*words, "--outcome-file", "o.json", "--", *SPARK, "job.py", cwd=tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"lease"')]
    assert (done.returncode, [each["outcome"] for each in lines]) == (0, ["finished"]), done.stderr
    assert json.loads((tmp_path / "o.json").read_text()) == lines[0]


def test_its_own_spark_defaults_are_read(tmp_path: Path, url: str) -> None:
    """Of the spark-submit that is named, as it will do itself."""
    import pyspark

    home = tmp_path / "spark"
    home.mkdir()
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name in ("bin", "jars", "python"):
            (home / each.name).symlink_to(each)
    (home / "conf").mkdir()
    settings = {"spark.lease.name": "fromDefaults", "spark.lease.url": url, "spark.lease.createTable": "true"}
    (home / "conf" / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    (tmp_path / "job.py").touch()
    bare = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "SPARK_CONF_DIR")}
    program = str(home / "bin" / "spark-submit")
    done = spark_lease("submit", "--spark-submit", program, "--", *SPARK, f"{tmp_path}/job.py", env=bare)
    assert '{"lease": "fromDefaults", "outcome": "finished"' in done.stdout, done.stderr


def test_py_files_are_found_in_pythons_safe_mode(tmp_path: Path, url: str) -> None:
    (tmp_path / "deps" / "of_the_job.py").parent.mkdir()
    (tmp_path / "deps" / "of_the_job.py").touch()
    (tmp_path / "job.py").write_text("import of_the_job")
    words = ["submit", "--lease", "n", "--url", url, "--create-table", "true", "--", *SPARK]
    files = ["--py-files", f"{tmp_path}/deps/of_the_job.py", f"{tmp_path}/job.py"]
    done = spark_lease(*words, *files, env={**os.environ, "PYTHONSAFEPATH": "1"})
    assert done.returncode == 0, done.stdout
