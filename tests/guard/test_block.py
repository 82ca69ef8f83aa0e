"""The guard in this process, where no Spark is needed; with Spark see tests/spark."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from pyspark import SparkContext

from spark_lease import AlreadyDone, ConfigError, Lease, LeaseLost, Loss, current_lease, hold_lease, leased
from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.guard.block import Guard
from spark_lease.holds import open_contender
from spark_lease.keeper.client import KeeperHold
from spark_lease.spark import session as demotion
from spark_lease.spark.delta_fence import hook
from spark_lease.testing import memory_lease
from tests.support.command import spark_lease
from tests.support.drivers import row, until


def test_a_block_holds_and_releases(url: str) -> None:
    with hold_lease("n", url=url) as lease:
        assert current_lease() is lease
        assert lease.check()
    assert current_lease() is None
    with pytest.raises(LeaseLost, match="released"):
        lease.check()
    with hold_lease("n", url=url) as again:
        assert again.check()


def test_the_same_lease_is_not_waited_for_by_its_own_holder(url: str) -> None:
    with hold_lease("n", url=url), pytest.raises(ConfigError, match="already held by this process"):
        hold_lease("n", url=url)


FORKED_IN_A_BLOCK = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from spark_lease import ConfigError, current_lease, hold_lease
from spark_lease.spark.delta_fence import hook

def take(url):
    try:
        with hold_lease("n", url=url) as lease:
            return lease.check() > 0, current_lease() is lease, len(hook.fences), len(hook.ended)
    except ConfigError:
        return "refused"

with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
    with hold_lease("n", url=sys.argv[1]):
        print(pool.submit(take, sys.argv[1]).result())
    print(pool.submit(take, sys.argv[1]).result())
"""


def test_a_worker_that_outlives_its_block_may_take_the_lease(url: str) -> None:
    words = [sys.executable, "-c", FORKED_IN_A_BLOCK, url]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "refused\n(True, True, 1, 0)\n", done.stdout + done.stderr


def test_a_block_is_entered_once(url: str) -> None:
    guard = hold_lease("n", url=url)
    with guard:
        pass
    with pytest.raises(ConfigError, match="call hold_lease again for each block"):
        guard.__enter__()


def test_a_forgotten_with_is_told(url: str) -> None:
    with pytest.warns(RuntimeWarning, match="hold_lease of 'n' was never entered, and guarded nothing") as told:
        hold_lease("n", url=url)
    assert told[0].filename == __file__


