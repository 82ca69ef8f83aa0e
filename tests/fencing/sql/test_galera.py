"""A fence in SQL is a lock, and a lock of one node of a Galera cluster holds back nothing on another."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from spark_lease.config.sources import configure
from spark_lease.database.dialects import usable_url
from spark_lease.errors import ConfigError
from spark_lease.fencing.sql.claim import claim
from spark_lease.fencing.sql.transaction import fenced_sql
from tests.services.mariadb import galera, node_options, running_mariadb
from tests.support.holders import Holder

pytestmark = [pytest.mark.mariadb, pytest.mark.mariadb_alone, pytest.mark.matrix]


def test_a_node_of_a_cluster_keeps_no_fence() -> None:
    provider = galera()
    if provider is None and "CI" not in os.environ:
        pytest.skip("Galera is not here: remove .mariadb and run make services")
    assert provider
    with running_mariadb(*node_options(provider)) as server:
        engine = create_engine(usable_url(configure(name="n", url=server.url)), poolclass=NullPool)
        with engine.begin() as connection:
            assert connection.execute(text("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")).one()[1] == "1"
            connection.execute(text("CREATE TABLE guarded (a INT)"))
        why = r"a node of a cluster \(Galera\) .* a server that alone accepts writes"
        with pytest.raises(ConfigError, match=why):
            claim(Holder("n", 5), engine)
        with pytest.raises(ConfigError, match=why), fenced_sql(Holder("n", 5), engine) as connection:
            connection.execute(text("INSERT INTO guarded VALUES (1)"))
        with engine.begin() as connection:
            assert connection.execute(text("SELECT COUNT(*) FROM guarded")).scalar() == 0
