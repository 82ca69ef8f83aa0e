"""What belongs to a driver and what does not: real processes, no Spark. Each is told by a file that it writes."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from spark_lease.keeper.guarded_processes import GuardedProcesses, is_helper
from spark_lease.system.processes import MARK, Process, kill, look, processes, tree
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import Driver, command_line, keeper_of, row, standby, until

Start = Callable[..., Driver]

WRITES = """
import os, sys, time
with open(sys.argv[1], "a") as file:
    while True:
        file.write(f"{time.time()}\\n"); file.flush(); time.sleep(0.005)
"""
CHILDREN = {
    "a subprocess": "subprocess.Popen([sys.executable, '-c', WRITES, FILE])",
    "in a session of its own": "subprocess.Popen([sys.executable, '-c', WRITES, FILE], start_new_session=True, env={})",
    "three deep": "subprocess.Popen(['sh', CHAIN, '3', sys.executable, WRITES, FILE], env={})",
    "a fork": """
        if not os.fork():
            sys.argv[1:] = [FILE]
            exec(WRITES)""",
    "a pool": """
        import multiprocessing
        def work(_):
            sys.argv[1:] = [FILE]
            exec(WRITES, {"__name__": "work"})
        pool = multiprocessing.get_context("fork").Pool(2)
        pool.map_async(work, range(2))""",
}
CHAIN = """
if [ $1 -gt 0 ]; then
    sh $0 $(($1 - 1)) "$2" "$3" "$4"
    true
else
    exec "$2" -c "$3" "$4"
fi
"""
GUARDED = """
import subprocess
from spark_lease.system.processes import tree
WRITES, FILE, CHAIN = {writes!r}, str(FOLDER / "writes"), str(FOLDER / "chain.sh")
Path(CHAIN).write_text({chain!r})
with hold_lease("n", **SETTINGS) as lease:
{child}
    ours = {{os.getpid(), *(each.pid for each in tree(lease._hold._started.process.pid))}}
    while not Path(FILE).exists() or any(each.pid not in ours | {{*lease._hold._files}} for each in tree(os.getpid())):
        time.sleep(0.01)
    time.sleep(0.1)  # until the keeper has its end as well
    say("up")
    while True:  # Python hears of a signal between two calls
        time.sleep(0.1)
"""


def last_write(folder: Path) -> float:
    lines = (folder / "writes").read_text().split()
    return max(float(line) for line in lines if line.count(".") == 1 and len(line) > 12)


@pytest.mark.shows("P3", "P5")
@pytest.mark.parametrize(
    "fault", ["kill the driver", "kill the keeper", "kill both", "freeze all", "interrupt the block"]
)
@pytest.mark.parametrize("child", CHILDREN)
def test_what_a_driver_started_writes_nothing_after_the_next_grant(
    start: Start, url: str, table: str, tmp_path: Path, child: str, fault: str
) -> None:
    body = textwrap.indent(textwrap.dedent(CHILDREN[child]).strip(), "    ")
    driver = start(GUARDED.format(writes=WRITES, chain=CHAIN, child=body))
    driver.until("up")
    driver.tree()
    victims = {
        "kill the driver": [driver.process.pid],
        "kill the keeper": [keeper_of(driver.process.pid)],
        "kill both": [driver.process.pid, keeper_of(driver.process.pid)],
    }
    if fault == "freeze all":
        frozen = driver.freeze()
    elif fault == "interrupt the block":
        driver.process.terminate()
        assert driver.end() == 128 + signal.SIGTERM
    else:
        for pid in victims[fault]:
            os.kill(pid, signal.SIGKILL)
    done = spark_lease("run", "--lease", "n", "--url", url, "--table", table, "--poll-period", "0.05", "--", "true")
    assert done.returncode == 0, done.stderr
    granted = last_line(done)["epoch"] / 1000
    if fault in (ended_by := {"kill the driver": "crashed", "interrupt the block": "interrupted"}):
        said = spark_lease("history", "n", "--url", url, "--table", table, "--json").stdout
        assert json.loads(said)["holds"][0]["ended_by"] == ended_by[fault]  # given back, and not run out
    if fault == "freeze all":
        for each in frozen:
            if look(each.pid):
                os.kill(each.pid, signal.SIGCONT)
    time.sleep(0.2)  # for writes that must not come
    assert last_write(tmp_path) < granted
    until(lambda: not driver.leftovers(), timeout=10)


@pytest.mark.shows("P3")
@pytest.mark.parametrize("is_all_frozen", [False, True])
def test_a_child_that_was_just_started_ends_with_a_driver_that_is_frozen(
    start: Start, url: str, table: str, tmp_path: Path, is_all_frozen: bool
) -> None:
    driver = start(f"""
        import subprocess
        with hold_lease("n", **SETTINGS):
            subprocess.Popen([sys.executable, "-c", {WRITES!r}, str(FOLDER / "writes")])
            say("up")
            time.sleep(60)
    """)
    driver.until("up")
    if is_all_frozen:
        frozen = driver.freeze()
    else:
        frozen = [
            each for each in tree(driver.process.pid) if each.pid in (driver.process.pid, keeper_of(driver.process.pid))
        ]
        for each in frozen:  # and not their groups, which have the child
            os.kill(each.pid, signal.SIGSTOP)
    granted = standby(url, table)
    thawed = time.time()
    for each in filter(lambda each: look(each.pid), frozen):
        os.kill(each.pid, signal.SIGCONT)
    time.sleep(1)  # for writes that must not come
    assert last_write(tmp_path) < (thawed + 0.5 if is_all_frozen else granted)
    until(lambda: not driver.leftovers(), timeout=10)


STARTS_CHAINS = """
import subprocess, sys
for line in sys.stdin:
    subprocess.Popen(["sh", line.strip(), "3", "sleep", "60"], env={"PATH": "/bin:/usr/bin"}, stderr=subprocess.DEVNULL)
