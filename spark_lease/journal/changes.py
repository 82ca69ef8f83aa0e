"""Writes the history of a lease: each grant and each end of a hold of this process, right after it."""

import logging
from collections.abc import Callable
from contextlib import closing

from ..config.settings import Config
from ..config.urls import redacted
from ..election.journal_entries import (
    ENDED,
    GIVEN_BACK,
    GRANT,
    KINDS,
    bounded_age,
    end_text,
    grant_text,
    is_first_of_its_day,
)
from ..election.ports import HasSession
from ..election.record import Snapshot
from ..errors import SparkLeaseError
from ..stores.registry import open_notes
from ..system.call_timeout import GIVES_WAY, CallTimeout

log = logging.getLogger(__name__)


class ChangeJournal:
    """Implements `Journal`: a thread of its own writes the notes, one after the other."""

    def __init__(self, config: Config, store: HasSession | None = None) -> None:
        """`store`: its session is used, once nothing is renewed in it any more."""
        self._config, self._store = config, store
        self._bounded = CallTimeout(redacted(config.url), timeout=config.attempt_timeout)
        self._has_failed = False

    def granted(self, holder: str, epoch: int, over: Snapshot) -> None:
        def note() -> None:
            self._append(GRANT, epoch, grant_text(holder, over, site=self._config.site))
            if is_first_of_its_day(over.record, epoch):
                with closing(open_notes(self._config)) as notes:
                    notes.prune(self._config.shared_name, KINDS, bounded_age(self._config.history_retention))

        self._try(lambda: self._bounded.begin(lambda: self._try(note), after=GIVES_WAY))

    def ended(self, epoch: int, why: str, *, at: int, detail: str) -> None:
        # Without a clock that all hosts share, only the latest possible time of the end is known.
        when = "by" if self._config.is_in_folders else "at"
        text = end_text(why, detail=detail, **{when: at})

        def note() -> None:
            if self._store and why in GIVEN_BACK:  # a standby becomes master now: start no session beside it
                self._store.notes.append(self._config.shared_name, ENDED, str(epoch), text)
            else:
                self._append(ENDED, epoch, text)

        self._try(lambda: self._bounded.call(note))

    def close(self) -> None:
        self._bounded.close()

    def _append(self, kind: str, epoch: int, text: str) -> None:
        with closing(open_notes(self._config)) as notes:
            notes.append(self._config.shared_name, kind, str(epoch), text)

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except Exception as error:  # any error, a driver's or of a thread that cannot start: the lease comes first
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            # Of any other error log only the name: a driver's message may quote what it was given.
            problem = error if isinstance(error, SparkLeaseError | OSError) else type(error).__name__
            log.log(level, "%s: its history cannot be written: %s", self._config.name, problem)
