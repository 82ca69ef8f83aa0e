"""Passes the outcome of a driver in a cluster to the process that submitted it, as a note beside the lease.

No cluster manager returns a driver's exit code, and none knows of leases.
"""

import json
from contextlib import closing
from dataclasses import replace

from ..clock import Clock
from ..config.settings import Config
from ..election.journal_entries import ALREADY_DONE, bounded_age
from ..errors import RecordUnreadable
from ..journal.patience import patiently
from ..outcome import STANDBY, Outcome
from ..stores.registry import note_beside, open_notes

KIND = "outcome"


def note_outcome(config: Config, clock: Clock, submission: str, outcome: Outcome) -> None:
    """Note how the submission ended, in place of the note of an earlier attempt.

    Retries for a lease_duration. Raises StoreError, and ConfigError if the lease was never held.
    """

    config = replace(config, if_denied="wait")  # this store let the driver in before

    def note() -> None:
        forget_outcome(config, submission)
        note_beside(config, KIND, submission, lambda _: str(outcome))

    patiently(note, clock, timeout=config.lease_duration, every=config.retry_period)


def forget_outcome(config: Config, submission: str) -> None:
    """Remove the note of an earlier attempt, as another attempt begins. Raises StoreError and ConfigError."""
    with closing(open_notes(config)) as notes:
        notes.remove(config.shared_name, KIND, submission)
        notes.prune(config.shared_name, (KIND,), bounded_age(config.run_retention))


def noted_outcome(config: Config, clock: Clock, submission: str) -> Outcome | None:
    """How the submission ended; None if that was not noted. Retries for a lease_duration.

    Raises StoreError and ConfigError.
    """
    config = replace(config, if_denied="wait")  # this store let the driver in before

    def read() -> Outcome | None:
        with closing(open_notes(config)) as notes:
            text, where = notes.get(config.shared_name, KIND, submission), notes.where
        try:
            return Outcome(**json.loads(text)) if text else None
        except (ValueError, TypeError):
            raise RecordUnreadable(where, f"cannot read a note of an outcome: {text!r:.80}") from None

    return patiently(read, clock, timeout=config.lease_duration, every=config.retry_period)


def code_for_cluster(outcome: Outcome, config: Config | None) -> int:
    """The exit code for the cluster: a driver that had nothing to do has not failed.

    YARN takes a driver that ends without a SparkContext as failed all the same.
    """
    had_nothing_to_do = outcome.outcome in (STANDBY, ALREADY_DONE)
    return 0 if had_nothing_to_do and config and outcome.exit_code == config.standby_exit_code else outcome.exit_code
