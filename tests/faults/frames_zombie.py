"""A master whose `write_sql` is to be frozen: a warm session of Spark.

    python -m tests.faults.frames_zombie URL executors|driver

Reads an epoch and "fenced" or "plain" from standard input, and writes rows of that epoch again and again. Says
"writing" after the first time, and what ended it once it was refused or told to stop.
"""

from __future__ import annotations

import sys

from tests.faults.writing import Writing
from tests.support.frames import NAME, put, session
from tests.support.guarded import engine_for
from tests.support.holders import Holder

MANY = 20_000


def main(url: str, through: str) -> None:
    engine = engine_for(url)
    with session() as spark:
        print("ready", flush=True)
        for line in sys.stdin:
            epoch, how = line.split()
            lease = Holder(NAME, int(epoch) if how == "fenced" else 0)  # 0: enabled = false
            frame = spark.range(0, MANY, 1, 2).selectExpr(f"{epoch}L AS epoch")
            writing = Writing(lambda frame=frame, lease=lease: put(frame, engine, through=through, lease=lease))
            print("writing", flush=True)
            if how == "plain":
                sys.stdin.readline()
                writing.stop()
            print(writing.end(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
