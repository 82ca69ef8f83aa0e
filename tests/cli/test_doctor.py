"""`spark-lease doctor`: what it finds in each store and on this machine, and that it leaves nothing behind."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from spark_lease.cli import doctor_machine as machine
from spark_lease.cli import doctor_store as at_store
from spark_lease.cli.findings import Check, Finding, run
from spark_lease.cli.main import main
from spark_lease.config.sources import configure
from spark_lease.errors import StoreError
from spark_lease.fencing.sql.tables import FENCE, FENCE_TABLES, tables_sql
from tests.services.mariadb import MariaDb
from tests.services.pair import running_pair
from tests.services.pooler import Pooler
from tests.services.postgres import PostgreSql, own_postgres
from tests.services.proxy import Proxy
from tests.support.command import spark_lease
from tests.support.drivers import until
from tests.support.shop import KINDS, Shop
from tests.support.users import unprivileged

MACHINE = ["keeper", "contain", "java", "spark", "delta"]
OF_STORE = {
    "postgresql": [
        *("store", "schemas", "table", "namesakes", "lease", "timings", "notes", "rights", "durability", "clock"),
        "pooler",
    ],
    "mariadb": ["store", "table", "lease", "timings", "notes", "rights", "durability", "clock"],
    "sqlite": ["store", "table", "lease", "timings", "notes", "rights", "clock"],
    "delta": ["store", "lease", "timings", "rights", "clock"],
    "objects": ["store", "lease", "timings", "rights", "clock"],
    "file": ["store", "lease", "timings", "rights", "clock"],
}


def examined(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Finding]]:
    code = main(["doctor", "--json", *words])
    return code, {each["what"]: Finding(**each) for each in json.loads(capsys.readouterr().out)}


def everything(shop: Shop) -> object:
    """All that there is in the store, but for the history: that is noted right after a change."""
    if shop.kind in ("file", "delta"):
        files = [each for each in Path(urlsplit(shop.config.url).path).rglob("*") if each.is_file()]
        return sorted((str(each), each.stat().st_mtime_ns) for each in files if "_notes" not in each.parts)
    return [(name, shop.record(name)) for name in shop.store.names()]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("locker", ["lease", "database"])
def test_a_store_in_order_is_ok_and_left_as_it_was(shop_of: Callable[..., Shop], locker: str, kind: str) -> None:
    if locker == "database" and kind in ("file", "delta", "objects"):
        return  # it has no sessions
    shop = shop_of(kind, locker=locker)
    shop.take("n")
    before = everything(shop)
    code, out, _ = shop.command("doctor", "--lease", "n", "--json")
    findings = {each["what"]: each for each in json.loads(out)}
    assert list(findings) == [*OF_STORE[kind], *MACHINE], out
    assert [each for each in OF_STORE[kind] if findings[each]["verdict"] != "ok"] == [], out
    assert code == 0
    assert "a:1:2:3" in findings["lease"]["message"]
    assert everything(shop) == before


def test_people_get_a_line_for_each_with_what_to_do(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    code, out, _ = shop.command("doctor", "--keeper", "thread")
    assert code == 0, "a warning is no failure"
    assert re.search("^warn  keeper +thread: a driver that is frozen", out, re.M)
    assert '→ take keeper = "auto"' in out
    assert re.search(r", [12] warn, 0 fail", out), "the second is of a Spark without the jar of Delta"


def test_a_lease_that_is_paused_is_a_warning(shop_of: Callable[..., Shop]) -> None:
    shop = shop_of("sqlite")
    shop.take("n")
    shop.command("pause", "n", "--reason", "schema change")
    _, out, _ = shop.command("doctor", "--lease", "n", "--keeper", "thread")
    assert re.search(r"warn  lease .*: schema change", out)
    assert "→ spark-lease resume n cancels it" in out


def test_a_store_that_is_down_fails_and_hides_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, findings = examined(capsys, "--url", "postgresql://u@127.0.0.1:1/x", "--lease", "n")
    assert code == 1
    assert list(findings) == [*OF_STORE["postgresql"], "fence tables", *MACHINE]
    assert findings["store"].verdict == "fail" and "Connection refused" in findings["store"].message
    assert {findings[each].message for each in OF_STORE["postgresql"][1:]} == {"not checked: see store"}
    assert findings["keeper"].verdict == "ok"


@pytest.mark.postgres
def test_the_database_of_the_fence_is_looked_at_too(
    pg_url: str, shop_of: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    where = [*shop_of("sqlite").flags, "--fence-url"]
    _, findings = examined(capsys, *where, pg_url)
    assert findings["fence"].verdict == "ok" and "a claim worked" in findings["fence"].message
    _, findings = examined(capsys, "--url", "sqlite:////nowhere/x.db", "--lease", "n", "--fence-url", pg_url)
    assert (findings["store"].verdict, findings["fence"].verdict) == ("fail", "ok")
    code, findings = examined(capsys, *where, "postgresql://u:hunter22@127.0.0.1:1/x")
    assert (code, findings["fence"].verdict) == (1, "fail")
    assert findings["fence tables"].message == findings["fence schemas"].message == "not checked: see fence"
    assert "hunter22" not in findings["fence"].message


def test_the_database_of_the_fence_is_left_as_it_is(
    tmp_path: Path, shop_of: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "warehouse.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE flights (day INT)")
    before = database.read_bytes()
    _, findings = examined(capsys, *shop_of("sqlite").flags, "--fence-url", f"sqlite:///{database}")
    assert findings["fence"].verdict == "ok" and "no master has claimed it yet" in findings["fence"].message
    assert database.read_bytes() == before


@pytest.mark.postgres
def test_a_table_without_our_columns_fails(pg_url: str, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    with psycopg2.connect(pg_url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, time BIGINT, broker_name VARCHAR(250))")
        cursor.execute(f"CREATE TABLE {table}_f (a INT)")
    connection.close()
    code, findings = examined(capsys, "--url", pg_url, "--table", table)
    assert (code, findings["table"].verdict, findings["table"].advice) == (1, "fail", "run spark-lease init")
    assert "lacks name, epoch, duration, protection" in findings["table"].message
    code, findings = examined(capsys, "--url", pg_url, "--table", f"{table}_f")
    assert code == 1 and "another program's table" in findings["table"].message
    code, findings = examined(capsys, "--url", pg_url, "--table", f"{table}_none")
    assert code == 1 and "does not exist" in findings["table"].message
    assert {findings[each].message for each in ("lease", "timings", "notes", "rights")} == {"not checked: see table"}
    assert findings["pooler"].verdict == findings["clock"].verdict == "ok"


def test_a_file_that_no_job_can_make_is_a_failure(tmp_path: Path) -> None:
    words, environ = unprivileged(["-m", "spark_lease", "doctor", "--local", "--json"], tmp_path)
    (tmp_path / "sealed").mkdir(0o555)
    environ |= {"HOME": f"{tmp_path}/sealed", "XDG_STATE_HOME": f"{tmp_path}/sealed/state"}
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    store = next(each for each in json.loads(done.stdout) if each["what"] == "store")
    assert store["verdict"] == "fail", store


@pytest.mark.postgres
def test_roles_that_find_different_tables_are_told(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    """By their search paths: each table would have a master."""
    grant = "GRANT CREATE, USAGE ON SCHEMA public TO finder"
    url = as_user(server, "finder", "DROP SCHEMA IF EXISTS finder CASCADE", grant)
    flags = ["--url", url, "--lease", "n", "--table", "found"]
    assert spark_lease("init", *flags).returncode == 0
    _, findings = examined(capsys, *flags)
    assert "public.found: all columns and keys are there" in findings["table"].message
    assert findings["namesakes"].verdict == "ok"
    tell(server, "CREATE SCHEMA finder AUTHORIZATION finder")
    tell(server, "CREATE TABLE finder.found (LIKE public.found INCLUDING ALL)")
    tell(server, "ALTER TABLE finder.found OWNER TO finder")
    code, findings = examined(capsys, *flags)
    assert "finder.found: all columns" in findings["table"].message
    assert (code, findings["namesakes"].message) == (0, "another table of this name: public.found")
    assert findings["namesakes"].advice == 'all contenders must use the same: set table = "finder.found"'
    assert findings["rights"].verdict == "ok"
    _, findings = examined(capsys, *flags[:-1], "public.found")
    assert "namesakes" not in findings
    tell(server, "DROP OWNED BY finder")


@pytest.mark.mariadb
def test_the_database_of_a_table_is_named(mariadb: MariaDb, table: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", mariadb.url, "--table", table]
    assert spark_lease("init", *where).returncode == 0
    _, findings = examined(capsys, *where)
    assert f"leases.{table}: all columns" in findings["table"].message


@pytest.mark.mariadb
def test_a_fence_that_mariadb_would_not_undo_is_not_tried(
    mariadb: MariaDb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged() -> str:
        store = ["--url", f"sqlite:///{tmp_path}/leases.db", "--lease", "n"]
        found = examined(capsys, *store, "--fence-url", mariadb.url)[1]["fence"]
        return f"{found.verdict}: {found.message}"

    url = mariadb.url.replace("mysql:", "mysql+pymysql:")
    with create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool).connect() as admin:
        for each in FENCE_TABLES:
            admin.exec_driver_sql(f"DROP TABLE IF EXISTS {each.name}")
        assert judged().startswith("warn: ") and "its tables are not there yet" in judged()
        for statement in tables_sql(admin.dialect):
            admin.exec_driver_sql(statement)
        assert judged().startswith("ok: ") and "a claim worked, and was undone" in judged()
        admin.exec_driver_sql(f"ALTER TABLE {FENCE.name} ENGINE=MyISAM")
        assert judged().startswith("fail: ") and "ENGINE=InnoDB" in judged()
        assert admin.exec_driver_sql(f"SELECT count(*) FROM {FENCE.name}").scalar() == 0
        admin.exec_driver_sql(f"DROP TABLE {FENCE.name}")


def test_a_fence_that_is_locked_at_the_moment_is_no_failure(
    tmp_path: Path, shop_of: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "warehouse.db", isolation_level=None)) as master:
        master.execute("CREATE TABLE flights (day INT)")
        master.execute("BEGIN IMMEDIATE")
        _, findings = examined(capsys, *shop_of("sqlite").flags, "--fence-url", f"sqlite:///{tmp_path}/warehouse.db")
    assert findings["fence"].verdict == "warn" and "locked at the moment" in findings["fence"].message


def test_what_the_first_job_makes_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--url", f"sqlite:///{tmp_path}/x.db", "--lease", "n"]
    code, findings = examined(capsys, *where)
    assert (code, findings["store"].verdict) == (0, "warn")
    assert "x.db is not there yet" in findings["store"].message and "first job makes it" in findings["store"].advice
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        connection.execute("CREATE TABLE flights (day INT)")
    code, findings = examined(capsys, *where)
    assert (code, findings["table"].verdict) == (0, "warn")
    assert "spark_lease is not there yet" in findings["table"].message
    code, findings = examined(capsys, *where, "--create-table", "false")
    assert (code, findings["table"].verdict) == (1, "fail")
    code, findings = examined(capsys, "--url", f"sqlite:///{tmp_path}/none/x.db")
    assert (code, findings["store"].verdict) == (1, "fail")


@pytest.mark.parametrize("kind", ["delta", "file"])
def test_doctor_makes_nothing(kind: str, url_of: Callable[[str], str], tmp_path: Path, capsys: Any) -> None:
    code, findings = examined(capsys, "--url", url_of(kind), "--lease", "n")
    assert code == 1
    assert "does not exist" in findings["store"].message
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSql]:
    with own_postgres() as running:
        yield running


def tell(server: PostgreSql, *statements: str) -> None:
    connection = psycopg2.connect(server.url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        for each in statements:
            cursor.execute(each)
    connection.close()


def as_user(server: PostgreSql, user: str, *statements: str) -> str:
    """The server's URL for a user of whom it was told so much."""
    tell(server, f"DROP ROLE IF EXISTS {user}", f"CREATE ROLE {user} LOGIN", *statements)
    return server.url.replace("postgres@", f"{user}@")


