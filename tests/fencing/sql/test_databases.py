"""`spark-lease run` and `spark-lease fence` with real programs against a real PostgreSQL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.pool import NullPool

from spark_lease.clock import BootClock
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.errors import FenceUnreachable, LeaseLost, Loss
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.session import setting_of
from spark_lease.holds import open_contender
from spark_lease.system.processes import kill, tree
from tests.services.postgres import own_postgres
from tests.services.proxy import Proxy
from tests.support.command import COMMAND, last_line, spark_lease
from tests.support.drivers import until
from tests.support.guarded import create_guarded, engine_for, rows
from tests.support.holders import Holder

pytestmark = pytest.mark.postgres
INSERTS = {
    "psycopg2": """
        import psycopg2
        connection = psycopg2.connect(url)
        connection.cursor().execute("INSERT INTO guarded (epoch) VALUES (1)")
        connection.commit()
    """,
    "SQLAlchemy": """
        from sqlalchemy import create_engine
        with create_engine(url.replace("postgresql", "postgresql+psycopg2", 1)).begin() as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (1)")
    """,
    "COPY": """
        import io, psycopg2
        connection = psycopg2.connect(url)
        connection.cursor().copy_expert("COPY guarded (epoch) FROM STDIN", io.StringIO("1\\n"))
        connection.commit()
    """,
}
STUBBORN = """
    import os, psycopg2, time
    connection = psycopg2.connect(url)
    cursor = connection.cursor()
    cursor.execute("INSERT INTO guarded (epoch) VALUES (1)")
    open(folder + "/ready", "w").close()
    while not os.path.exists(folder + "/taken"):
        time.sleep(0.005)
    try:
        cursor.execute("INSERT INTO guarded (epoch) VALUES (1)")
        connection.commit()
        said = "written"
    except psycopg2.Error as error:
        said = "refused"
    with open(folder + "/part", "w") as file:
        file.write(said)
    os.rename(folder + "/part", folder + "/said")
"""


@pytest.fixture
def database(pg_url: str) -> str:
    return pg_url


@pytest.fixture
def settings(engine: Engine, database: str, url: str) -> list[str]:
    """A lease store in SQLite, and the table `guarded` fenced in PostgreSQL."""
    found = ["--lease", "n", "--url", url, "--fence-url", database]
    assert spark_lease("fence", "add", "--on", "guarded", *found).returncode == 0
    return found


def program(words: str, database: str, folder: Path) -> list[str]:
    return [sys.executable, "-c", f"url, folder = {database!r}, {str(folder)!r}\n{textwrap.dedent(words)}"]


@pytest.mark.parametrize("how", INSERTS)
def test_a_command_writes_to_a_fenced_table_without_a_change(
    settings: list[str], engine: Engine, database: str, tmp_path: Path, how: str
) -> None:
    command = program(INSERTS[how], database, tmp_path)
    alone = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "written only under the lease n" in alone.stderr
    done = spark_lease("run", *settings, "--", *command)
    assert (done.returncode, rows(engine)) == (0, 1), done.stderr


WAITS = """
import pathlib, time, psycopg2
pathlib.Path(folder, "ready").touch()
while not pathlib.Path(folder, "taken").exists():
    time.sleep(0.01)
with psycopg2.connect(url) as connection, connection.cursor() as cursor:
    cursor.execute("INSERT INTO guarded (epoch) VALUES (1)")
raise ValueError("and then it fails")
"""
MAIN = f"""
import os
from spark_lease import leased
from spark_lease.fencing.sql.session import session_environment

@leased("n", keeper="thread")
def main(lease):
    os.environ.update(session_environment(lease.name, lease.epoch, os.environ))
{textwrap.indent(WAITS, "    ")}
main()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(*words: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([COMMAND, "run", *words], **pipes))  # type: ignore[call-overload]
        return started[-1]

    yield run
    for process in started:
        kill(tree(process.pid))
        process.communicate(timeout=10)


@pytest.mark.parametrize("is_fenced", [True, False])
def test_the_session_of_a_command_that_outlived_its_lease_is_refused(
    settings: list[str], engine: Engine, database: str, tmp_path: Path, is_fenced: bool, start: Start
) -> None:
    """Its lease is taken by an administrator's hand, as a clock that jumps or a restored row would do it."""
    if not is_fenced:  # the control
        assert spark_lease("fence", "drop", "--on", "guarded", *settings).returncode == 0
        settings = [*settings[:-1], f"sqlite:///{tmp_path}/nothing-of-it.db"]
    start(*settings, "--", *program(STUBBORN, database, tmp_path))
    until((tmp_path / "ready").exists)
    stolen = ["--lease", "n", "--url", f"sqlite:///{tmp_path}/other.db", *settings[4:]]
    assert spark_lease("run", *stolen, "--", "true").returncode == 0
    (tmp_path / "taken").touch()
    said = until(lambda: (tmp_path / "said").exists() and (tmp_path / "said").read_text())
    assert (said, rows(engine)) == (("refused", 0) if is_fenced else ("written", 2))


