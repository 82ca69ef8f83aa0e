"""What lets other work go first, and until when."""

from __future__ import annotations

import time
from contextlib import closing

from spark_lease.system.call_timeout import CallTimeout
from tests.support.drivers import until


def test_what_gives_way_is_called_after_its_time() -> None:
    with closing(CallTimeout("here", timeout=5)) as calls:
        begun, called = time.monotonic(), list[float]()
        calls.begin(lambda: None)
        calls.begin(lambda: called.append(time.monotonic()), after=0.3)
        until(lambda: called)
        assert called[0] - begun >= 0.3


def test_it_gives_way_no_longer_once_something_else_is_to_be_called() -> None:
    called = list[str]()
    with closing(CallTimeout("here", timeout=20)) as calls:
        begun = time.monotonic()
        calls.begin(lambda: called.append("first"), after=60)
        calls.call(lambda: called.append("second"))
        calls.begin(lambda: called.append("third"), after=60)
        calls.close(lambda: called.append("last"))
        until(lambda: len(called) == 4)
    assert called == ["first", "second", "third", "last"]
    assert time.monotonic() - begun < 20
