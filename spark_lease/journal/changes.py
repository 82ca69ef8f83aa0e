"""Writes the history of a lease: each change of hands that this process makes, right after the change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from ..clock import Clock
from ..config.settings import Config
from ..config.urls import redacted
from ..election.journal_entries import ENDED, GRANT, KINDS, bounded_age, end_text, grant_text, is_first_of_its_day
from ..election.record import Snapshot
from ..errors import SparkLeaseError
from ..stores.registry import open_notes
from ..system.call_timeout import CallTimeout

log = logging.getLogger(__name__)


class ChangeJournal:
    """Implements `Journal`, with notes. A grant is noted on a thread of its own, an end after that is done."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._bounded = CallTimeout(redacted(config.url), timeout=config.attempt_timeout, clock=clock)
        self._may_be_old = self._has_failed = False

    def granted(self, holder: str, epoch: int, over: Snapshot) -> None:
        self._may_be_old = is_first_of_its_day(over.record, epoch)
        text = grant_text(holder, over, site=self._config.site)
        if self._config.scheme == "sqlite":
            # A process that is frozen while it writes a note keeps all of the database locked: not once others count
            # on its lease to run out.
            self._try(lambda: self._bounded.call(lambda: self._append(GRANT, epoch, text)))
        else:
            self._bounded.begin(lambda: self._try(lambda: self._append(GRANT, epoch, text)))

    def ended(self, epoch: int, why: str, *, at: int, detail: str) -> None:
        when = "by" if self._config.is_in_folders else "at"
        text = end_text(why, detail=detail, **{when: at})
        self._try(lambda: self._bounded.call(lambda: self._append(ENDED, epoch, text)))
        if self._may_be_old:
            self._may_be_old = False
            self._try(lambda: self._bounded.call(self._prune))

    def close(self) -> None:
        self._bounded.close()

    def _append(self, kind: str, epoch: int, text: str) -> None:
        with closing(open_notes(self._config, self._clock)) as notes:
            notes.append(self._config.shared_name, kind, str(epoch), text)

    def _prune(self) -> None:
        with closing(open_notes(self._config, self._clock)) as notes:
            notes.prune(self._config.shared_name, KINDS, bounded_age(self._config.history_retention))

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (SparkLeaseError, OSError) as error:  # the lease comes first
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            log.log(level, "%s: its history cannot be written: %s", self._config.name, error)
