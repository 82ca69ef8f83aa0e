"""Noting beside the lease which Spark applications worked under it, as each of them comes to life."""

import json
import logging
import threading
from typing import Any

from ..election.journal_entries import APPLICATION
from ..holds import GuardedHold

log = logging.getLogger(__name__)


def note_application(lease: GuardedHold, context: Any | None) -> None:
    """Note that of a context which was just made. Never raises, and no Spark waits for a note."""
    if context is None:  # a session on a Spark Connect server is no application of its own
        return
    application = str(context.applicationId)
    threading.Thread(target=_note, args=(lease, application), name="note application", daemon=True).start()


def _note(lease: GuardedHold, application: str) -> None:
    key, text = f"{lease.epoch}\n{application}", json.dumps({"application": application})
    try:
        lease.note(APPLICATION, key, text)
    except Exception as error:  # whatever it is: the history lacks a name, and that is all
        log.debug("%s: application %s is not noted: %s", lease.name, application, error)
