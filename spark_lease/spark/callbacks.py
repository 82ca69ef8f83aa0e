"""Finds program code that the JVM calls: the body of a foreachBatch, a listener. It runs on Py4J's threads.

Stopping Spark does not end it: the JVM gives up the stream, but Python goes on.
"""

import logging
import sys
import traceback

_SERVE = {"ClientServerConnection.wait_for_commands", "CallbackConnection.run"}
"""Functions that a Py4J thread runs all its life, with and without pinned threads (Py4J 0.10.9)."""


def callbacks() -> set[int]:
    """The ids (`threading.get_ident`) of the threads on which such code runs now."""
    found = set[int]()
    for thread, last in sys._current_frames().items():
        names = {frame.f_code.co_qualname for frame, _ in traceback.walk_stack(last)}
        if names & _SERVE and any(each.endswith("._call_proxy") for each in names):
            found.add(thread)
    return found


def end_callback(thread: int) -> None:
    """Raise SystemExit in the thread when it next runs Python code, so not before its current C call returns.

    Does nothing while the thread logs, because it may hold the lock of a log handler: call it again later."""
    import ctypes  # heavy, and hardly ever needed

    frames = traceback.walk_stack(sys._current_frames().get(thread))
    if thread in callbacks() and not any(frame.f_code.co_filename == logging.__file__ for frame, _ in frames):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