@pytest.mark.postgres
def test_a_right_that_is_missing_is_named(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--url", server.url]) == 0
    granted = "GRANT SELECT, INSERT ON spark_lease TO half", "GRANT ALL ON spark_lease_notes TO half"
    url = as_user(server, "half", *granted)
    capsys.readouterr()
    code, findings = examined(capsys, "--url", url)
    assert (code, findings["rights"].verdict) == (1, "fail")
    assert "permission denied for table spark_lease" in findings["rights"].message
    assert "UPDATE" in findings["rights"].advice
    url = as_user(server, "no_notes", "GRANT ALL ON spark_lease TO no_notes")
    code, findings = examined(capsys, "--url", url)
    assert (code, findings["rights"].verdict) == (1, "fail"), "its master would not know which tables to fence"
    code, findings = examined(capsys, "--url", url, "--fence-delta", "off")
    assert (code, findings["rights"].verdict) == (0, "warn"), "a lease needs no notes"
    assert "no run keys" in findings["rights"].message
    kept = "GRANT ALL ON spark_lease TO keeps", "GRANT SELECT, INSERT ON spark_lease_notes TO keeps"
    command = ["--url", as_user(server, "keeps", *kept), "--run-key", "monday"]
    code, findings = examined(capsys, *command)
    assert (code, findings["rights"].verdict) == (0, "warn")
    assert "never removed: " in findings["rights"].message and "DELETE" in findings["rights"].advice
    assert spark_lease("run", "--lease", "n", *command, "--", "true").returncode == 0, "as doctor says"
    granted = "GRANT ALL ON spark_lease_notes TO unlocked", "GRANT ALL ON spark_lease_epoch TO unlocked"
    assert main(["init", "--url", server.url, "--locker", "database"]) == 0
    url = as_user(server, "unlocked", *granted, "GRANT SELECT ON spark_lease TO unlocked")
    capsys.readouterr()
    code, findings = examined(capsys, "--url", url, "--locker", "database")
    assert (code, findings["rights"].verdict) == (1, "fail")
    assert "on spark_lease and spark_lease_epoch" in findings["rights"].advice
    url = as_user(server, "reader", "ALTER ROLE reader SET default_transaction_read_only = on")
    as_granted = "GRANT ALL ON spark_lease, spark_lease_notes TO reader"
    as_user(server, "nobody_else", as_granted)
    code, findings = examined(capsys, "--url", url)
    assert code == 1 and "read-only: name the primary" in findings["rights"].message


@pytest.mark.postgres
def test_a_fence_that_this_user_may_not_claim_fails(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    def judged() -> str:
        found = examined(capsys, "--url", server.url, "--lease", "n", "--fence-url", fence)[1]["fence"]
        return f"{found.verdict}: {found.message}"

    assert main(["init", "--url", server.url]) == 0
    capsys.readouterr()
    fence = as_user(server, "writer", "CREATE SCHEMA theirs AUTHORIZATION writer")
    tell(server, "ALTER ROLE writer SET search_path = theirs")
    assert judged().startswith("ok: ") and "no master has claimed it yet" in judged()
    tell(server, "DROP SCHEMA theirs")  # nothing was left there
    tell(server, "ALTER ROLE writer SET search_path = public")
    assert judged().startswith("fail: ") and "its tables are missing and cannot be made here" in judged()
    made = spark_lease("run", "--lease", "n", "--url", server.url, "--fence-url", server.url, "--", "true")
    assert made.returncode == 0, made.stderr
    assert judged().startswith("fail: ") and "GRANT SELECT, INSERT, UPDATE, DELETE ON" in judged()


@pytest.mark.postgres
def test_a_store_that_hangs_halfway_is_asked_no_more(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--url", server.url]) == 0
    capsys.readouterr()
    proxy = Proxy(server.url)
    proxy.stall_at(b"UPDATE spark_lease")
    with closing(proxy):
        code, findings = examined(capsys, "--url", proxy.url, "--attempt-timeout", "1")
    assert (code, findings["store"].verdict) == (1, "ok")
    first = next(each.what for each in findings.values() if each.verdict != "ok")
    assert findings[first].verdict == "fail"
    after = list(findings)[list(findings).index(first) + 1 :]
    left = {findings[each].message for each in after if each not in MACHINE}
    assert left == {f"not checked: see {first}"}


@pytest.mark.postgres
@pytest.mark.slow
def test_a_second_primary_among_the_hosts_of_a_url_fails(capsys: pytest.CaptureFixture[str]) -> None:
    def judged(verdict: str) -> str:
        found = examined(capsys, "--url", pair.url)[1]["hosts"]
        assert found.verdict == verdict, found
        return f"{found.message} ({found.advice})"

    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="sl-pg-")))
        folder.chmod(0o755)  # the server runs as another user
        pair = stack.enter_context(running_pair(folder, "127.0.0.1"))
        assert main(["init", "--url", pair.url]) == 0
        capsys.readouterr()
        old, new = (f"127.0.0.1:{each.port}" for each in (pair.primary, pair.replica))
        assert judged("ok").startswith(f"of {old}, {new} only {old} accepts writes")
        fence = examined(capsys, "--url", pair.url, "--fence-url", pair.replica.url)[1]["fence"]
        assert fence.verdict == "fail" and "it is a replica" in fence.message
        pair.fail_over()
        assert f"{old}: " in judged("warn")
        pair.replica.start()  # as the primary that it was
        assert judged("fail").startswith(f"{old} and {new} accept writes: two masters may work at one time")


