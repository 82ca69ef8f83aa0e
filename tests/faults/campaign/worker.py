"""One data centre: plays the rounds whose seeds it reads from standard input, and prints a verdict for each.

unshare --net --mount python -m tests.faults.campaign.worker STORE NAME KEEP

NAME: of its control groups. KEEP: folder for the evidence of rounds that were violated, or broke down.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.faults.campaign.network import Host, switch_on
from tests.faults.campaign.round import Round
from tests.faults.campaign.schedule import schedule
from tests.faults.campaign.stores import kinds_of, open_store
from tests.faults.campaign.strike import Centre

_AT_MOST = 300.0
"""Seconds of a round; then the data centre breaks down, and says where."""


def main(name: str, own_name: str, keep: str) -> None:
    switch_on()
    with closing(Host("db", 1)) as database, closing(Host("paris", 2)) as paris, closing(Host("rome", 3)) as rome:
        with open_store(name, database) as (store, disk):
            centre = Centre(own_name, database, [paris, rome], disk)
            for line in sys.stdin:
                faulthandler.dump_traceback_later(_AT_MOST, exit=True)
                told = json.loads(line)
                faults = schedule(told["seed"], kinds_of(name))
                faults = [each for number, each in enumerate(faults) if number not in told.get("without", ())]
                with TemporaryDirectory(prefix="sl-round-") as folder:
                    evidence = Path(keep) / f"{name}-{told['seed']}"
                    try:
                        verdict = Round(name, told["seed"], told["door"], store, centre, Path(folder)).play(faults)
                    except Exception:  # it did not begin, say
                        shutil.copytree(folder, evidence, dirs_exist_ok=True)
                        raise
                    if verdict.violations:
                        shutil.copytree(folder, evidence, dirs_exist_ok=True)
                print(json.dumps(asdict(verdict)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