@pytest.mark.parametrize("door", ["run", "main"])
@pytest.mark.parametrize("newer", [True, False])
def test_work_that_a_fenced_table_refuses_ends_as_lost_and_any_other_as_it_is(
    settings: list[str], engine: Engine, database: str, tmp_path: Path, door: str, newer: bool, start: Start
) -> None:
    """Its own lease is current still: the table alone can tell it, in its driver's words."""
    words = WAITS if door == "run" else MAIN
    command = program(words, database, tmp_path)
    if door == "run":
        process = start(*settings, "--", *command)
    else:
        told = {"SPARK_LEASE_URL": settings[3], "SPARK_LEASE_FENCE_URL": database}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(command, env=os.environ | told, **pipes)  # type: ignore[call-overload]
    until((tmp_path / "ready").exists)
    if newer:
        claim(Holder("n", FenceTable(engine).newest("n") + 1), engine)
    (tmp_path / "taken").touch()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, rows(engine)) == ((75, 0) if newer else (1, 1)), said
    assert ("n: fenced, " in said and "was claimed under epoch" in said) == newer, said


def test_a_fence_that_hangs_when_the_work_has_failed_holds_nobody_up(
    settings: list[str], engine: Engine, database: str, proxy: Proxy, tmp_path: Path, start: Start
) -> None:
    hangs = [*settings[:-1], proxy.url, "--lease-duration", "6"]
    process = start(*hangs, "--", *program(WAITS, database, tmp_path))
    until((tmp_path / "ready").exists)
    proxy.stall()
    (tmp_path / "taken").touch()
    _, said = process.communicate(timeout=30)
    assert (process.returncode, rows(engine)) == (1, 1), said
    assert spark_lease("run", *settings, "--acquire-timeout", "0", "--", "true").returncode == 0  # it was given back


def test_a_fence_that_cannot_be_claimed_starts_nothing_and_gives_the_lease_back(settings: list[str]) -> None:
    settings[-1] = "postgresql://nobody:hunter2@127.0.0.1:1/x"
    for _ in range(2):  # the second is no standby: it was given back
        done = spark_lease("run", *settings, "--attempt-timeout", "1", "--if-held", "skip", "--", "echo", "ran")
        assert (done.returncode, last_line(done)["outcome"]) == (69, "unreachable")
        assert "ran" not in done.stdout.splitlines()
        assert "hunter2" not in done.stdout + done.stderr


