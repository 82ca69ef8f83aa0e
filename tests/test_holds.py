"""What a hold looks up as it is granted the lease, and in which session."""

from __future__ import annotations

import os
import threading
from contextlib import closing

import pytest
from sqlalchemy import create_engine, make_url

from spark_lease.clock import BootClock
from spark_lease.config.sources import configure
from spark_lease.election.journal_entries import ENDED
from spark_lease.fencing.delta.tables import KIND as DELTA_TABLES
from spark_lease.holds import LocalHold, open_contender
from spark_lease.stores.registry import open_notes
from tests.support.command import spark_lease
from tests.support.drivers import until

pytestmark = pytest.mark.postgres


def contender(url: str, table: str, **settings: object) -> LocalHold:
    return open_contender(configure(name="n", url=url, table=table, create_table="true", **settings), BootClock())


def test_from_a_grant_to_its_end_a_lease_needs_one_session(pg_url: str, table: str) -> None:
    """A role that may have no other; what is noted of the grant and of the end needs none either."""
    user = f"u{table}"
    engine = create_engine(make_url(pg_url), isolation_level="AUTOCOMMIT")
    with closing(contender(pg_url, table)) as first:
        first.acquire()
        first.release()
    with engine.connect() as admin:
        admin.exec_driver_sql(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 1")
        admin.exec_driver_sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}")
        try:
            theirs = make_url(pg_url).set(username=user).render_as_string(hide_password=False)
            with closing(contender(theirs, table)) as hold:
                epoch = hold.acquire()
                assert hold.at_hand() == {"is_unfenced": True, "tables": {}}
                assert hold.claim_databases() is False
                assert hold.noted(DELTA_TABLES) == {}
                hold.ends_as("failed", "exit 3")
                assert hold.release()
            with closing(open_notes(configure(name="n", url=pg_url, table=table))) as notes:
                assert "exit 3" in notes.all("n", ENDED)[str(epoch)]
        finally:
            admin.exec_driver_sql(f"DROP OWNED BY {user}")
            admin.exec_driver_sql(f"DROP ROLE {user}")
    engine.dispose()


def test_what_is_at_hand_is_what_was_noted_and_that_there_is_nothing_to_claim(pg_url: str, table: str) -> None:
    with closing(contender(pg_url, table)) as hold:
        hold.acquire()
        config = configure(name="n", url=pg_url, table=table)
        with closing(open_notes(config)) as notes:
            notes.append("n", DELTA_TABLES, "s3://bucket/t", "{}")
        assert hold.at_hand() == {"is_unfenced": True, "tables": {"s3://bucket/t": "{}"}}
        hold.release()
    with closing(contender(pg_url, table, fence_url=pg_url, fence_delta="off")) as hold:
        hold.acquire()
        assert hold.at_hand() == {"is_unfenced": False}
        hold.release()


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
                    assert looked == [{"is_unfenced": True, "tables": {}}]
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


def test_a_forked_child_asks_nothing_in_the_session_of_its_parent(pg_url: str, table: str) -> None:
    with closing(contender(pg_url, table)) as hold:
        hold.acquire()
        assert hold.database
        with hold.database.session() as connection:
            ours = connection.exec_driver_sql("SELECT pg_catalog.pg_backend_pid()").scalar()
        child = os.fork()
        if not child:
            os._exit(int(hold._granted_by is not None or hold.noted(DELTA_TABLES) != {} or hold.claim_databases()))
        assert os.waitpid(child, 0)[1] == 0
        hold.renew()
        with hold.database.session() as connection:
            assert connection.exec_driver_sql("SELECT pg_catalog.pg_backend_pid()").scalar() == ours
        hold.release()
