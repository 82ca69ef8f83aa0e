"""A role that may CREATE in a schema of the search path overloads every function and operator: none of its is called.

PostgreSQL takes the one that fits the arguments' types exactly, in whatever schema it is, before one of its own that
takes a cast (documentation, "Operator Type Resolution" and "Function Type Resolution").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from spark_lease import hold_lease
from spark_lease.cli.main import main
from spark_lease.config.settings import Config
from spark_lease.config.sources import configure
from spark_lease.errors import AlreadyDone, Fenced
from spark_lease.fencing.sql import triggers as postgres
from spark_lease.fencing.sql.claim import FenceTable, claim
from spark_lease.fencing.sql.transaction import fenced_sql
from spark_lease.testing import LockerContract
from tests.services.postgres import with_psycopg
from tests.support.frames import ask, put, session, tell
from tests.support.guarded import clear, create_guarded, rows
from tests.support.holders import Holder
from tests.support.tiers import once_more

pytestmark = pytest.mark.postgres

TRAPS = """
SET search_path = pg_catalog;
CREATE FUNCTION public.set_trap(symbol text, kinds oidvector, result text) RETURNS void LANGUAGE plpgsql AS $make$
DECLARE
    arguments text := (SELECT string_agg(format_type(each, NULL), ', ' ORDER BY place)
                       FROM unnest(kinds::oid[]) WITH ORDINALITY AS e (each, place));
BEGIN
    IF to_regprocedure(format('public.%I(%s)', symbol, arguments)) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS %L',
        symbol, arguments, result, format('BEGIN RAISE ''%%'', %L; END', format('trapped: %s(%s)', symbol, arguments)));
END $make$;
DO $$
DECLARE
    kinds regtype[] := '{text,varchar,bpchar,name,"char",int2,int4,int8,float4,float8,numeric,oid,regclass,bytea,bool,
                         timestamptz,timestamp,interval,text[],varchar[],name[],int4[],oid[]}';
    symbol text;
    a regtype;
    b regtype;
    swap regtype[];
    each record;
    arguments text;
BEGIN
    FOREACH symbol IN ARRAY '{=,<>,<,>,<=,>=,+,-,*,/,%,||,~~,!~~,~,&,|}'::text[] LOOP
        FOREACH a IN ARRAY kinds LOOP
            FOREACH b IN ARRAY kinds LOOP
                CONTINUE WHEN EXISTS (SELECT FROM pg_operator WHERE oprname = symbol AND oprleft = a AND oprright = b);
                PERFORM public.set_trap(symbol, (a::oid || ' ' || b::oid)::oidvector, 'bool');
                EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.%I)',
                    symbol, a, b, symbol);
            END LOOP;
        END LOOP;
    END LOOP;
    FOR each IN SELECT proname, proargtypes::text AS mine, pronargs, pronargdefaults,
            CASE WHEN t.typtype = 'p' THEN 'text' ELSE format_type(prorettype, NULL) END AS result
            FROM pg_proc JOIN pg_type t ON t.oid = prorettype
            WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f' AND NOT EXISTS (
                SELECT FROM unnest(proargtypes::oid[]) AS a (one) JOIN pg_type ON pg_type.oid = one WHERE typtype = 'p')
    LOOP
        FOREACH swap SLICE 1 IN ARRAY ARRAY[['text', 'varchar'], ['text', 'name'], ['name', 'text'],
            ['name', 'varchar'], ['int8', 'int4'], ['int4', 'int8'], ['float8', 'numeric'], ['float8', 'int8'],
            ['numeric', 'int8'], ['bytea', 'text'], ['regclass', 'oid'], ['oid', 'regclass'], ['oid', 'int8'],
            ['text', 'text']]::regtype[][]
        LOOP
            SELECT string_agg(CASE one WHEN swap[1]::oid::text THEN swap[2]::oid::text ELSE one END, ' ' ORDER BY place)
            INTO arguments FROM unnest(string_to_array(each.mine, ' ')) WITH ORDINALITY AS s (one, place)
            WHERE place <= each.pronargs - CASE WHEN swap[1] = swap[2] THEN each.pronargdefaults ELSE 0 END;
            CONTINUE WHEN EXISTS (SELECT FROM pg_proc WHERE proname = each.proname AND proargtypes::text = arguments
                AND pronamespace = 'pg_catalog'::regnamespace);
            PERFORM public.set_trap(each.proname, coalesce(arguments, '')::oidvector, each.result);
        END LOOP;
    END LOOP;
    PERFORM public.set_trap(one, (SELECT string_agg(kind::regtype::oid::text, ' ')
            FROM unnest(string_to_array(of, ',')) AS k (kind))::oidvector, 'text')
    FROM unnest('{format,concat,concat_ws}'::text[]) AS f (one),
         unnest('{text;text,text;text,name;text,name,name;text,text,text;text,oid}'::text[]) AS g (all_of),
         unnest(string_to_array(all_of, ';')) AS h (of);
