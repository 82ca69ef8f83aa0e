"""What a task of an executor does, without Spark: so on MySQL too, and behind poolers (`sql/test_pgbouncer.py`)."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow
from sqlalchemy import Engine

from spark_lease.fencing.dataframe.load import _load, rows_of
from spark_lease.fencing.dataframe.staging import staging
from tests.support.frames import NAME, ask, staged
from tests.support.guarded import DRIVERS
from tests.support.holders import Holder

pytestmark = [DRIVERS]


def test_the_rows_of_the_attempts_that_count_are_found(engine: Engine) -> None:
    columns = [SimpleNamespace(staged="bigint")]
    with staging(Holder(NAME, 5), engine, "guarded", columns) as place:  # type: ignore[arg-type]
        first, second = (
            _load(place, iter([pyarrow.RecordBatch.from_pydict({"c0": [number, None]})]), number) for number in (7, 8)
        )
        assert len(staged(engine)) == 1
        for numbers, rows in (([first], [(7,)]), ([first, second], [(7,), (8,)]), ([], [])):
            found = f"SELECT c0 FROM {rows_of(place, numbers)} AND c0 IS NOT NULL ORDER BY c0"
            assert ask(engine, found) == rows
    assert staged(engine) == []
