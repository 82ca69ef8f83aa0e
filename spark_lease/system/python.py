"""Starts another Python beside this program, for code that must live, or may hang, apart from it."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PYTHON = sys.executable or "/proc/self/exe"
_EXPECTED = "_SPARK_LEASE_EXPECTS_PYTHON"
"""Set when Python is started. A program that finds it set is not Python, but was started in its place."""


def start_python(
    code: str, *arguments: str, environ: Mapping[str, str] = os.environ, **how: Any
) -> subprocess.Popen[bytes]:
    """Run `code` in another Python, in a session of its own and in isolated mode (-I).

    Raises OSError, also if `sys.executable` is known to be another program.
    """
    if getattr(sys, "frozen", False):  # by PyInstaller: it would run the program again, and that one again
        raise OSError(errno.ENOEXEC, "this program is frozen, and brings no Python that runs anything else")
    command = [PYTHON, "-I", "-c", code, *arguments]
    return subprocess.Popen(command, env={**environ, _EXPECTED: "1"}, start_new_session=True, **how)


def end_if_python_was_expected() -> None:
    """End this process if it is a copy of a program that asked for Python, and started itself.

    That happens if `sys.executable` is a program that embeds Python: each copy would start another.
    """
    if not os.environ.get(_EXPECTED):
        return
    try:
        if sys.__stderr__:  # was open when this process began
            words = f"spark-lease: {PYTHON} was started as Python and runs this program again: it ends here\n"
            sys.__stderr__.write(words)
            sys.__stderr__.flush()
    finally:
        os._exit(os.EX_SOFTWARE)


def import_path() -> list[str]:
    """`sys.path` for a process that may have another working folder; it always contains this package."""
    path = [str(Path(each or ".").absolute()) for each in sys.path]
    package = str(Path(__file__).parents[2])
    return path if package in path else [*path, package]