def test_a_fence_above_the_lease_starts_nothing_and_is_repaired_by_forget(settings: list[str], engine: Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO spark_lease_fence VALUES ('n', 9999999999999)")
    done = spark_lease("run", *settings, "--", "echo", "ran")
    assert (done.returncode, last_line(done)["outcome"]) == (75, "lost")
    assert "ran" not in done.stdout.splitlines()
    assert "spark-lease fence forget --lease n" in done.stderr
    assert spark_lease("fence", "forget", *settings).returncode == 0
    assert spark_lease("run", *settings, "--if-held", "skip", "--", "true").returncode == 0


def test_the_lease_store_is_claimed_if_it_is_postgresql_and_has_a_fence(
    database: str, engine: Engine, table: str
) -> None:
    store = ["--lease", "n", "--url", database, "--table", table, "--create-table", "true"]
    assert spark_lease("run", *store, "--", "true").returncode == 0
    assert spark_lease("fence", "add", "--on", "guarded", *store).returncode == 0
    done = spark_lease("run", *store, "--", "true")
    with engine.begin() as connection:
        claimed = connection.exec_driver_sql("SELECT epoch FROM spark_lease_fence WHERE name = 'n'").scalar()
        connection.exec_driver_sql(f"DROP TABLE {table}")
    assert last_line(done)["epoch"] == claimed


def test_fenced_tables_are_listed_and_dropped(settings: list[str]) -> None:
    listed = spark_lease("fence", "list", "--json", *settings)
    row = {"table": "public.guarded", "lease": "n", "epoch": 0, "allow_unleased": False, "state": "fenced"}
    assert json.loads(listed.stdout) == [row]
    assert "public.guarded  n" in spark_lease("fence", "list", *settings).stdout
    others = spark_lease("fence", "drop", "--on", "guarded", *settings, "--lease", "other")
    assert (others.returncode, "guarded is written under the lease n, not other" in others.stderr) == (78, True)
    dropped = spark_lease("fence", "drop", "--on", "guarded", *settings)
    assert "every session may write to guarded again" in dropped.stdout
    assert "no table is fenced by the lease n in postgresql://" in spark_lease("fence", "list", *settings).stdout


def test_the_fence_of_a_master_at_work_is_not_cleared(settings: list[str], start: Start) -> None:
    master = start(*settings, "--", "sleep", "60")
    assert master.stderr and "acquired" in master.stderr.readline()
    done = spark_lease("fence", "forget", *settings)
    assert (done.returncode, "whose writes would be refused: nothing was changed" in done.stderr) == (1, True)
    master.terminate()
    master.communicate(timeout=20)
    assert "is cleared; the next master claims it anew" in spark_lease("fence", "forget", *settings).stdout


def test_where_the_lease_store_has_no_clock_it_is_not_known_whether_it_is_held(
    database: str, engine: Engine, tmp_path: Path, start: Start
) -> None:
    where = ["--lease", "n", "--url", f"file://{tmp_path}", "--fence-url", database]
    master = start(*where, "--", "sleep", "60")
    assert master.stderr and "acquired" in master.stderr.readline()
    done = spark_lease("fence", "forget", *where)
    assert (done.returncode, "n may be held by " in done.stderr) == (1, True), done.stderr
    assert "spark-lease release n --force frees it" in done.stderr


def test_a_table_that_was_made_again_is_listed_as_lost_until_the_next_master(
    settings: list[str], database: str, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE guarded")
        connection.exec_driver_sql("CREATE TABLE guarded (epoch BIGINT)")
    others = spark_lease("fence", "drop", "--on", "guarded", *settings, "--lease", "other")
    assert (others.returncode, "guarded is written under the lease n, not other" in others.stderr) == (78, True)
    (row,) = json.loads(spark_lease("fence", "list", "--json", *settings).stdout)
    assert row["state"] == "lost"
    said = spark_lease("fence", "list", *settings)
    assert "lost" in said.stdout
    assert "or now: spark-lease fence add --lease n --on public.guarded" in said.stderr
    assert "public.guarded: made again without its fence" in spark_lease("doctor", "--json", *settings).stdout
    done = spark_lease("run", *settings, "--", "true")
    assert "public.guarded, or a partition of it, was made without its fence" in done.stderr
    (row,) = json.loads(spark_lease("fence", "list", "--json", *settings).stdout)
    assert row["state"] == "fenced"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add", "--lease", "n"], "which table?"),
        (["add", "--on", "guarded"], "which lease?"),
        (["add", "--on", "nothing", "--lease", "n"], "there is no nothing in postgresql"),
        (["drop", "--on", "s3://lake/flights", "--lease", "n"], "is a Delta table: spark-lease fence forget"),
        (["add", "--on", "s3://lake/flights", "--lease", "never-held"], "never-held was never held"),
        (["add", "--on", "flights", "--fence-url", "mysql://db/x", "--lease", "n"], "fenced tables are PostgreSQL's"),
        (["list", "--fence-url", "mysql://db/x"], "which lease?"),
        (
            ["forget", "--on", "public.flights", "--lease", "n"],
            "is no Delta table: spark-lease fence drop --on public.fl",
        ),
        (["forget", "--on", "/lake/t", "flights", "--lease", "n"], "for a folder here ./flights"),
        (["add", "--on", "/lake/t", "--print-sql", "--lease", "n"], "is a Delta table, which no SQL fences"),
        (["drop", "--on", "guarded", "--json"], "--json: fence drop has none: fence list --json"),
        (["list", "--fence-url", "delta:///x"], "cannot hold a fence"),
    ],
)
def test_a_mistake_is_one_sentence(database: str, url: str, words: list[str], says: str) -> None:
    done = spark_lease("fence", *words[:1], "--url", url, "--fence-url", database, *words[1:])
    assert (done.returncode, "Traceback" in done.stderr) == (78, False), done.stderr
    assert says in done.stderr


def test_the_sql_is_printed_without_a_database() -> None:
    words = ["--lease", "n", "--fence-url", "postgresql://nobody@127.0.0.1:1/x", "--print-sql"]
    done = spark_lease("fence", "add", "--on", "public.flights", *words)
    assert done.returncode == 0
    assert 'ON "public"."flights" FOR EACH STATEMENT' in done.stdout