"""


def test_what_a_failed_block_has_left_behind_is_waited_for_and_killed_in_time(
    start: Start, url: str, table: str, tmp_path: Path
) -> None:
    driver = start("""
        import subprocess
        try:
            with hold_lease("n", **SETTINGS) as lease:
                for name, seconds in {"short": 0.3, "long": 60}.items():
                    code = f"import time; time.sleep({seconds}); open(r'{FOLDER}/{name}', 'w')"
                    say(f"{name} is {subprocess.Popen([sys.executable, '-c', code]).pid}.")
                raise RuntimeError("the block")
        except RuntimeError:
            say("goes on")
        time.sleep(60)
    """)
    said = driver.until("goes on", 10)
    long = int(said.split("long is ")[1].split(".")[0])
    done = spark_lease("run", "--lease", "n", "--url", url, "--table", table, "--poll-period", "0.05", "--", "true")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "short").exists() and not look(long)
    assert driver.process.poll() is None, "the driver was killed too"
    said = json.loads(spark_lease("history", "n", "--url", url, "--table", table, "--json").stdout)
    assert said["holds"][0]["ended_by"] == "failed"


@pytest.mark.shows("P5")
def test_what_a_failed_block_has_left_behind_ends_in_time_also_if_the_keeper_stands_still(
    start: Start, url: str, table: str, tmp_path: Path
) -> None:
    driver = start(f"""
        import subprocess
        try:
            with hold_lease("n", **SETTINGS):
                child = subprocess.Popen([sys.executable, "-c", {WRITES!r}, str(FOLDER / "writes")])
                raise RuntimeError("the block")
        except RuntimeError:
            say(f"it is {{child.pid}}.")
        time.sleep(60)
    """)
    child = int(driver.until("it is ").split("it is ")[1].split(".")[0])
    os.kill(keeper_of(driver.process.pid), signal.SIGSTOP)
    granted = standby(url, table)
    time.sleep(0.2)  # for writes that must not come
    assert not look(child) and last_write(tmp_path) < granted


def test_after_a_failed_block_nothing_is_killed_but_what_it_has_left_behind(start: Start, url: str, table: str) -> None:
    driver = start("""
        import subprocess
        def sleeping():
            return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid
        found = {}
        with hold_lease("n", **SETTINGS):
            found["of an earlier block"] = sleeping()
        if not (pid := os.fork()):
            time.sleep(60)
            os._exit(0)
        found["a worker"] = pid
        try:
            with hold_lease("n", **SETTINGS):
                found["left behind"] = sleeping()
                raise RuntimeError("the block")
        except RuntimeError:
            pass
        with hold_lease("other", **SETTINGS):
            found["of a later block"] = sleeping()
            import json
            say("found " + json.dumps(found))
            time.sleep(60)
    """)
    pids = json.loads(driver.until("found {").split("found ")[1].splitlines()[0])
    standby(url, table)
    left = pids.pop("left behind")
    time.sleep(0.5)  # for kills that must not come
    assert not look(left)
    assert all(look(pid) for pid in pids.values()), [what for what, pid in pids.items() if not look(pid)]
    kill([look(pid) for pid in pids.values()])


def test_what_a_block_that_succeeded_has_left_behind_is_named_and_left_alone(start: Start, tmp_path: Path) -> None:
    driver = start(f"""
        import subprocess
        with hold_lease("n", **SETTINGS) as lease:
            child = subprocess.Popen([sys.executable, "-c", {WRITES!r}, str(FOLDER / "writes")])
            from multiprocessing.shared_memory import SharedMemory  # with a helper of Python's beside it
            SharedMemory(create=True, size=1).unlink()
        say(f"child is {{child.pid}}.")
    """)
    said = driver.until("child is ")
    assert driver.end() == 0
    pid = int(said.split("child is ")[1].split(".")[0])
    assert (
        f"the block has left processes running: python (pid {pid}): no lease guards them now" in driver.log.read_text()
    )
    found = look(pid)
    assert found, "it was killed"
    kill([found])


def test_a_chain_is_found_in_one_look_whatever_order_its_numbers_come_in(tmp_path: Path) -> None:
    (tmp_path / "chain.sh").write_text(CHAIN.replace('"$2" -c "$3" "$4"', '"$2" "$3"').replace('"$3" "$4"', '"$3"'))
    head = subprocess.Popen([sys.executable, "-c", STARTS_CHAINS], stdin=subprocess.PIPE, text=True)
    assert head.stdin
    found = look(head.pid)
    assert found
    family = GuardedProcesses(lambda: {head.pid: found.started})
    try:
        for _ in range(30):
            family.grow()
            before = {each.pid for each in tree(head.pid)}
            head.stdin.write(f"{tmp_path}/chain.sh\n")
            head.stdin.flush()
            until(lambda: sum(each.name == "sleep" and each.pid not in before for each in tree(head.pid)))  # noqa: B023
            chain = {each.pid for each in tree(head.pid)} - before
            assert len(chain) == 4
            assert {each.pid for each in family.grow()} == chain
    finally:
        kill(tree(head.pid))
        head.communicate()


# Neighbours


PR_SET_CHILD_SUBREAPER = 36
HELPER = "import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(60)"
BESIDE = 'python=$1; file=$2; shift 2; "$python" -c "$HELPER" "$file" > /dev/null 2>&1 & exec "$@"'


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Words before a command: a shell that starts a helper and becomes that command, as an entry point does."""
    monkeypatch.setenv("HELPER", HELPER)
    yield ["sh", "-c", BESIDE, "sh", sys.executable, str(tmp_path / "helper")]
    kill([each for each in processes().values() if str(tmp_path / "helper") in command_line(each.pid)])


