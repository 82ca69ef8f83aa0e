"""`spark-lease run`."""

from __future__ import annotations

import argparse
import sys

from ..errors import ConfigError
from ..outcome import Outcome, announce, refused
from ..runner import run as run_command
from .settings import end_with, need_name, resolved


def run(arguments: argparse.Namespace) -> int:
    config = None
    try:
        config = resolved(arguments).config
        need_name(config.name)
        end_with(arguments.ends_with)
        outcome: Outcome = run_command(config, arguments.guarded)
    except ConfigError as error:
        outcome = refused(config, error)
    if outcome.reason:
        print(f"spark-lease: {outcome.reason}", file=sys.stderr)
    announce(outcome)
    return outcome.exit_code