def test_delta_tables_are_added_listed_and_forgotten(url: str, tmp_path: Path) -> None:
    settings = ["--lease", "n", "--url", url]
    assert spark_lease("run", *settings, "--", "true").returncode == 0
    table = f"file:{tmp_path}/flights"
    added = spark_lease("fence", "add", *settings, "--on", table)
    assert f"{table} is guarded by the lease n\n" in added.stdout
    assert f"If the path is wrong: spark-lease fence forget --lease n --on {table}\n" in added.stderr
    again = spark_lease("fence", "add", *settings, "--on", f"{tmp_path}/flights")
    assert f"{table} is guarded by the lease n already" in again.stdout
    (row,) = json.loads(spark_lease("fence", "list", "--json", *settings).stdout)
    assert (row["table"], row["lease"], row["epoch"]) == (table, "n", 0)
    done = spark_lease("run", *settings, "--", "true")
    assert f"NOT FENCED: {table}: there is no such table" in done.stderr
    write_deltalake(f"{tmp_path}/flights", pa.table({"day": [1]}))
    epoch = last_line(spark_lease("run", *settings, "--", "true"))["epoch"]
    (row,) = json.loads(spark_lease("fence", "list", "--json", *settings).stdout)
    assert row["epoch"] == epoch  # as the table itself has it
    shutil.rmtree(f"{tmp_path}/flights/_delta_log")
    Path(f"{tmp_path}/flights/_delta_log").touch()
    unreadable = spark_lease("fence", "list", *settings)
    assert f"{table} cannot be read: " in unreadable.stderr and f"{table}  n      ?" in unreadable.stdout
    shutil.rmtree(f"{tmp_path}/flights")
    write_deltalake(f"{tmp_path}/flights", pa.table({"day": [1]}))
    assert spark_lease("run", *settings, "--", "true").returncode == 0
    forgotten = spark_lease("fence", "forget", *settings, "--on", table).stdout
    assert f"{table} is no longer guarded" in forgotten
    assert f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('spark_lease.epoch.n')" in forgotten
    assert spark_lease("fence", "forget", *settings, "--on", table).returncode == 1
    assert "no table is fenced" in spark_lease("fence", "list", *settings).stdout


def test_a_required_fence_that_cannot_be_had_starts_nothing(url: str) -> None:
    done = spark_lease("run", "--lease", "n", "--url", url, "--fence-delta", "required", "--", "echo", "ran")
    assert (done.returncode, last_line(done)["outcome"]) == (78, "misconfigured")
    assert "run cannot put the hook into Spark: use spark-lease submit" in done.stderr
    assert "ran" not in done.stdout.splitlines()


FROZEN = """
    import os, signal, sys
    from sqlalchemy import create_engine
    from spark_lease.clock import BootClock
    from spark_lease.fencing.sql.claim import FenceTable
    from spark_lease.fencing.sql.tables import raise_epoch
    engine = create_engine(sys.argv[1])
    with FenceTable(engine, timeout=1)._session(BootClock().now() + 1) as session:
        session.execute(raise_epoch(engine, sys.argv[2], 5))
        os.kill(os.getpid(), signal.SIGSTOP)
        session.commit()
"""


def test_the_server_ends_a_claim_that_is_frozen_before_its_commit(pg_url: str) -> None:
    """Its host may be: then the server hears nothing, and the next master must not wait for that for ever."""
    fence, name = FenceTable(create_engine(pg_url, poolclass=NullPool)), f"frozen claim {uuid.uuid4()}"
    fence.raise_to(name, 4)
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(FROZEN), pg_url, name], stderr=subprocess.PIPE) as it:
        os.waitid(os.P_PID, it.pid, os.WSTOPPED)
        try:
            assert fence.raise_to(name, 6) == 6
        finally:
            it.send_signal(signal.SIGCONT)
        assert it.wait(30) == 1
    assert fence.newest(name) == 6


