"""Finds program code that the JVM calls: the body of a foreachBatch, a listener. It runs on Py4J's threads.

Stopping Spark does not end it: the JVM gives up the stream, but Python goes on.
"""

import logging
import sys
import threading
import traceback

_SERVE = {"ClientServerConnection", "CallbackConnection"}
"""The classes whose `run` a Py4J thread executes all its life, with and without pinned threads (Py4J 0.10.9)."""


def callbacks() -> set[int]:
    """The ids (`threading.get_ident`) of the threads on which such code runs now."""
    return {each.ident for each in threading.enumerate() if each.ident and _serves(each) and _is_called(each.ident)}


def _serves(thread: threading.Thread) -> bool:
    runs = getattr(getattr(thread, "_target", None), "__self__", thread)
    return type(runs).__name__ in _SERVE


def _is_called(thread: int) -> bool:
    if (last := sys._current_frames().get(thread)) is None:
        return False
    try:
        return any(frame.f_code.co_qualname.endswith("._call_proxy") for frame, _ in traceback.walk_stack(last))
    except AttributeError:  # the frames of a thread that runs may be invalid (CPython 3.11): then it is working
        return True


def end_callback(thread: int) -> None:
    """Raise SystemExit in the thread when it next runs Python code, so not before its current C call returns.

    Does nothing while the thread logs, because it may hold the lock of a log handler: call it again later."""
    import ctypes  # heavy, and hardly ever needed

    frames = traceback.walk_stack(sys._current_frames().get(thread))
    if thread in callbacks() and not any(frame.f_code.co_filename == logging.__file__ for frame, _ in frames):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))
