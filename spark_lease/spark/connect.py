"""Spark Connect: sessions whose work runs on a server that this process may not end. Never imports pyspark.

`interruptAll` ends a session's work on the server only as far as it can: a Python worker there may write on for
seconds. Therefore interrupted work never counts as over.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from typing import Any

from ..logs import say

_ENDED_WITHIN, _TRIES = 30, 5
log = logging.getLogger(__name__)


def is_connected() -> bool:
    """True if this process has, or had, a session on a Spark Connect server and none of its own. Costs nothing."""
    return getattr(_session_class(), "_default_session", None) is not None


def interrupt_all() -> bool:
    """Interrupt the work on servers of all sessions of this process; True if some ran, or if that is unknown.

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
    """Interrupt and stop every session. May hang."""
    interrupt_all()
    for session in _sessions():
        session.stop()
        log.warning("Spark Connect session stopped")


def session_address() -> str:
    """The URL with which another process reaches this one's session on its server; it may hold a token. Empty if there
    is none, if the server is a child of this process, or if the program connects in a way of its own."""
    session = getattr(_session_class(), "_default_session", None)
    if session is None or session.is_stopped or "SPARK_LOCAL_REMOTE" in os.environ:
        return ""
    url = getattr(getattr(session.client, "_builder", None), "url", None)
    if url is None:
        return ""
    where, _, words = str(url.geturl()).partition(";")
    kept = [each for each in words.split(";") if each and not each.startswith("session_id=")]
    return ";".join([f"sc{where.removeprefix('http').rstrip('/')}/", *kept, f"session_id={session.session_id}"])


def end_session(lease: str, address: str) -> None:
    """End a session that another process has left behind, with its streams and its other work, then end this process:
    after half a minute at most."""

    def give_up(problem: str) -> None:
        say(f"{lease}: cannot end what the driver has left on its Spark Connect server ({problem})")
        os._exit(1)

    signal.signal(signal.SIGALRM, lambda *_: give_up(f"no answer within {_ENDED_WITHIN} s"))
    signal.alarm(_ENDED_WITHIN)
    from pyspark.sql import SparkSession  # heavy, and it may hang

    problem = ""
    for _ in range(_TRIES):  # a server may fail for work that changes its state at this moment
        try:
            session = SparkSession.builder.remote(address).getOrCreate()
            with contextlib.suppress(Exception):
                session.client.interrupt_all()
            with contextlib.suppress(Exception):
                for query in session.streams.active:
                    query.stop()
            session.client.release_session()
            say(f"{lease}: ended the session that the driver has left on its Spark Connect server")
            os._exit(0)
        except Exception as error:  # gRPC raises anything; its text may hold the address
            problem = type(error).__name__
    give_up(problem)


def has_a_local_server() -> bool:
    """True if the server was started by this process: its JVM is ours to end."""
    return is_connected() and "SPARK_LOCAL_REMOTE" in os.environ


def forget_a_local_server() -> None:
    """Forget a server that this process started (`remote("local")`) and whose JVM has ended: a builder would still
    return sessions of that server, whose calls are retried for minutes."""
    if (kind := _session_class()) is None or "SPARK_LOCAL_REMOTE" not in os.environ:
        return
    sessions = _sessions()
    kind._default_session, kind._active_session = None, threading.local()
    classic = sys.modules["pyspark.sql.session"].SparkSession
    classic._instantiatedSession = classic._activeSession = None
    for key in ("SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):  # as `SparkSession.stop` does
        os.environ.pop(key, None)
    for session in sessions:  # closing gRPC may take long
        with contextlib.suppress(RuntimeError):  # no thread can be started
            threading.Thread(target=session.client.close, name="close Spark Connect", daemon=True).start()


def _sessions() -> list[Any]:
    """Every session of every thread: only the garbage collector knows them all."""
    kind = _session_class()
    return [each for each in gc.get_objects() if type(each) is kind and not each.is_stopped] if kind else []


def _session_class() -> Any:
    return getattr(sys.modules.get("pyspark.sql.connect.session"), "SparkSession", None)
