"""What a hold looks up as it is granted the lease, and in which session."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import pytest
from sqlalchemy import Connection, create_engine, make_url

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.fencing.delta.tables import KIND as DELTA_TABLES
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.registry import open_notes
from tests.services.mariadb import MariaDb
from tests.support.command import spark_lease
from tests.support.drivers import until

pytestmark = pytest.mark.postgres


def contender(url: str, table: str, **settings: object) -> LocalHold:
    return open_contender(configure(name="n", url=url, table=table, create_table="true", **settings), BootClock())


def test_what_is_at_hand_takes_no_other_session(pg_url: str, table: str) -> None:
    """For a role that may have one, also where it makes the tables."""
    user = f"u{table}"
    engine = create_engine(make_url(pg_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        admin.exec_driver_sql(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 1")
        admin.exec_driver_sql(f"GRANT ALL ON SCHEMA public TO {user}")
        try:
            theirs = make_url(pg_url).set(username=user).render_as_string(hide_password=False)
            with closing(contender(theirs, table)) as hold:
                hold.acquire()
                assert hold.at_hand() == {"is_unfenced": is_alone(admin), "tables": {}}
                assert hold.release()
        finally:
            admin.exec_driver_sql(f"DROP OWNED BY {user}")
            admin.exec_driver_sql(f"DROP ROLE {user}")
    engine.dispose()


@pytest.mark.mariadb
def test_an_account_of_mariadb_that_may_have_one_session_becomes_master_of_a_new_lease(
    mariadb: MariaDb, table: str
) -> None:
    user, engine = f"u{table}"[:30], create_engine(usable_url(configure(url=mariadb.url)), isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        limits = "WITH MAX_USER_CONNECTIONS 1"
        admin.exec_driver_sql(f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'lease' {limits}")
        admin.exec_driver_sql(f"GRANT ALL ON leases.* TO {user}@'127.0.0.1'")
        try:
            theirs = make_url(mariadb.url).set(username=user, password="lease")
            with closing(contender(theirs.render_as_string(hide_password=False), table)) as hold:
                hold.acquire()
                assert hold.release()
        finally:
            admin.exec_driver_sql(f"DROP USER {user}@'127.0.0.1'")
    engine.dispose()


def is_alone(admin: Connection) -> bool:
    """No other test has left a fence in this database."""
    left = (
        "SELECT FROM pg_class WHERE relname = 'spark_lease_fence' UNION ALL "
        "SELECT FROM pg_trigger WHERE tgname = 'spark_lease'"
    )
    return not admin.exec_driver_sql(left).all()


def test_what_is_at_hand_is_what_was_noted_and_that_there_is_nothing_to_claim(pg_url: str, table: str) -> None:
    with closing(contender(pg_url, table)) as hold:
        hold.acquire()
        config = configure(name="n", url=pg_url, table=table)
        with closing(open_notes(config)) as notes:
            notes.append("n", DELTA_TABLES, "s3://bucket/t", "{}")
        assert hold.at_hand()["tables"] == {"s3://bucket/t": "{}"}
        hold.release()
    with closing(contender(pg_url, table, fence_url=pg_url, fence_delta="off")) as hold:
        hold.acquire()
        assert hold.at_hand() == {"is_unfenced": False}
        hold.release()


def test_a_fence_off_the_search_path_of_a_session_is_not_overlooked(pg_url: str, table: str) -> None:
    """ALTER ROLE … SET search_path, by which the next session would find it, says nothing to one that is open."""
    schema = f"s{table}"
    engine = create_engine(make_url(pg_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as admin, closing(contender(pg_url, table)) as hold:
        hold.acquire()
        admin.exec_driver_sql(f"CREATE SCHEMA {schema} CREATE TABLE spark_lease_fence (a INT)")
        assert hold.at_hand()["is_unfenced"] is False
        admin.exec_driver_sql(f"DROP TABLE {schema}.spark_lease_fence")
        admin.exec_driver_sql(f"CREATE TABLE {schema}.fenced (a INT)")
        check = f"CREATE FUNCTION {schema}.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
        admin.exec_driver_sql(check)
        on = f"CREATE TRIGGER spark_lease BEFORE INSERT ON {schema}.fenced EXECUTE FUNCTION {schema}.f()"
        admin.exec_driver_sql(on)
        assert hold.at_hand()["is_unfenced"] is False, "its fence is gone: the claim makes it again"
        admin.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
        hold.release()
    engine.dispose()


def test_a_fence_that_was_made_while_a_standby_waits_is_claimed(
    pg_url: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, schema = f"n{table}", f"s{table}"
    engine = create_engine(make_url(pg_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as admin:
        admin.exec_driver_sql(f"CREATE SCHEMA {schema}")
        url = make_url(pg_url).update_query_dict({"options": f"-csearch_path={schema}"})
        flags = {"url": url.render_as_string(hide_password=False), "table": table, "create_table": "true"}
        try:
            with closing(open_contender(configure(name=name, **flags), BootClock())) as first:
                first.acquire()
                with closing(open_contender(configure(name=name, **flags), BootClock())) as standby:
                    looked, look = list[object](), standby.at_hand
                    monkeypatch.setattr(standby, "at_hand", lambda: looked.append(look()))
                    waiting = threading.Thread(target=standby.acquire)
                    waiting.start()
                    until(lambda: looked)
                    admin.exec_driver_sql(f"CREATE TABLE {schema}.accounts (id int)")
                    made = spark_lease("fence", "add", "--on", "accounts", "--lease", name, "--url", flags["url"])
                    assert made.returncode == 0, made.stderr
                    first.release()
                    waiting.join(20)
                    assert look()["is_unfenced"] is False
                    assert standby.claim_databases() is True
                    standby.release()
        finally:
            admin.exec_driver_sql(f"DROP SCHEMA {schema} CASCADE")
    engine.dispose()


def test_a_release_in_a_session_that_has_ended_is_asked_in_another(pg_url: str, table: str) -> None:
    """As by a restart of the server, or its limit for idle sessions."""
    engine = create_engine(make_url(pg_url), isolation_level="AUTOCOMMIT")
    end = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        f"WHERE application_name = 'spark_lease {table}' AND pid <> pg_backend_pid()"
    )
    config = configure(name=table, url=pg_url, table=table, create_table="true")
    with closing(open_contender(config, BootClock())) as hold:
        hold.acquire()
        with engine.connect() as admin:
            assert set(admin.exec_driver_sql(end).scalars()) == {True}
        assert hold.release()
    with closing(open_contender(replace(config, acquire_timeout=0), BootClock())) as following:
        following.acquire()
    engine.dispose()