@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_signals_that_come_together_end_it_once(keeper: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from systemd with SendSIGHUP: the second finds the guard about to give up."""

    def leave(guard: Guard, *error: Any) -> None:
        signal.raise_signal(signal.SIGHUP)
        leave_it(guard, *error)

    leave_it = Guard.__exit__
    monkeypatch.setattr(Guard, "__exit__", leave)
    with pytest.raises(SystemExit) as raised, hold_lease("n", url=url, keeper=keeper):
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.code == 128 + signal.SIGHUP
    assert row(url, "spark_lease")[0] is None


def test_a_signal_in_the_block_releases_and_exits(url: str) -> None:
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as raised, hold_lease("n", url=url):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
    assert raised.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    with hold_lease("n", url=url) as lease:
        assert lease.check()


def test_ctrl_c_twice_still_releases(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = KeeperHold.release, list[int]()

    def impatient(self: KeeperHold) -> bool:
        monkeypatch.setattr(KeeperHold, "release", release)
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(KeeperHold, "release", impatient)
    with pytest.raises(KeyboardInterrupt), hold_lease("n", url=url):
        raise KeyboardInterrupt
    assert calls
    with hold_lease("n", url=url) as lease:
        assert lease.check()


def test_a_main_gets_its_lease_arguments_and_result(url: str) -> None:
    @leased("n", url=url)
    def main(day: str, *, lease: Lease) -> tuple[str, int]:
        return day, lease.check()

    @leased("n", url=url)
    def plain(day: str) -> str:
        return day

    assert main("monday")[0] == "monday"
    assert plain("tuesday") == "tuesday"


def test_a_call_that_cannot_be_waits_for_no_lease(url: str) -> None:
    @leased("n", url=url)
    def main(lease: Lease, x: int) -> int:
        return x

    for wrong in (lambda: main(4), lambda: main(x=1, y=2), lambda: main(None, 1, lease=None)):  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            wrong()  # type: ignore[no-untyped-call]
    assert not Path(url.removeprefix("sqlite:///")).exists()
    assert main(x=4) == 4  # type: ignore[call-arg]


def test_threads_that_work_on_after_a_loss_are_named(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The interrupt ends the block's wait for its pool, but not the pool's threads."""
    done = threading.Event()
    with pytest.raises(LeaseLost), hold_lease("n", url=url, create_table="true", on_lost="stop") as lease:
        pool = ThreadPoolExecutor(1, thread_name_prefix="writer")
        with pool:
            pool.submit(done.wait, 60)
            lease._hold.lose(Loss.TAKEN, "by a test")
    try:
        until(lambda: "threads that were started during the block run on and may still write (writer_0)" in caplog.text)
    finally:
        done.set()


def test_in_a_thread_of_neither_block_the_lease_may_be_the_wrong_one(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with hold_lease("outer", url=url, create_table="true"), hold_lease("inner", url=url) as inner:
        with ThreadPoolExecutor(1) as pool:
            assert [pool.submit(current_lease).result() for _ in range(2)] == [inner, inner]
        assert current_lease() is inner
    assert caplog.text.count("asked for current_lease() and got inner, not outer: pass it the lease of its block") == 1


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_lease_that_is_gone_at_the_release_is_told(url: str, keeper: str, caplog: pytest.LogCaptureFixture) -> None:
    with hold_lease("n", url=url, keeper=keeper):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
            database.execute("DELETE FROM spark_lease")
        database.close()
    assert "n: not released: its record was removed or taken meanwhile, by release --force or by another" in caplog.text


def test_what_is_given_by_place_is_not_taken_for_the_lease(url: str) -> None:
    @leased("n", url=url)
    def main(lease: Lease, day: str = "monday") -> str:
        return day

    with pytest.raises(TypeError, match="a str was given in the place of the lease: give all but the lease by name"):
        main("tuesday")  # type: ignore[arg-type]
    assert not Path(url.removeprefix("sqlite:///")).exists()
    assert main(day="tuesday") == "tuesday"  # type: ignore[call-arg]
    with memory_lease() as lease:
        assert main(lease, "tuesday") == "tuesday"


def test_a_mains_end_is_an_exit_code_and_its_own_errors_are_its_own(url: str) -> None:
    def raising(error: BaseException, **settings: object) -> BaseException:
        @leased("n", url=url, **settings)
        def main() -> None:
            raise error

        with pytest.raises(BaseException) as raised:
            main()
        return raised.value

    own = ConfigError("mine", "is odd")
    assert raising(own) is own
    assert raising(ValueError("x")).args == ("x",)
    ended = raising(KeyboardInterrupt())
    assert isinstance(ended, SystemExit)
    assert ended.code == 130
    refused = raising(ValueError("never"), stop_budget=99)
    assert isinstance(refused, SystemExit)
    assert refused.code == 78


CAUGHT = """
import os, signal, sys
from spark_lease import hold_lease
{before}
with hold_lease("n", url=sys.argv[1], run_key="monday"):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        {then}
print("goes on")
"""
OWN_HANDLER = "signal.signal(signal.SIGINT, lambda *_: print('asked'))"
PYSPARKS = "from pyspark import SparkContext; SparkContext('local[1]', 'n')"


@pytest.mark.parametrize(
    ("before", "then", "code", "run"),
    [
        ("", "pass", 130, "interrupted"),
        ("", "sys.exit(0)", 130, "interrupted"),
        ("", "signal.signal(signal.SIGINT, signal.SIG_IGN)", 130, "interrupted"),
        ("sys.ps1 = '>>> '", "pass", 0, "finished"),
        ("", "raise", -signal.SIGINT, "interrupted"),
        ("", "1 / 0", 1, "interrupted"),
        (OWN_HANDLER + "; signal.pause = str", "pass", 0, "finished"),
        pytest.param(PYSPARKS, "pass", 130, "interrupted", marks=pytest.mark.spark),
    ],
)
def test_a_ctrl_c_that_the_program_catches_is_no_success(url: str, before: str, then: str, code: int, run: str) -> None:
    script = CAUGHT.format(before=before, then=then)
    ended = subprocess.run([sys.executable, "-c", script, url], timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, "goes on" in ended.stdout) == (code, not code), ended.stderr
    (noted,) = json.loads(spark_lease("runs", "n", "--url", url, "--json").stdout)
    assert noted["outcome"] == run


def test_a_lost_lease_surfaces_from_what_the_block_died_of(url: str) -> None:
    with pytest.raises(LeaseLost) as raised, hold_lease("n", url=url, on_lost="stop") as lease:
        try:
            lease._hold.lose(Loss.TAKEN, "held by h")
            time.sleep(20)
        except KeyboardInterrupt:
            raise ValueError("something broke because of it") from None
    assert raised.value.reason is Loss.TAKEN
    assert isinstance(raised.value.__cause__, ValueError)


@pytest.mark.parametrize("waits", [False, True], ids=["held", "waited for"])
def test_a_lease_inside_one_that_is_lost_saw_no_signal(url: str, waits: bool) -> None:
    seen: list[BaseException] = []
    with contextlib.ExitStack() as stack:
        raised = stack.enter_context(pytest.raises(LeaseLost))
        if waits:
            other = open_contender(configure(name="inner", url=url), BootClock())
            stack.callback(other.close)
            other.acquire()
            stack.callback(other.release)
        with hold_lease("outer", url=url, on_lost="stop") as outer:
            try:
                if waits:
                    threading.Timer(0.5, outer._hold.lose, (Loss.TAKEN, "held by h")).start()
                with hold_lease("inner", url=url, poll_period=0.1):
                    outer._hold.lose(Loss.TAKEN, "held by h")
                    time.sleep(20)
            except BaseException as error:
                seen.append(error)
                raise
    assert isinstance(seen[0], KeyboardInterrupt), "and no SystemExit of a signal from outside"
    assert raised.value.name == "outer" and raised.value.__cause__ is None
    if not waits:
        holds = json.loads(spark_lease("history", "inner", "--url", url, "--json").stdout)["holds"]
        assert (holds[0]["ended_by"], holds[0]["detail"]) == ("interrupted", "the loss of another lease")


@pytest.mark.parametrize("reason", [Loss.ORPHANED, Loss.TAKEN, Loss.FENCED])
@pytest.mark.parametrize("keeper", ["process", "thread"])
def test_a_block_in_pure_python_is_interrupted(url: str, keeper: str, reason: Loss) -> None:
    """Also where another may be master already, and no time is left."""
    with pytest.raises(LeaseLost) as raised, hold_lease("n", url=url, on_lost="stop", keeper=keeper) as lease:
        lease._hold.lose(reason)
        time.sleep(30)
        raise AssertionError("slept through it")  # pragma: no cover
    assert raised.value.reason is reason
    assert raised.value.__context__ is None or isinstance(raised.value.__context__, KeyboardInterrupt)


def test_a_block_that_passes_over_an_interrupt_is_interrupted_again(url: str) -> None:
    times = 0
    with pytest.raises(LeaseLost), hold_lease("n", url=url, on_lost="stop") as lease:
        while times < 3:
            try:
                if not times:
                    lease._hold.lose(Loss.TAKEN)
                time.sleep(30)
                raise AssertionError("slept through it")  # pragma: no cover
            except KeyboardInterrupt:
                times += 1
    assert times == 3


def test_a_block_whose_thread_blocks_the_signal_is_interrupted_between_its_calls(url: str) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with pytest.raises(LeaseLost), hold_lease("n", url=url, on_lost="stop") as lease:
            lease._hold.lose(Loss.TAKEN)
            for _ in range(100):
                time.sleep(0.1)
            raise AssertionError("worked through it")  # pragma: no cover
        while signal.sigtimedwait({signal.SIGTERM}, 0):  # it is still to come
            pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_program_that_lives_on_another_day_waits_for_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tomorrow = time.time() + 86400
    with hold_lease("n", url=url) as lease:
        monkeypatch.setattr(time, "time", lambda: tomorrow)
        assert lease.check() == lease.epoch
        monkeypatch.undo()
    assert "released" in repr(lease)


@pytest.mark.parametrize("handler", [lambda *_: None, signal.SIG_IGN, signal.SIG_DFL])
def test_a_block_with_a_handler_of_its_own_is_interrupted_between_its_calls(url: str, handler: Any) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(LeaseLost), hold_lease("n", url=url, on_lost="stop") as lease:
            signal.signal(signal.SIGTERM, handler)
            lease._hold.lose(Loss.TAKEN)
            for _ in range(100):
                time.sleep(0.1)
            raise AssertionError("worked through it")  # pragma: no cover
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_guard_is_entered_once_also_by_two_threads(url: str) -> None:
    guard, inner = hold_lease("n", url=url), hold_lease("n", url=url)
    refused: list[Exception] = []

    def enter() -> None:
        try:
            guard.__enter__()
        except ConfigError as error:
            refused.append(error)

    with guard as lease:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join(20)
        with pytest.raises(ConfigError, match="already held by this process"), inner:
            pass
        assert lease.check()
    assert ["was entered before" in str(each) for each in refused] == [True]


def test_each_thread_sees_its_own_lease_and_one_without_the_last(url: str) -> None:
    seen: dict[str, str] = {}
    both = threading.Barrier(3)

    def look(name: str) -> None:
        lease = current_lease()
        seen[name] = lease.name if lease else ""

    def block(name: str) -> None:
        with hold_lease(name, url=url, keeper="thread"):
            both.wait(20)
            look(name)
            both.wait(20)

    threads = [threading.Thread(target=block, args=(each,)) for each in ("a", "b")]
    for each in threads:
        each.start()
    both.wait(20)
    look("none of its own")
    both.wait(20)
    for each in threads:
        each.join(20)
    assert seen.pop("none of its own") in ("a", "b")
    assert seen == {"a": "a", "b": "b"}


def test_a_store_that_fails_in_its_own_way_fails_no_block(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.getsignal(signal.SIGTERM)

    def fails(*_: object) -> None:
        raise RuntimeError("a driver's own fault")

    with hold_lease("n", url=url, keeper="thread") as lease:
        monkeypatch.setattr(type(lease._hold), "release", fails)
    assert signal.getsignal(signal.SIGTERM) is handler


def test_a_block_on_another_thread_is_interrupted_between_its_calls(url: str) -> None:
    ended: list[BaseException] = []

    def block() -> None:
        try:
            with hold_lease("n", url=url, on_lost="stop") as lease:
                lease._hold.lose(Loss.TAKEN)
                for _ in range(300):
                    time.sleep(0.1)
        except LeaseLost as lost:
            ended.append(lost)

    thread = threading.Thread(target=block)
    thread.start()
    thread.join(20)
    assert [type(each) for each in ended] == [LeaseLost]


def test_a_decorator_without_parentheses_takes_its_settings_from_outside(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LEASE_URL", url)
    monkeypatch.setenv("SPARK_LEASE_NAME", "n")

    @leased
    def main(day: str, lease: Lease) -> str:
        return f"{day} {lease!r}"

    assert re.fullmatch(r"monday <Lease 'n' held, epoch \d+, protection \w+, \d+\.\d s left>", main("monday"))


def test_a_framework_that_reads_a_mains_parameters_does_not_see_the_lease(url: str) -> None:
    """Typer makes options of them, and Prefect binds its own parameters to them."""

    def shown(main: Any) -> str:
        return str(inspect.signature(leased("n", url=url)(main)))

    assert shown(lambda lease, day, **more: 0) == "(*, day, **more)"
    assert shown(lambda day, *days, lease: 0) == "(day, *days)"

    def typed(day: int, lease: Lease | None = None) -> None:
        pass

    def own(lease: str, day: int) -> None:
        pass

    assert shown(typed).startswith("(day: 'int')") and shown(own).startswith("(lease: 'str', day: 'int')")


def test_what_a_group_of_commands_has_already_is_no_main() -> None:
    with pytest.raises(TypeError, match="load is a click command: put @leased below"):
        leased("n")(click.Command("load", callback=lambda: None))
    with pytest.raises(TypeError, match="Path is a class"):
        leased("n")(Path)


def test_what_the_caller_gives_for_a_parameter_called_lease_is_left_alone(url: str) -> None:
    @leased("n", url=url)
    def main(lease: str, *, day: str = "") -> str:
        return lease + day

    assert main("mine") == main(lease="mi", day="ne") == "mine"


def test_a_main_that_runs_after_it_returned_is_refused() -> None:
    async def coroutine() -> None: ...

    def generator():  # type: ignore[no-untyped-def]
        yield 1

    for main in (coroutine, generator):
        with pytest.raises(TypeError, match="decorate a main that calls asyncio"):
            leased("n")(main)


class _Called:
    async def __call__(self) -> None:
        raise AssertionError("this runs without a lease")


async def _asynchronous() -> str:
    return "done"


@pytest.mark.parametrize(
    "main",
    [
        _Called(),
        lambda: _Called()(),
        functools.wraps(_asynchronous)(lambda: _asynchronous()),
        lambda: (_ for _ in range(2)),
    ],
)
def test_a_main_that_only_began_when_it_returned_fails_and_its_key_is_not_done(url: str, main: Any) -> None:
    with pytest.raises(TypeError, match="whose work would run without the lease: decorate a main that calls asyncio"):
        leased("n", url=url, create_table="true", run_key="monday", on_lost="stop")(main)()
    with hold_lease("n", url=url) as lease:
        assert not lease.is_done("monday")


def test_a_wrapper_that_runs_an_async_main_is_a_main(url: str) -> None:
    main = functools.wraps(_asynchronous)(lambda: asyncio.run(_asynchronous()))
    assert leased("n", url=url)(main)() == "done"


KEPT_OPEN = """
import sys
from spark_lease import hold_lease
def days():
    with hold_lease("n", url=sys.argv[1]):
        yield from ("monday", "tuesday")
for day in (kept := days()):
    break
"""


def test_a_block_that_a_generator_keeps_open_ends_with_python(url: str) -> None:
    ended = subprocess.run([sys.executable, "-c", KEPT_OPEN, url], capture_output=True, text=True, timeout=40)
    assert ended.returncode == 0, ended.stderr
    assert "Python exits while a generator holds the block open: released when this process has ended" in ended.stderr
    with hold_lease("n", url=url, acquire_timeout=5):
        pass


def test_the_delta_fence_of_a_lost_lease_stays_until_spark_is_over_and_no_longer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next transaction of the JVM that hangs is refused by nobody, or the next hold's by a lease long lost."""
    until(lambda: not hook.fences)  # of an earlier test, whose Spark is looked at once a second
    over = threading.Event()
    monkeypatch.setattr(demotion, "stopped", lambda: over.wait(20))
    monkeypatch.setattr(demotion.Spark, "_nobody_is_left", lambda _: False)
    settings: dict[str, Any] = {"url": url, "create_table": "true", "on_lost": "stop", "keeper": "thread"}
    with pytest.raises(LeaseLost), hold_lease("n", **settings) as lease:
        assert len(hook.fences) == 1
        lease._hold.lose(Loss.TAKEN, "by a test")
        lease.check()
    assert len(hook.fences) == 1
    over.set()
    until(lambda: not hook.fences)


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_jvm_that_ends_before_the_block_is_no_loss(url: str, keeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier block has killed it, and it ends while the next one waits."""
    master = open_contender(configure(name="n", url=url), BootClock())
    master.acquire()
    jvm = subprocess.Popen(["sleep", "0.5"])
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
    threading.Timer(1.5, master.release).start()
    with hold_lease("n", url=url, keeper=keeper, poll_period=0.1) as lease:
        assert lease.check() and jvm.poll() == 0
    master.close()


@pytest.mark.parametrize("keeper", ["thread", "process"])
def test_a_jvm_without_a_session_that_ends_within_the_block_is_no_loss(
    url: str, keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier block has killed it, and it takes its time to die."""
    with subprocess.Popen(["sleep", "60"]) as jvm:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=jvm))
        with hold_lease("n", url=url, keeper=keeper, run_key="monday") as lease:
            jvm.kill()
            until(lambda: jvm.poll() is not None)
            time.sleep(1)  # ten looks
            assert lease.check()
    with pytest.raises(AlreadyDone):  # at once, so it was given back
        hold_lease("n", url=url, keeper=keeper, run_key="monday", acquire_timeout=2).__enter__()
