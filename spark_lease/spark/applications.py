"""Notes beside the lease which Spark applications work under it, as each one starts."""

import json
import logging
import sys
import threading
from typing import Any

from ..config.settings import Config
from ..election.journal_entries import APPLICATION
from ..holds import GuardedHold
from .contexts import application_id, unwatch_contexts, watch_contexts

log = logging.getLogger(__name__)


class Applications:
    """Notes the applications of one hold, between `begin` and `end`. Never raises; Spark never waits for a note."""

    def __init__(self, lease: GuardedHold, config: Config) -> None:
        self._lease, self._config = lease, config
        lease.runs.application = application_id

    def begin(self) -> None:
        # Importing pyspark takes longer than all else: watch only if it is imported already, or must be in any case.
        if self._config.enabled and (self._config.fence_delta != "off" or "pyspark" in sys.modules):
            watch_contexts(self.note)

    def end(self) -> None:
        unwatch_contexts(self.note)

    def note(self, context: Any | None) -> None:
        if context is None:  # a session on a Spark Connect server is no application of its own
            return
        application = str(context.applicationId)
        threading.Thread(target=_note, args=(self._lease, application), name="note application", daemon=True).start()


def _note(lease: GuardedHold, application: str) -> None:
    key, text = f"{lease.epoch}\n{application}", json.dumps({"application": application})
    try:
        lease.note(APPLICATION, key, text)
    except Exception as error:  # any error: only the history lacks a name
        log.debug("%s: application %s is not noted: %s", lease.name, application, error)
