"""Two rounds of `make test-zombies`, and one without the fence, of the writes that nothing else here freezes."""

from __future__ import annotations

import pytest

from tests.faults.zombies import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


@pytest.mark.postgres
@pytest.mark.parametrize("what", ["write_sql, executors", "write_sql, driver", "delta_rs"])
def test_a_frozen_master_writes_nothing_after_the_next_has_claimed(what: str) -> None:
    fenced, control = run(what, 2)
    assert (fenced.rounds, fenced.violated, fenced.refused, fenced.incomplete) == (2, 0, 2, 0)
    assert control.violated == control.rounds == 1
