"""`spark-lease run`: a command that runs only under a lease."""

import argparse
import logging
from pathlib import Path

from ..election.journal_entries import ALREADY_DONE
from ..errors import ConfigError
from ..guard.command import run as run_command
from ..guard.held import refuse_own
from ..logs import say
from ..outcome import STANDBY, Outcome, announce, begin_outcome, outcome_of, refused
from ..submit.command_line import is_for_cluster
from .settings import end_with, name_given, need_name, outcome_file, resolved

log = logging.getLogger(__name__)

_ELSEWHERE = "deploy mode cluster: run guards only the client, not the driver in the cluster: use spark-lease submit"

_NO_SPARK = "standby: run cannot keep a Spark ready, so this standby is cold: use spark-lease submit"

_NO_HOOK = (
    "is required, but run cannot put the hook into Spark: use spark-lease submit, or @leased; for a command that "
    "writes no Delta tables, set --fence-delta auto"
)


def run(arguments: argparse.Namespace) -> int:
    config, file = None, outcome_file(arguments)
    try:
        begin_outcome(file)
        config = resolved(arguments).config
        begin_outcome(file := config.outcome_file)
        need_name(config.name)
        refuse_own(config)
        end_with(arguments.ends_with)
        if "spark-submit" in Path(arguments.guarded[0]).name and is_for_cluster(arguments.guarded):
            say(_ELSEWHERE)
        if config.standby == "warm":
            say(_NO_SPARK)
        if config.fence_delta == "required":
            raise ConfigError("fence_delta", _NO_HOOK)
        outcome: Outcome = run_command(config, arguments.guarded)
    except ConfigError as error:
        outcome = refused(config, error, name=name_given(arguments))
        say(outcome.reason)
    except KeyboardInterrupt:
        outcome = outcome_of(config, "interrupted", 130, name=name_given(arguments))
    else:
        _log_why(outcome)
    announce(outcome, file)
    return outcome.exit_code


def _log_why(outcome: Outcome) -> None:
    """Log why the command was not started, or was ended, if so."""
    if outcome.reason:
        level = logging.INFO if outcome.outcome in (STANDBY, ALREADY_DONE) else logging.ERROR
        name = "" if outcome.reason.startswith(f"{outcome.lease}:") else f"{outcome.lease}: "
        log.log(level, "%s%s", name, outcome.reason)