@pytest.mark.postgres
def test_a_server_that_may_forget_what_it_has_confirmed_is_named(
    server: PostgreSql, capsys: pytest.CaptureFixture[str]
) -> None:
    def durability() -> str:
        found = examined(capsys, "--url", server.url)[1]["durability"]
        return f"{found.verdict}: {found.message}: {found.advice}"

    assert main(["init", "--url", server.url]) == 0
    capsys.readouterr()
    assert durability().startswith("ok: ")
    admin = psycopg2.connect(server.url)
    admin.autocommit = True
    with closing(admin), admin.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET fsync = off")
        cursor.execute("SELECT pg_reload_conf()")
        until(lambda: durability().startswith("warn: "))
        assert "fsync = off" in durability() and "set fsync = on" in durability()
        cursor.execute("ALTER SYSTEM RESET fsync")
        cursor.execute("SELECT pg_reload_conf()")
        until(lambda: durability().startswith("ok: "))


def test_a_table_for_notes_that_is_missing_is_no_failure(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--url", url]) == 0
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.execute("DROP TABLE spark_lease_notes")
    capsys.readouterr()
    _, findings = examined(capsys, "--url", url)
    assert [findings[each].verdict for each in ("notes", "rights")] == ["warn", "warn"]


@pytest.mark.postgres
def test_in_a_brokers_table_no_row_is_touched(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--url", server.url, "--table", "activemq_lock"]
    assert spark_lease("init", *flags).returncode == 0
    connection = psycopg2.connect(server.url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        look = "SELECT xmin, ctid, * FROM activemq_lock"
        cursor.execute("INSERT INTO activemq_lock (id, time, broker_name) VALUES (1, 32503680000000, 'broker')")
        cursor.execute(look)
        before = cursor.fetchall()
        capsys.readouterr()
        code, findings = examined(capsys, "--lease", "n", *flags)
        assert (code, findings["rights"].verdict) == (0, "ok"), findings
        assert "no row of it was touched" in findings["rights"].message
        url = as_user(server, "no_broker", "GRANT SELECT ON activemq_lock TO no_broker")
        code, findings = examined(capsys, "--lease", "n", "--url", url, "--table", "activemq_lock")
        assert "permission denied for table activemq_lock" in findings["rights"].message
        cursor.execute(look)
        assert cursor.fetchall() == before
    connection.close()


@pytest.mark.postgres
def test_who_else_may_make_functions_in_the_search_path_is_seen(
    server: PostgreSql, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--url", server.url]) == 0
    capsys.readouterr()
    assert examined(capsys, "--url", server.url)[1]["schemas"].verdict == "ok"
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE ROLE "My Role"')
        connection.exec_driver_sql('GRANT CREATE ON SCHEMA public TO "My Role", PUBLIC')
    found = examined(capsys, "--url", server.url)[1]["schemas"]
    assert (found.verdict, "PUBLIC in public" in found.message) == ("warn", True)
    guarded = examined(capsys, "--url", server.url, "--fence-url", server.url)[1]["fence schemas"]
    assert (guarded.verdict, guarded.message) == ("warn", found.message)
    with engine.begin() as connection:
        connection.exec_driver_sql(found.advice)
    assert examined(capsys, "--url", server.url)[1]["schemas"].verdict == "ok"


@pytest.mark.postgres
def test_a_pooler_that_shares_sessions_is_seen(server: PostgreSql, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--url", server.url]) == 0
    with closing(Pooler(server.url)) as pooler:
        capsys.readouterr()
        for words, verdict in (([], "ok"), (["--locker", "database"], "fail")):
            _, findings = examined(capsys, "--url", pooler.url, *words)
            assert findings["pooler"].verdict == verdict
            assert "gives one session to several connections" in findings["pooler"].message
    with closing(Pooler(server.url, refuses_options=True)) as pooler:
        found = examined(capsys, "--url", pooler.url)[1]["pooler"]
        assert found.verdict == "warn"
        assert "gives one session to several connections: a standby sees a release at its next look" in found.message
        assert "refuses PGOPTIONS" in found.message
        assert "ignore_startup_parameters" in found.advice


def test_the_timings_are_held_against_what_was_measured() -> None:
    def judged(*took: float, **settings: Any) -> str:
        return at_store.timings(configure(**settings), took).verdict

    assert judged(0.02, *[0.001] * 20) == "ok"
    assert judged(0.02, *[0.001] * 19, 2.6) == "warn"
    assert judged(2.6, *[0.001] * 20) == "warn", "a connection that breaks is made anew"
    assert judged(0.02, *[2.6] * 20) == "fail"
    assert judged(0.02, *[0.2] * 20, lease_duration=2) == "fail", "an attempt may take a sixth of it"
    assert judged(0.02, *[0.4] * 20, url="delta+s3://b/f") == "fail", "a renewal there takes seven looks"


def test_clocks_that_are_apart_are_said() -> None:
    config = configure()
    assert at_store.clocks(config, 0.4, 0.1).verdict == "ok"
    assert at_store.clocks(config, -3.0, 0.1).verdict == "warn"
    assert at_store.clocks(config, 1.05, 0.1).verdict == "ok", "it may be less"
    assert at_store.clocks(replace(config, max_allowable_diff_from_db_time=5), -3.0, 0.1).verdict == "ok"
    broker = configure(url="postgresql://u@h/d", table="ACTIVEMQ_LOCK")
    assert "broker uses its own clock" in at_store.clocks(broker, 3.0, 0.1).advice


def test_what_this_machine_lacks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.keeper("auto", "").verdict == "ok"
    assert "seccomp" in machine.keeper("auto", "timer_create: no").advice
    assert "PID namespace" in machine.contain("auto", "", "").message
    assert all("sudo" in machine.contain(each, "no", "").message for each in ("auto", "required"))
    assert machine.contain("auto", "no", "nor that").verdict == "ok"
    assert machine.contain("required", "no", "nor that").message.endswith("not available here: nor that")
    assert machine.contain("required", "no", "nor that").verdict == "fail"
    assert machine.java(None).verdict == "warn"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    for words, verdict in (
        ("""echo 'openjdk version "17.0.1" 2021' >&2""", "ok"),
        ("""echo 'java version "1.8.0"' >&2""", "warn"),
        ("""echo 'openjdk version "25"' >&2""", "warn"),
        ("echo 'libjvm.so: no such file' >&2; exit 1", "fail"),
    ):
        java.write_text(f"#!/bin/sh\n{words}\n")
        java.chmod(0o755)
        assert machine.java(tmp_path).verdict == verdict
    java.unlink()
    assert machine.java(tmp_path).verdict == "fail"
    assert machine.spark(None).verdict == "warn"
    assert machine.spark(tmp_path).verdict == "fail"
    for setting, verdict in (("auto", "warn"), ("required", "fail"), ("off", "ok")):
        assert machine.delta(setting, has_deltalake=False, version="4.4.0", has_jar=True).verdict == verdict
        assert machine.delta(setting, has_deltalake=True, version="3.2.1", has_jar=True).verdict == verdict
    assert machine.delta("required", has_deltalake=True, version="4.4.0", has_jar=True).verdict == "ok"
    assert machine.delta("required", has_deltalake=True, version="4.4.0", has_jar=False).verdict == "warn"
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "false")
    assert machine.delta("required", has_deltalake=True, version="4.4.0", has_jar=True).verdict == "fail"
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    for line in (
        "spark.jars.packages a:b:1,io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.jars /x/delta-spark_2.13-4.4.0.jar",
    ):
        (tmp_path / "spark-defaults.conf").write_text(f"spark.master local\n{line}\n")
        assert machine.delta_of_spark() == ("4.4.0", True)
    (tmp_path / "spark-defaults.conf").unlink()
    assert machine.delta_of_spark() == (metadata.version("delta-spark"), False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert machine.java_home() is None, "as spark-submit, which takes no other then"


def test_metrics_that_cannot_leave_are_said(tmp_path: Path) -> None:
    assert machine.metrics(configure(), has_client=False) is None
    config = configure(metrics_textfile=str(tmp_path), metrics=True)
    told = machine.metrics(config, has_client=True)
    assert told and told.message == f"in prometheus_client's registry, {tmp_path}"
    gone = machine.metrics(configure(metrics_textfile=str(tmp_path / "none")), has_client=True)
    assert gone and gone.verdict == "fail"
    lacking = machine.metrics(config, has_client=False)
    assert lacking and lacking.advice == "pip install 'spark_lease[metrics]'"


def test_a_check_that_breaks_hides_no_other() -> None:
    def breaks() -> Finding:
        raise ZeroDivisionError("of its own")

    def refused() -> Finding:
        raise StoreError("the store", "no")

    checks = Check("a", breaks), Check("b", refused), Check("c", lambda: None), Check("d", at_ok)
    findings = [each for each in map(run, checks) if each]
    assert [(each.what, each.verdict) for each in findings] == [("a", "warn"), ("b", "fail"), ("d", "ok")]


def at_ok() -> Finding:
    return machine.keeper("auto", "")
