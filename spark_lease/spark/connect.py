"""Spark Connect: sessions whose work runs on a server that is not ours to end. Never imports pyspark.

`interruptAll` ends what the server runs for a session, as far as it can: a Python worker there may write on for
seconds. What was interrupted is therefore never taken for over.
"""

import contextlib
import gc
import logging
import os
import sys
import threading
from typing import Any

log = logging.getLogger(__name__)


def is_connected() -> bool:
    """True if this process has, or had, a session on a Spark Connect server and none of its own. Costs nothing."""
    return getattr(_session_class(), "_default_session", None) is not None


def interrupt_all() -> bool:
    """Interrupt what runs on servers for any session of this process; True if something ran, or that is not known.

    May hang for as long as a server does.
    """
    ran = False
    for session in _sessions():
        try:
            ran |= bool(session.interruptAll())
        except Exception as error:  # gRPC raises anything once the server is gone
            log.debug("interruptAll: %s", error)
            ran = True
    return ran


def stop_all() -> None:
    """Interrupt, and give up every session. May hang."""
    interrupt_all()
    for session in _sessions():
        session.stop()
        log.warning("Spark Connect session stopped")


def has_a_local_server() -> bool:
    """True if the server was started by this process: its JVM is ours to end."""
    return is_connected() and "SPARK_LOCAL_REMOTE" in os.environ


def forget_a_local_server() -> None:
    """This process started it (`remote("local")`), and its JVM has ended: a builder would go on giving sessions of
    it, whose calls are tried again for minutes."""
    if (kind := _session_class()) is None or "SPARK_LOCAL_REMOTE" not in os.environ:
        return
    sessions = _sessions()
    kind._default_session, kind._active_session = None, threading.local()
    classic = sys.modules["pyspark.sql.session"].SparkSession
    classic._instantiatedSession = classic._activeSession = None
    for key in ("SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):  # as `SparkSession.stop` does
        os.environ.pop(key, None)
    for session in sessions:  # gRPC may take its time
        with contextlib.suppress(RuntimeError):  # no thread to be had
            threading.Thread(target=session.client.close, name="close Spark Connect", daemon=True).start()


def _sessions() -> list[Any]:
    """Every session of every thread: only the collector knows them all."""
    kind = _session_class()
    return [each for each in gc.get_objects() if type(each) is kind and not each.is_stopped] if kind else []


def _session_class() -> Any:
    return getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
