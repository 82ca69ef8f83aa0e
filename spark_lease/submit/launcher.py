"""Runs in place of the user's script under spark-submit: takes the lease, then becomes that script.

The script finds what it would find under plain spark-submit: its own `sys.argv`, `__main__` and `__file__`, and its
folder first in `sys.path`. Its exit code is the exit code. No part of Spark starts before the lease is held.
"""

import builtins
import io
import logging
import os
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TextIO

if __name__ == "__main__":
    # Python put this file's folder first, where the script's will be. The package may be a plain folder, not installed.
    sys.path.append(str(Path(__file__).absolute().parents[2]))

from spark_lease.clock import BootClock
from spark_lease.config.settings import VERBOSE, Config
from spark_lease.config.sources import from_arguments
from spark_lease.errors import LeaseLost, SparkLeaseError
from spark_lease.guard.api import INTERRUPTED, end_process, load_config
from spark_lease.guard.block import JVM_ENDED, Guard
from spark_lease.guard.environment import announcement
from spark_lease.holds import GuardedHold
from spark_lease.keeper.spawn import FrontDoor
from spark_lease.logs import log_to_stderr, say
from spark_lease.outcome import Outcome, announce, crashed, ended, is_all_done, outcome_of, refused
from spark_lease.spark.pyspark_import import import_pyspark
from spark_lease.submit.command_line import SUBMISSION
from spark_lease.submit.outcomes import code_for_cluster, forget_outcome, note_outcome
from spark_lease.system.processes import MARK


def main() -> int:
    log_to_stderr(logging.DEBUG if os.environ.pop(VERBOSE, "") else logging.INFO)
    import_pyspark()
    submission = _take_the_scripts_place()
    config: Config | None = None
    hold: GuardedHold | None = None
    front_door, driver, stdout = FrontDoor.of_this_process(), os.getpid(), _duplicate_of_stdout()

    def last_words(lost: LeaseLost) -> str:
        return "" if front_door else str(refused(config, lost, hold))

    def stopped(code: int) -> Outcome:
        if hold:
            return ended(hold, code, interrupted=True)
        return outcome_of(config, "interrupted", code)

    try:
        config = _with_absolute_paths(load_config(from_arguments({})))
        if submission:
            with suppress(SparkLeaseError):
                forget_outcome(config, submission)
        mark = os.environ.get(MARK, "").rpartition(":")[2]
        guard = Guard(config, mark=mark, last_words=last_words, front_door=front_door)
        for key in announcement(config):
            # A thread that connects may be in getenv(3). setenv(3) moves the environment when it adds a name, not when
            # it replaces a value: so the names are added while there is no such thread.
            os.environ.setdefault(key, "")
        try:
            with guard as lease:
                hold = guard.hold
                variables = announcement(config, holder=lease.holder, epoch=lease.epoch, run_key=lease.run_key)
                os.environ.update(variables)
                if code := run_script(os.path.abspath(sys.argv[0]), config):
                    raise SystemExit(code)  # the guard has to know that it failed
            outcome = replace(ended(hold, 0), reason=guard.left)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 1
            if hold and not guard.signalled:
                outcome = crashed(hold, code, JVM_ENDED) if guard.has_crashed else ended(hold, code)
            else:
                outcome = stopped(code)
    except SparkLeaseError as error:
        say(str(error))
        outcome = refused(config, error, hold)
    except KeyboardInterrupt:
        outcome = stopped(INTERRUPTED)
    if os.getpid() != driver:  # a child that the script has forked comes here too: the outcome is not the child's
        return outcome.exit_code
    code = _tell(outcome, config, front_door, submission, stdout)
    if outcome.outcome == "lost":
        end_process(outcome.exit_code)
    return code


def _take_the_scripts_place() -> str:
    """Make `sys.argv` and `sys.path` what the script expects; returns the submission if a cluster runs us, else ""."""
    submission = ""
    if sys.argv[1] == SUBMISSION:
        submission, sys.argv[1:3] = sys.argv[2], []
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:  # with safe_path the first entry is not the folder of the script
        sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
    return submission


def _with_absolute_paths(config: Config) -> Config:
    """Make paths absolute: the script may change its working directory."""
    return replace(config, outcome_file=os.path.abspath(config.outcome_file)) if config.outcome_file else config


def _duplicate_of_stdout() -> TextIO | None:
    """A duplicate, because the script may replace `sys.stdout`, and close the original."""
    try:
        return open(os.dup(1), "w", encoding="utf-8")
    except OSError:  # started without a standard output
        return None


def _tell(
    outcome: Outcome, config: Config | None, front_door: FrontDoor | None, submission: str, stdout: TextIO | None
) -> int:
    """Announce the outcome; returns the exit code: under a cluster, the one that the cluster is to see."""
    with suppress(OSError, ValueError, AttributeError):  # the script may have replaced or closed it
        sys.stdout.flush()
    if front_door:  # the front door prints it, once everything has ended and the lease is released
        front_door.tell(asdict(outcome))
    else:
        announce(outcome, config.outcome_file if config and not submission else "", to=stdout)
    if not submission or not config:
        return outcome.exit_code
    try:
        note_outcome(config, BootClock(), submission, outcome)
    except SparkLeaseError as error:
        say(f"cannot tell the submitter how it ended: {error}")
    return code_for_cluster(outcome, config)


def run_script(script: str, config: Config) -> int:
    """Be the script until it and its threads have ended; returns the exit code with which Python itself would end.

    Raises KeyboardInterrupt, and the script's AlreadyDone if that says that all of its work was done.
    """
    code = 0
    module = sys.modules["__main__"] = ModuleType("__main__")  # it stays: threads and pools of the script look it up
    module.__file__, module.__dict__["__builtins__"] = script, builtins
    try:
        exec(compile(Path(script).read_bytes(), script, "exec", dont_inherit=True), vars(module))
    except SystemExit as exit:
        code = _code_of(exit)
    except BaseException as error:  # as Python itself does, whatever ends the script
        if isinstance(error, KeyboardInterrupt) or is_all_done(error, config):
            raise
        found = _of_script(error, script)
        code = 1
        try:
            sys.excepthook(type(error), error.with_traceback(found), found)
        except SystemExit as exit:
            code = _code_of(exit)
        except Exception:  # the script's own hook: Python prints both, and ends with 1
            traceback.print_exc()
    # As Python does before it joins; there is no public way. Else a pool without shutdown waits for work for ever.
    for kind in ("process", "thread"):
        if pools := sys.modules.get(f"concurrent.futures.{kind}"):
            pools._python_exit()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    for each in list(vars(module).values()):  # Python would flush it at its own exit, after the release
        if isinstance(each, io.IOBase):
            with suppress(OSError, ValueError):
                each.flush()
    return code


def _code_of(exit: SystemExit) -> int:
    """The exit code as Python has it: a text is printed, and gives 1."""
    if exit.code is None or isinstance(exit.code, int):
        return (exit.code or 0) & 0xFF  # as exit(3) does
    print(exit.code, file=sys.stderr)
    return 1


def _of_script(error: BaseException, script: str) -> TracebackType | None:
    """The traceback of `error` from the script's own first line on; all of it if the script never began."""
    found = error.__traceback__
    while found and found.tb_frame.f_code.co_filename != script:
        found = found.tb_next
    return found or (None if isinstance(error, SyntaxError) else error.__traceback__)


if __name__ == "__main__":
    sys.exit(main())
