"""The history of leases that are kept in folders: small files, written right after the change that they are about.

There is no transaction to write both, so a change may go without its note; the next one heals that. A grant does not
wait for its note, nor does a standby that waits for a release. No clock is shared: an end was *by* a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...clock import Clock, wall_time
from ...config.settings import Config
from ...config.urls import redacted
from ...election.journal_entries import (
    ENDED,
    GRANT,
    KINDS,
    RELEASED,
    bounded_age,
    end_text,
    grant_text,
    is_first_of_its_day,
    is_grant,
    is_release,
)
from ...election.record import LeaseRecord
from ...errors import SparkLeaseError
from ...system.call_timeout import CallTimeout
from .note_files import NoteFiles, content, path_of, prune

log = logging.getLogger(__name__)


class FolderHistory:
    """Used by one thread at a time, like the store. Nothing raises."""

    def __init__(self, config: Config, clock: Clock, files: NoteFiles) -> None:
        self._config, self._files = config, files
        self._bounded = CallTimeout(redacted(config.url), timeout=config.attempt_timeout, clock=clock)
        self._owed: tuple[int, str] | None = None
        self._ending = RELEASED, ""
        self._may_be_old = self._has_failed = False

    def changed(self, name: str, old: LeaseRecord | None, new: LeaseRecord) -> None:
        """`new` was written in place of `old`. Waits for nothing."""
        if is_grant(old, new):
            text, self._may_be_old = (
                grant_text(old, new, until=None, site=self._config.site),
                is_first_of_its_day(old, new.epoch),
            )
            self._bounded.begin(lambda: self._try(lambda: self._put(name, GRANT, new.epoch, text)))
        if is_release(old, new):
            why, detail = self._ending
            self._owed = new.epoch, end_text(why, detail=detail, by=round(wall_time() * 1000))

    def ends_as(self, why: str, detail: str) -> None:
        self._ending = why, detail

    def after_release(self, name: str) -> None:
        owed, self._owed = self._owed, None
        if owed:
            self._try(lambda: self._bounded.call(lambda: self._put(name, ENDED, *owed)))
        if self._may_be_old:
            self._may_be_old, age = False, bounded_age(self._config.history_retention)
            self._try(lambda: self._bounded.call(lambda: prune(self._files, name, KINDS, age)))

    def note_end(self, name: str, epoch: int, why: str, at: int, detail: str) -> None:
        text = end_text(why, by=at, detail=detail)
        self._try(lambda: self._bounded.call(lambda: self._put(name, ENDED, epoch, text)))

    def close(self) -> None:
        self._bounded.close()

    def _put(self, name: str, kind: str, epoch: int, text: str) -> None:
        self._files.put_new(name, path_of(kind, str(epoch)), content(str(epoch), text))

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
        except (SparkLeaseError, OSError) as error:  # the lease comes first
            level = logging.DEBUG if self._has_failed else logging.WARNING
            self._has_failed = True
            log.log(level, "%s: its history is not noted: %s", self._config.name, error)