END $$;
"""


@pytest.fixture(scope="module")
def planted(pg_url: str) -> Iterator[str]:
    """The URL of a database in which every overload is a trap that says its name."""
    server = create_engine(pg_url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    name = "planted"
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    url = make_url(pg_url).set(database=name)
    with closing(psycopg2.connect(url.render_as_string(hide_password=False))) as session, session:
        session.cursor().execute(TRAPS)
    yield url.render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("locker", ["lease", pytest.param("database", marks=pytest.mark.matrix)])
@pytest.mark.parametrize("driver", ["psycopg2", pytest.param("psycopg", marks=pytest.mark.matrix)])
class TestLeases(LockerContract):
    @pytest.fixture
    def config(self, planted: str, table: str, driver: str, locker: str) -> Config:
        url = with_psycopg(planted) if driver == "psycopg" else planted
        return configure(url=url, table=table, locker=locker, create_table="true")


@pytest.fixture(params=["psycopg2", "psycopg"])
def engine(planted: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    made = create_engine(with_psycopg(planted) if request.param == "psycopg" else planted.replace(":", "+psycopg2:", 1))
    clear(made)
    create_guarded(made)
    yield made
    clear(made)
    made.dispose()


def test_fenced_transactions_and_claims(engine: Engine) -> None:
    old = Holder("nightly", 5)
    for _ in range(3):  # the third is prepared
        with fenced_sql(old, engine) as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5)")
    with pytest.raises(Fenced), fenced_sql(old, engine) as connection:
        connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5)")
        claim(Holder("nightly", 6), engine)
    assert (rows(engine), FenceTable(engine).newest("nightly")) == (3, 6)


def test_a_claim_finds_the_sessions_that_hold_its_row(engine: Engine, planted: str) -> None:
    claim(Holder("nightly", 5), engine)
    with closing(psycopg2.connect(planted, application_name="spark_lease/other/5/x")) as session:
        session.cursor().execute("SELECT * FROM spark_lease_fence FOR SHARE")
        claim(Holder("nightly", 6), engine)
        with pytest.raises(psycopg2.OperationalError):
            session.cursor().execute("SELECT")


def test_fenced_tables(engine: Engine) -> None:
    claim(Holder("nightly", 5), engine)
    postgres.add(engine, "guarded", "nightly")
    with fenced_sql(Holder("nightly", 5), engine) as connection:
        connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (5)")
    claim(Holder("nightly", 6), engine)
    assert [each.name for each in postgres.fenced_tables(engine)] == ["public.guarded"]
    postgres.drop(engine, "guarded")


def test_runs_and_commands(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    url = engine.url.render_as_string(hide_password=False)
    settings: dict[str, Any] = {"url": url, "create_table": "true", "fence_url": url}
    with hold_lease("n", **settings) as lease:
        with lease.fenced_sql(engine, completes="k") as connection:
            connection.exec_driver_sql("INSERT INTO guarded (epoch) VALUES (1)")
    with pytest.raises(AlreadyDone):
        hold_lease("n", run_key="k", **settings).__enter__()
    asked = ["status n", "history n", "runs n", "pause n --reason x", "resume n", "doctor --lease n"]
    for words in asked:
        assert main([*words.split(), "--url", url]) == 0, words
    assert "trapped" not in "".join(capsys.readouterr())


@pytest.mark.spark
@pytest.mark.parametrize("through", ["executors", once_more("driver")])
def test_frames(engine: Engine, through: str) -> None:
    tell(
        engine,
        "CREATE TABLE IF NOT EXISTS target (id int PRIMARY KEY, words varchar(20), at timestamptz, "
        "amount numeric(12, 2), tags text[], big bigint, ratio real)",
        "DELETE FROM target",
    )
    columns = [
        "CAST(id AS int) AS id",
        "concat('w', id) AS words",
        "current_timestamp() AS at",
        "CAST(id AS decimal(12, 2)) AS amount",
        "array('a', concat('t', id)) AS tags",
        "id AS big",
        "CAST(id AS float) AS ratio",
    ]
    with session() as spark:
        for mode in ("append", "overwrite", "upsert"):
            frame = spark.range(3).selectExpr(*columns)
            assert (
                put(frame, engine, "target", mode=mode, keys=["id"] if mode == "upsert" else (), through=through) == 3
            )
    assert ask(engine, "SELECT words FROM target ORDER BY id") == [("w0",), ("w1",), ("w2",)]