def test_the_fence_of_another_team_does_not_stop_a_role_that_may_not_read_it(engine: Engine, database: str) -> None:
    assert spark_lease("fence", "add", "--on", "guarded", "--lease", "theirs", "--url", database).returncode == 0
    spark_lease("init", "--url", database)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS team")
        connection.exec_driver_sql("CREATE ROLE team LOGIN")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE ON spark_lease TO team")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON spark_lease_notes TO team")
    url = make_url(database).set(username="team").render_as_string()
    try:
        done = spark_lease("run", "--lease", "ours", "--url", url, "--", "true")
        assert done.returncode == 0, done.stderr
        assert spark_lease("fence", "drop", "--on", "guarded", "--url", database).returncode == 0
        assert spark_lease("fence", "add", "--on", "guarded", "--lease", "ours", "--url", database).returncode == 0
        done = spark_lease("run", "--lease", "ours", "--url", url, "--", "true")
        assert (done.returncode, "GRANT SELECT, INSERT" in done.stderr) == (69, True), done.stderr
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY team; DROP ROLE team")


def test_a_prepared_transaction_of_a_former_master_is_named() -> None:
    with own_postgres(max_prepared_transactions=2) as server:
        engine = engine_for(server.url)
        create_guarded(engine)
        assert spark_lease("fence", "add", "--on", "guarded", "--lease", "n", "--url", server.url).returncode == 0
        claim(Holder("n", 1), engine)
        former = psycopg2.connect(server.url, options=f"-c {setting_of('n')}=1")
        former.tpc_begin(former.xid(1, "of the former", "master"))
        former.cursor().execute("INSERT INTO guarded (epoch) VALUES (1)")
        former.tpc_prepare()
        with pytest.raises(FenceUnreachable, match="ROLLBACK PREPARED '") as told:
            claim(Holder("n", 2), engine, timeout=2)
        gid = str(told.value).partition("ROLLBACK PREPARED '")[2].partition("'")[0]
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"ROLLBACK PREPARED '{gid}'")
        claim(Holder("n", 2), engine)
        engine.dispose()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[Config, Callable[[], None]]]:
    """The settings of a lease whose fenced database has no connection left, and what gives them back."""
    with own_postgres(max_connections=6) as server:
        where = {"url": f"sqlite:///{tmp_path}/full.db", "fence_url": server.url}
        config = configure(name="n", **where, lease_duration=9, attempt_timeout=1)
        engine = engine_for(server.url)
        claim(Holder("n", 1), engine)
        engine.dispose()
        taken = []
        with pytest.raises(psycopg2.OperationalError, match="too many clients"):
            while True:
                taken.append(psycopg2.connect(server.url))

        def free() -> None:
            while taken:
                taken.pop().close()

        yield config, free
        free()


@pytest.mark.parametrize("how", ["run", "keeper"])
def test_a_master_waits_for_a_connection_to_claim_its_database(
    full: tuple[Config, Callable[[], None]], how: str
) -> None:
    config, free = full
    words = [f"--url={config.url}", f"--fence-url={config.fence_url}", "--lease-duration=9", "--attempt-timeout=1"]
    settings = f"url={config.url!r}, fence_url={config.fence_url!r}, lease_duration=9, attempt_timeout=1"
    script = f"""
import logging; logging.basicConfig()
from spark_lease import hold_lease
with hold_lease("n", {settings}, on_lost="stop"):
    pass
"""
    command = [COMMAND, "run", "--lease", "n", *words, "--", "true"] if how == "run" else [sys.executable, "-c", script]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert started.stderr
    said = next(line for line in started.stderr if "the database is not claimed" in line or "Error" in line)
    assert "too many clients" in said
    free()
    _, rest = started.communicate(timeout=60)
    assert started.returncode == 0, rest


def test_a_lease_that_is_lost_ends_the_wait_for_its_claim(
    full: tuple[Config, Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    hold = open_contender(full[0], BootClock())
    hold.acquire()
    with ThreadPoolExecutor(1) as pool, pytest.raises(LeaseLost, match="by a test"):
        claimed = pool.submit(hold.claim_databases)
        until(lambda: "the database is not claimed" in caplog.text)
        hold.lose(Loss.TAKEN, "by a test")
        claimed.result(60)
    assert caplog.text.count("the database is not claimed") < 3
    hold.close()


def test_an_owner_may_fence_again_where_he_may_not_create(engine: Engine, database: str) -> None:
    assert spark_lease("fence", "add", "--on", "guarded", "--lease", "n", "--url", database).returncode == 0
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP ROLE IF EXISTS owner")
        connection.exec_driver_sql("CREATE ROLE owner LOGIN")
        connection.exec_driver_sql("ALTER TABLE guarded OWNER TO owner")
    url = make_url(database).set(username="owner").render_as_string()
    try:
        again = spark_lease("fence", "add", "--on", "guarded", "--lease", "n", "--url", url)
        assert again.returncode == 0, again.stderr
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("REASSIGN OWNED BY owner TO current_user; DROP OWNED BY owner; DROP ROLE owner")
