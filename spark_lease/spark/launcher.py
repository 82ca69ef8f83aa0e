"""What spark-submit runs in place of the user's script: takes the lease, then is that script.

The script finds what it would find under plain spark-submit: its own `sys.argv`, `__main__`, `__file__`, its folder
first in `sys.path`, and its exit code is the exit code. Nothing of Spark is started before the lease is held.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path


def main() -> int:
    import logging

    from spark_lease.config import announcement, from_arguments
    from spark_lease.errors import LeaseLost, SparkLeaseError
    from spark_lease.guard import INTERRUPTED, Guard, load_config
    from spark_lease.outcome import Outcome, ended, refused
    from spark_lease.processes import MARK

    logging.basicConfig(format="%(asctime)s spark-lease %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("spark_lease").setLevel(logging.INFO)
    sys.argv = sys.argv[1:]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).absolute().parent)

    config, guard = None, None
    lease = None
    try:
        config = load_config(from_arguments({}))

        def last_words(lost: LeaseLost) -> str:
            return str(refused(config, lost, lease))

        guard = Guard(config, mark=os.environ.get(MARK, "").rpartition(":")[2], last_words=last_words)
        with guard as lease:
            os.environ.update(announcement(name=lease.name, holder=lease.holder, epoch=lease.epoch))
            runpy.run_path(script, run_name="__main__")
        outcome = ended(lease, 0)
    except SparkLeaseError as error:
        print(f"spark-lease: {error}", file=sys.stderr)
        outcome = refused(config, error, lease)
    except SystemExit as exit:
        if exit.code is not None and not isinstance(exit.code, int):
            print(exit.code, file=sys.stderr)
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        signalled = guard is not None and guard.signalled
        name = config.name if config else ""
        outcome = ended(lease, code, interrupted=signalled) if lease else Outcome(name, "interrupted", code)
    except BaseException as error:
        traceback.print_exc()
        interrupted = isinstance(error, KeyboardInterrupt)
        code = INTERRUPTED if interrupted else 1
        name = config.name if config else ""
        outcome = ended(lease, code, interrupted=interrupted) if lease else Outcome(name, "interrupted", code)
    print(outcome, flush=True)
    return outcome.exit_code


if __name__ == "__main__":
    # Python put this file's folder first, where the script's will be. The package may be a plain folder, not installed.
    sys.path.append(str(Path(__file__).absolute().parents[2]))
    sys.exit(main())
