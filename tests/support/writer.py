"""A master in a process of its own, to be frozen: writes row after row under the epoch that it is told.

    python -m tests.support.writer URL NAME ISOLATION THREADS fenced|plain

Reads an epoch from standard input; says "writing" after the first row, and "fenced" or "done" at its end, with the
number of rows of which it believes that they were written.
"""

from __future__ import annotations

import sys
import threading

from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError

from spark_lease.errors import Fenced, FenceUnreachable, LeaseLost
from spark_lease.fencing.sql.transaction import fenced_sql
from tests.support.holders import Holder

ROWS_AT_MOST = 4000
_INSERT = text("INSERT INTO guarded (epoch) VALUES (:epoch)")


def write(engine: Engine, lease: Holder, fenced: bool, began: threading.Event, wrote: list[int]) -> str:
    for _ in range(ROWS_AT_MOST):
        try:
            if fenced:
                with fenced_sql(lease, engine) as connection:
                    connection.execute(_INSERT, {"epoch": lease.epoch})
            else:
                with engine.begin() as connection:
                    connection.execute(_INSERT, {"epoch": lease.epoch})
        except (Fenced, LeaseLost):
            return "fenced"
        except (DBAPIError, FenceUnreachable):
            continue  # what anybody does about an error that another try may heal
        wrote.append(1)
        began.set()
    return "done"


def main(url: str, name: str, isolation: str, threads: str, how: str) -> None:
    options = {} if url.startswith("sqlite") else {"isolation_level": isolation}
    engine = create_engine(url, pool_size=int(threads) + 1, **options)
    for line in sys.stdin:
        lease, began, ends, wrote = Holder(name, int(line)), threading.Event(), [], []  # type: ignore[var-annotated]

        def work(lease: Holder = lease, began: threading.Event = began) -> None:
            ends.append(write(engine, lease, how == "fenced", began, wrote))  # noqa: B023 (joined before the next)
            began.set()

        working = [threading.Thread(target=work) for _ in range(int(threads))]
        for each in working:
            each.start()
        began.wait(30)
        print("writing", flush=True)
        for each in working:
            each.join()
        print("fenced" if set(ends) == {"fenced"} else "done", len(wrote), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