def test_what_an_earlier_hold_has_left_running_is_a_neighbour_whenever_it_was_started() -> None:
    def orphan(mark: str) -> Process:
        words = ["sh", "-c", "sleep 60 > /dev/null 2>&1 & echo $!"]
        found = look(int(subprocess.run(words, env={MARK: mark}, capture_output=True, check=True).stdout))
        assert found
        return found

    me = look(os.getpid())
    assert me
    there = GuardedProcesses(lambda: {me.pid: me.started})
    orphans = [orphan("ours"), orphan("another's")]
    try:
        there.look_ahead("ours")
        orphans += [orphan("ours")]
        there.leave_out_what_is_there("ours")
        assert [each.identity in there.before for each in orphans] == [True, False, True]
    finally:
        kill(orphans)


def test_a_process_that_got_the_number_of_a_stranger_is_looked_at_again() -> None:
    """In a PID namespace of its own, whose next number can be said."""
    script = f"""
        import os, subprocess
        from pathlib import Path
        from spark_lease.keeper.guarded_processes import GuardedProcesses
        from spark_lease.system.processes import look, marks_of

        def sleeper(mark):
            return subprocess.Popen(["sleep", "60"], env={{{MARK!r}: mark}})

        head, stranger = sleeper(""), sleeper("another's")
        there = GuardedProcesses(lambda: {{head.pid: look(head.pid).started}})
        there.look_ahead("ours")
        stranger.kill()
        stranger.wait()
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(stranger.pid - 1))
        neighbour = sleeper("ours")
        assert neighbour.pid == stranger.pid
        while marks_of(neighbour.pid) != ["ours"]:
            pass  # it is becoming another program
        there.leave_out_what_is_there("ours")
        assert look(neighbour.pid).identity in there.before
    """
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c"]
    done = subprocess.run([*words, textwrap.dedent(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_stranger_that_became_a_child_of_the_driver_is_a_neighbour() -> None:
    """A driver that is the first process of its container is given every process whose parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        parent = subprocess.Popen(
            ["sh", "-c", "sleep 60 > /dev/null & echo $!; wait"], stdout=subprocess.PIPE, text=True
        )
        assert parent.stdout
        me, stranger = look(os.getpid()), look(int(parent.stdout.readline()))
        assert me and stranger
        there = GuardedProcesses(lambda: {me.pid: me.started})
        there.look_ahead("ours")
        parent.kill()
        parent.communicate()
        until(lambda: (found := look(stranger.pid)) and found.parent == me.pid)
        there.leave_out_what_is_there("ours")
        assert stranger.identity in there.before
        kill([stranger])
        os.waitpid(stranger.pid, 0)
    finally:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)


def test_workers_of_a_jvm_that_is_told_of_late_are_no_neighbours() -> None:
    """The keeper sets aside what is there before it tells of a grant, and once more when the driver names its JVM."""
    script = """exec -a jvm sh -c 'sh -c "sleep 60; : pyspark"."daemon" & echo $!; wait'"""
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True) as jvm:
        assert jvm.stdout
        daemon = look(int(jvm.stdout.readline()))
        me, its = look(os.getpid()), look(jvm.pid)
        assert daemon and me and its
        until(lambda: "pyspark.daemon" in command_line(daemon.pid) and "echo" not in command_line(daemon.pid))
        heads = {me.pid: me.started}
        there = GuardedProcesses(lambda: heads)
        there.leave_out_what_is_there("ours")
        assert daemon.identity in there.before
        heads[its.pid] = its.started
        there.leave_out_what_is_there("ours")
        assert daemon.identity not in there.before
        assert (daemon.pid, daemon.started) in there.workers
        kill([daemon, its, *tree(daemon.pid)])


RETITLED = """
import ctypes, os, time
if not os.fork():
    with open("/proc/self/stat") as stat:
        arguments = int(stat.read().rpartition(")")[2].split()[45])  # where they begin in memory, proc(5)
    ctypes.memset(arguments, ord("x"), 6)
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_worker_that_has_given_itself_another_title_is_one() -> None:
    with subprocess.Popen([sys.executable, "-c", RETITLED], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        worker, its = look(int(driver.stdout.readline())), look(driver.pid)
        assert worker and its and "xxxxxx" in command_line(worker.pid)
        there = GuardedProcesses(lambda: {its.pid: its.started})
        there.leave_out_what_is_there("ours")
        assert (there.workers, there.before) == ({worker.identity}, set())
        kill([worker, its])


COPIES = """
import os, subprocess, sys, time
if os.environ.get("COPY"):
    print(os.getpid(), flush=True)
else:
    subprocess.Popen(sys.orig_argv, env={"COPY": "1"})
time.sleep(60)
"""


def test_a_copy_of_the_driver_is_a_worker() -> None:
    """As trainers start one for each processor."""
    with subprocess.Popen([sys.executable, "-c", COPIES], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        copy, its = look(int(driver.stdout.readline())), look(driver.pid)
        assert copy and its
        there = GuardedProcesses(lambda: {its.pid: its.started})
        there.leave_out_what_is_there("ours")
        assert copy.identity in there.workers
        kill([copy, its])


@pytest.mark.parametrize("words", ["joblib.externals.loky.backend.popen_loky_posix", "from multiprocess.spawn import"])
def test_workers_of_other_pools_are_known(words: str) -> None:
    me = look(os.getpid())
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(60)  # {words}"]) as pool:
        found = look(pool.pid)
        assert me and found
        until(lambda: words in command_line(pool.pid))
        there = GuardedProcesses(lambda: {me.pid: me.started})
        there.leave_out_what_is_there("ours")
        assert found.identity in there.workers
        kill([found])


def helpers(folder: Path) -> list[int]:
    here = [each for each in processes().values() if each.alive and str(folder / "helper") in command_line(each.pid)]
    return [each.pid for each in here if "sh -c" not in command_line(each.pid)]


def test_a_helper_from_before_an_exec_outlives_a_crash_and_holds_up_nothing(
    start: Start, url: str, table: str, tmp_path: Path, beside: list[str]
) -> None:
    script = f"""
        import subprocess
        subprocess.Popen([sys.executable, "-c", {HELPER!r}, str(FOLDER / "helper")])  # nor is this the block's work
        with hold_lease("n", **SETTINGS):
            subprocess.Popen(["sleep", "60"], env={{}})
            say("up")
            time.sleep(60)
    """
    driver = start(script, command=[*beside, sys.executable])
    driver.until("up")
    until(lambda: len(helpers(tmp_path)) == 2)
    os.kill(driver.process.pid, signal.SIGKILL)
    until(lambda: row(url, table)[0] is None)
    assert len(helpers(tmp_path)) == 2
    assert not [each for each in driver.leftovers() if each.name == "sleep"]


def test_a_helper_from_before_an_exec_is_no_part_of_a_command(url: str, tmp_path: Path, beside: list[str]) -> None:
    """Its run is done, and not done a second time by another scheduler, because a proxy goes on."""
    until_up = f"while ! [ -e {tmp_path}/helper ]; do sleep 0.01; done"
    words = ["--lease", "n", "--url", url, "--contain", "off", "--run-key", "k", "--", "sh", "-c", until_up]
    done = subprocess.run([*beside, COMMAND, "run", *words], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, last_line(done)["outcome"]) == (0, "finished"), done.stderr
    assert len(helpers(tmp_path)) == 1
    assert last_line(spark_lease("run", *words))["outcome"] == "already done"


def test_a_helper_from_before_an_exec_outlives_a_loss_and_the_supervisor(
    url: str, tmp_path: Path, beside: list[str]
) -> None:
    words = ["--lease", "n", "--url", url, "--contain", "off", "--", "sh", "-c", f"touch {tmp_path}/up; exec sleep 60"]
    with subprocess.Popen([*beside, COMMAND, "run", *words], stdout=subprocess.PIPE, text=True) as run:
        until((tmp_path / "up").exists)
        until(lambda: len(helpers(tmp_path)) == 1)
        (supervisor,) = [
            each.pid for each in tree(run.pid) if each.parent == run.pid and each.pid not in helpers(tmp_path)
        ]
        os.kill(supervisor, signal.SIGKILL)
        out, _ = run.communicate(timeout=20)
    assert '"released": "2' in out
    assert len(helpers(tmp_path)) == 1


WORKERS = """
    import subprocess
    with hold_lease("first", **SETTINGS):
        subprocess.Popen([sys.executable, "-c", HELPER, str(FOLDER / "helper")], start_new_session=True)
    for name in ("a", "b"):
        if not os.fork():
            with hold_lease(name, **SETTINGS):
                subprocess.Popen([sys.executable, "-c", HELPER, str(FOLDER / f"helper-{name}")], start_new_session=True)
                say(f"{name} is {os.getpid()}.")
                time.sleep(60)
    time.sleep(60)
"""


def test_the_end_of_one_worker_ends_no_other_and_nothing_of_its_parents(start: Start, tmp_path: Path) -> None:
    driver = start(WORKERS.replace("import subprocess", f"import subprocess; HELPER = {HELPER!r}", 1))
    driver.until("a is ")
    said = driver.until("b is ")
    until(lambda: len(helpers(tmp_path)) == 3)
    driver.tree()
    first, second = (int(said.split(f"{name} is ")[1].split(".")[0]) for name in "ab")
    os.kill(first, signal.SIGKILL)
    until(lambda: len(helpers(tmp_path)) == 2)
    time.sleep(0.5)  # for kills that must not come
    assert len(helpers(tmp_path)) == 2
    assert look(second) and driver.process.poll() is None


def test_nothing_that_leads_group_1_has_every_process_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    kill([Process("init", 1, 0, 1, "S"), Process("java", 7, 1, 1, "S"), Process("worker", 8, 7, 8, "S")])
    assert sorted(pid for pid, _ in sent) == [-8, 7]


def test_the_server_of_forks_is_a_helper_and_its_workers_are_not() -> None:
    """Both have the same command line."""
    context = multiprocessing.get_context("forkserver")
    worker = context.Process(target=time.sleep, args=(60,))
    worker.start()
    try:
        server = look(look(worker.pid).parent)
        until(lambda: b"forkserver" in Path(f"/proc/{worker.pid}/cmdline").read_bytes())
        assert server.parent == os.getpid()
        assert is_helper(server.pid) and not is_helper(worker.pid)
    finally:
        worker.kill()
        worker.join()
        forkserver._forkserver._stop()
